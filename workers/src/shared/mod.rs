//! Modules that the coordinator and the workers share: messages, the step table, and groups and
//! sequences in it.

pub mod grammar_source;
pub mod group;
pub mod iteration_planner;
pub mod prefix_sharing;
pub mod protocol;
pub mod release;
pub mod serving;
pub mod table;
