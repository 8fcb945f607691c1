//! From a policy's name to a compiled plan that fits memory, and from an operation table to the
//! best placement of a layer. Pure: what the machine has comes in as numbers.

pub mod batches;
pub mod budget;
pub mod layer;
pub mod lia;
pub mod machine;
pub mod policy;
pub mod priced;
pub mod serving;
pub mod split;
#[cfg(test)]
mod tests;
pub mod timed;
