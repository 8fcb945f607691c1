//! The one table of operations: a decoder layer as an ordered list, what each operation reads and
//! writes, its weights, FLOPs and bytes. Planner, compiler, workers, tests and benches use this
//! table and no other.

mod costs;
mod layer;
mod op;
mod value;
mod weights;

pub use layer::{GATED_LAYER, PLAIN_LAYER};
pub use op::{Kv, Op};
pub use value::{Element, Value};
pub use weights::{WEIGHT_ALIGN, WeightLayout, WeightShape, align_up};
