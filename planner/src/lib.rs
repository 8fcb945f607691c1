//! From a policy's name to a compiled plan that fits memory. Pure: what the machine has comes in as
//! numbers.

pub mod budget;
pub mod policy;
pub mod split;
#[cfg(test)]
mod tests;
