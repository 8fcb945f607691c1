//! Output of runs, plans and measurements: the report file, tables, charts and the page for a
//! browser.
//!
//! Everything is a function from results to text or JSON: the crate opens no file, writes to no
//! stream and parses no argument. It depends on [`engine`] only for the statistics of a run, and on
//! [`planner`] and [`program`] for the plans that it describes.
//!
//! - [`build`] makes the report file, whose types are in `file`, from a run's statistics; [`table`]
//!   formats it for a terminal, and [`page`] renders report files as one page of HTML.
//! - [`placement`], [`explain`], [`layer`], [`step`] and [`gantt`] describe plans.
//! - [`plain_table`] is the style of the tables that all commands print.

pub mod build;
pub mod explain;
pub mod file;
pub mod gantt;
pub mod layer;
pub mod layer_notes;
pub mod page;
pub mod placement;
pub mod plain_table;
pub mod read_weights;
pub mod routing;
pub mod select;
pub mod slow_tier_weights;
pub mod step;
pub mod storages;
pub mod table;
