//! One decoder layer as a table of operations: what a placement of it takes, by the closed form or
//! as a timeline, and the search for the best one.

pub mod closed_form;
pub mod cost;
pub mod search;
pub mod steady;
pub mod table;
pub mod time;
