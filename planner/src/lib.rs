//! Turns a policy's name into a compiled plan that fits in memory, and an operation table into the
//! best placement of a layer. Pure: the properties of the machine are passed in as numbers.

pub mod batches;
pub mod budget;
pub mod layer;
pub mod lia;
pub mod machine;
pub mod policy;
pub mod search;
pub mod serving;
pub mod speculation;
pub mod split;
#[cfg(test)]
mod tests;
pub mod timed;
