//! Output of a run at its end: the report file, tables and charts.

pub mod build;
pub mod explain;
pub mod file;
pub mod gantt;
pub mod layer;
pub(crate) mod layer_notes;
pub mod page;
pub(crate) mod placement;
pub(crate) mod plain_table;
pub(crate) mod read_weights;
pub mod routing;
pub mod select;
pub(crate) mod slow_tier_weights;
pub(crate) mod step;
pub mod storages;
pub mod table;
