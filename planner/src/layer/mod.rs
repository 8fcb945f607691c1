//! One decoder layer as a table of operations: the duration of a placement, by the closed form or
//! as a timeline, and the search for the best one.

pub mod closed_form;
pub mod cost;
pub mod search;
pub mod steady;
pub mod table;
pub mod time;
