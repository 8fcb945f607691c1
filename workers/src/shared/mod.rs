//! Modules that the coordinator and the workers share: messages, the step table, and groups and
//! sequences in it.

pub mod forms;
pub mod group;
pub mod iterations;
pub mod prefix_sharing;
pub mod protocol;
pub mod release;
pub mod serving;
pub mod table;
