//! From a policy's name to a compiled plan that fits memory, and from an operation table to the
//! best placement of a layer. Pure: what the machine has comes in as numbers.

pub mod batches;
pub mod budget;
pub mod closed_form;
pub mod cost;
pub mod lia;
pub mod machine;
pub mod measured;
pub mod policies;
pub mod policy;
pub mod resident;
pub mod search;
pub mod split;
pub mod steady;
pub mod table;
#[cfg(test)]
mod tests;
pub mod time;
pub mod timed;
