//! Errors of turning a table into programs in which only time passes.

use program::compile::CompileError;
use program::validate::ValidateError;

use super::bounds::{GEN_LEN_MAX, LAYERS_MAX, LLAMA, OPT, TIME_MAX_MS};
use crate::layer::table::TableError;
use crate::search::CostError;

/// Reason for which a table or a described plan did not become programs.
#[derive(Debug, thiserror::Error)]
pub enum TimedError {
    #[error(transparent)]
    Table(#[from] TableError),
    #[error(
        "the table's operation {name} is not one of a layer that programs support; use {} or {}",
        OPT,
        LLAMA
    )]
    Unknown { name: String },
    #[error("{name} names the same operation as an earlier one")]
    DuplicateTime { name: String },
    #[error("{name} comes after an operation that it must precede; the order is {order}")]
    Order { name: String, order: &'static str },
    #[error("the chunks of {name} must be numbered from 0 to at most 63 without gaps")]
    Chunks { name: String },
    #[error(
        "{name} cannot be split into chunks here; only the chunks of scores have programs of \
         their own"
    )]
    Chunked { name: String },
    #[error(
        "{name} and \"kv\" do not go together: KV is what scores and wv read, and nothing else is"
    )]
    Kv { name: String },
    #[error("{name} has a transfer time but no weights and no KV; remove its h2d_ms")]
    NothingToMove { name: String },
    #[error(
        "{field} of {name} is {value_ms} ms; an instruction of more than {} s would be taken for \
         one that hangs",
        TIME_MAX_MS / 1e3
    )]
    TooLong { name: String, field: &'static str, value_ms: f64 },
    #[error(
        "an instruction of the lane {lane} takes {value_ms:.0} ms; one of more than {} s would be \
         taken for one that hangs",
        TIME_MAX_MS / 1e3
    )]
    TooLongFor { lane: String, value_ms: f64 },
    #[error(
        "the lane {lane} of {model} has another list in the small model; this is a defect, please \
         report it"
    )]
    OtherPrograms { model: String, lane: String },
    #[error("the machine does not price the plan: {0}")]
    Unpriced(#[from] CostError),
    #[error(
        "the best placement of this table reads {names} from NVMe, which the runtime does not yet \
         support; set \"nvme\" to false"
    )]
    Nvme { names: String },
    #[error("--layers {layers}: a run has between 1 and {LAYERS_MAX} layers")]
    Layers { layers: usize },
    #[error("--gen-len {gen_len}: a run has between 1 and {GEN_LEN_MAX} new tokens")]
    GenLen { gen_len: u32 },
    #[error("the layer does not compile: {0}")]
    Compile(#[from] CompileError),
    #[error("the compiled program is not safe to run; this is a defect, please report it: {0}")]
    Invalid(#[from] ValidateError),
}
