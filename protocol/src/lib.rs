//! What the coordinator and its child processes share: messages between the coordinator and the
//! workers ([`messages`]), groups of sequences and their rows of a step in the control segment
//! ([`group`], [`table`]), and the start of a child process ([`child_process`]).
//!
//! Invariants: a worker trusts no number that it reads from the control segment before it has
//! checked it; a child process inherits no secret.

pub mod child_process;
pub mod grammar_source;
pub mod group;
pub mod iteration_planner;
pub mod messages;
pub mod prefix_sharing;
pub mod release;
pub mod serving;
pub mod table;
