//! CUDA kernels of every operation in the model's table: their PTX and the launch of each.
//!
//! The sources are in `source/`, CUDA C++ without any header; `scripts/ptx.sh` compiles them to the
//! committed [`PTX`]. The gpu worker loads that module and launches the kernels that the functions
//! here describe; the tests run the same sources on the CPU through `cuda_shim`.
//!
//! Invariants:
//! - **Row independence.** The bits of a row of output depend on that row's inputs alone, never on
//!   batch size, neighbours or which kernel a batch size selects. Every sum has one order, fixed by
//!   its length.
//! - Every pointer is a device address; 0 represents an absent operand. Nothing here dereferences
//!   one, and nothing allocates.
//! - Matrices, activations and caches are aligned to 16 bytes; records of grouped weights to 64.
//! - No launch needs more than 48 KiB of shared memory, so no kernel needs an attribute set.
//! - Shapes are checked here, and functions panic if they are wrong: they come from the caller's
//!   program.

mod attention;
mod compressed;
mod cubins;
mod experts;
mod launch;
mod linear;
mod rows;
mod stored;

pub use attention::{
    DeviceAttentionShape, DeviceAttentionUnit, DeviceAttentionUnits, HEAD_DIM_MAX, KvOperand,
    append, append_kv4, attention_decode, attention_decode_scratch_bytes, attention_prefill,
    scores, softmax, weighted_values,
};
pub use compressed::{decompress, quantise_kv, widen};
pub use cubins::Cubin;
pub use experts::{
    DeviceExpertLinear, DeviceExpertShape, EXPERTS_PER_ROW_MAX, expert_combine, expert_linear,
    group_experts, route,
};
pub use launch::{DevicePointer, KernelArgs, KernelLaunch, MAX_ARGS};
pub use linear::{DeviceLinear, DeviceLinearOut, DeviceWeight, epilogue, linear};
pub use rows::{
    DeviceNorm, DeviceRopeTables, add_rms_norm, argmax, embed, embed_grouped, head_norm, norm, rope,
};
pub use stored::multiplies_stored;

/// All kernels as one PTX module for compute capability 8.0 and up; the driver compiles it for a
/// device that has no [`Cubin`]. Every kernel is an entry with the name in its [`KernelLaunch`].
pub static PTX: &str = include_str!("../ptx/tandem.ptx");

/// Appends the element type of `dtype` to a kernel's name.
macro_rules! named {
    ($dtype:expr, $name:literal) => {
        match $dtype {
            model::config::Dtype::Bf16 => concat!($name, "_bf16"),
            model::config::Dtype::F32 => concat!($name, "_f32"),
        }
    };
}
use named;
