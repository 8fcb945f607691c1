//! CUDA kernels of every operation in the model's table: their PTX and how each is launched.
//!
//! The sources are in `source/`, CUDA C++ without any header; `scripts/ptx.sh` compiles them to the
//! committed [`PTX`]. The gpu worker loads that module and launches what the functions here
//! describe; the tests run the same sources on the CPU through `cuda_shim`.
//!
//! Invariants:
//! - **Row independence.** The bits of a row of output depend on that row's inputs alone, never on
//!   batch size, neighbours or which kernel a batch size selects. Every sum has one order, fixed by
//!   its length.
//! - Every pointer is a device address; 0 stands for an operand that is not there. Nothing here
//!   dereferences one, and nothing allocates.
//! - Matrices, activations and caches lie on 16-byte boundaries; records of grouped weights on 64.
//! - No launch needs more than 48 KiB of shared memory, so no kernel needs an attribute set.
//! - Shapes are checked here and panic when wrong: they are the caller's program.

mod attention;
mod compressed;
mod cubins;
mod experts;
mod launch;
mod linear;
mod rows;

pub use attention::{
    AttentionShape, HEAD_DIM_MAX, KeysOrValues, Unit, Units, append, append_four, attention_decode,
    attention_decode_scratch_bytes, attention_prefill, scores, softmax, weighted_values,
};
pub use compressed::{decompress, quantise_kv, widen};
pub use cubins::Cubin;
pub use experts::{
    EXPERTS_PER_ROW_MAX, ExpertLinear, ExpertShape, expert_combine, expert_linear, group_experts,
    route,
};
pub use launch::{Args, DevicePointer, Launch, MAX_ARGS};
pub use linear::{Linear, LinearOut, Weight, epilogue, linear};
pub use rows::{
    RopeTables, add_rms_norm, argmax, embed, embed_grouped, head_norm, layer_norm, rms_norm, rope,
};

/// All kernels as one PTX module for compute capability 8.0 and up; the driver compiles it for a
/// device that no [`Cubin`] is for. Every kernel is an entry of the name that its [`Launch`] has.
pub static PTX: &str = include_str!("../ptx/tandem.ptx");

/// Elements of `dtype` in kernels' names.
macro_rules! named {
    ($dtype:expr, $name:literal) => {
        match $dtype {
            model::config::Dtype::Bf16 => concat!($name, "_bf16"),
            model::config::Dtype::F32 => concat!($name, "_f32"),
        }
    };
}
use named;
