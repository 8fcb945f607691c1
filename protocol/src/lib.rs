//! Protocol between the coordinator and its child processes: messages to and from the workers
//! ([`messages`]), groups of sequences and their rows of a step in the control segment ([`group`],
//! [`table`]), and the start of a child process ([`child_process`]).
//!
//! Invariants: the places of caches and scores are computed only in [`table`], so that all
//! processes agree on them; a child process inherits no secret.

pub mod child_process;
pub mod draft_sequence;
pub mod drafts;
pub mod grammar_source;
pub mod group;
pub mod iteration_planner;
pub mod messages;
pub mod predicted_answer;
pub mod prefix_sharing;
pub mod prompt_lookup;
pub mod release;
pub mod serving;
pub mod table;
