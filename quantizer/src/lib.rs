//! Quantisation of models to GGUF files: from a safetensors checkpoint or a GGUF file to one GGUF
//! file of a given type.
//!
//! [`input`] and [`checkpoint`] present a model as the tensors and metadata of a GGUF file,
//! [`tensor_types`] chooses the type of each tensor, [`encode`] has the encoders, and [`job`]
//! writes the file, in pieces and on several threads. [`importance`] weighs the columns of a
//! matrix by the inputs that it multiplied in a calibration text, which are measured elsewhere.

pub mod checkpoint;
mod config_check;
pub mod encode;
pub mod error;
pub mod file_type;
pub mod header;
pub mod importance;
pub mod input;
pub mod job;
pub mod tensor_types;
