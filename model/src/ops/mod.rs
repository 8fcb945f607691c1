//! The table of operations: a decoder layer as an ordered list, and for each operation the values
//! it reads and writes, its weights, FLOPs and bytes. It is the only such table, used by planner,
//! compiler, workers, tests and benchmarks.

mod costs;
mod dataflow;
mod layer;
mod op;
mod value;
mod weights;

pub use layer::{GATED_LAYER, PLAIN_LAYER};
pub use op::{Kv, Op};
pub use value::{ElementType, Value};
pub use weights::{WEIGHT_ALIGN, WeightLayout, WeightShape, align_up};
