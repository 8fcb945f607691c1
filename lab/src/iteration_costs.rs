//! A server's measured costs of iterations as a file, which `serve --costs` writes and `plan
//! --serve --costs` reads.

use std::path::Path;

use anyhow::Context;
use scheduler::hybrid::{IterationLimits, StepCosts};
use scheduler::{COST_POINTS, StepCostCurve};
use serde::{Deserialize, Serialize};

use session::writable::check_writable;

/// Costs and capacity of a server's iterations.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct IterationCosts {
    pub model: String,
    /// Maximum number of rows in an iteration.
    rows: u32,
    /// Maximum number of positions of a sequence.
    pub context: u32,
    /// Number of sequences that the device has caches for, and total number of slots.
    pub device_slots: u32,
    pub slots: u32,
    layers: u32,
    /// Points of (rows, time of their linears on the device in µs).
    linears_us: [(u32, u32); COST_POINTS],
    /// Time of a prompt's row per preceding position, in picoseconds.
    prompt_position_ps: u32,
    weights_us: u32,
    device_position_ps: u32,
    host_position_ps: u32,
    host_row_ps: u32,
    launch_us: u32,
    lagging_us: u32,
    position_out_ps: u32,
    position_in_ps: u32,
}

impl IterationCosts {
    /// Returns the costs of a server of the named model.
    pub fn new(model: String, limits: &IterationLimits, costs: &StepCosts) -> Self {
        IterationCosts {
            model,
            rows: limits.rows,
            context: limits.page_positions,
            device_slots: limits.device_pages,
            slots: limits.host_pages - limits.device_pages,
            layers: costs.layers,
            linears_us: costs.device.points,
            prompt_position_ps: costs.device.position_ps,
            weights_us: costs.weights_us,
            device_position_ps: costs.device_position_ps,
            host_position_ps: costs.host_position_ps,
            host_row_ps: costs.host_row_ps,
            launch_us: costs.launch_us,
            lagging_us: costs.deferred_rows_us,
            position_out_ps: costs.position_out_ps,
            position_in_ps: costs.position_in_ps,
        }
    }

    /// Returns the costs in the scheduler's representation.
    pub fn costs(&self) -> StepCosts {
        StepCosts {
            layers: self.layers,
            device: StepCostCurve {
                points: self.linears_us,
                position_ps: self.prompt_position_ps,
                logits_row_ns: 0,
                draft_row_ns: 0,
            },
            weights_us: self.weights_us,
            device_position_ps: self.device_position_ps,
            host_position_ps: self.host_position_ps,
            host_row_ps: self.host_row_ps,
            launch_us: self.launch_us,
            deferred_rows_us: self.lagging_us,
            position_out_ps: self.position_out_ps,
            position_in_ps: self.position_in_ps,
        }
    }

    /// Returns the limits of an iteration.
    pub fn limits(&self) -> IterationLimits {
        IterationLimits::from_extents(self.rows, self.context, self.slots, self.device_slots)
    }

    /// Writes the costs to a file.
    ///
    /// # Errors
    /// A file that cannot be written.
    pub fn write(&self, path: &Path) -> anyhow::Result<()> {
        let text = serde_json::to_string_pretty(self)? + "\n";
        std::fs::write(path, text).with_context(|| format!("the costs {}", path.display()))
    }

    /// Checks that `path` can be written, before a model is loaded. An existing file is left
    /// unchanged.
    ///
    /// # Errors
    /// A path that cannot be written.
    pub fn check_path(path: &Path) -> anyhow::Result<()> {
        check_writable(path).with_context(|| format!("--costs {}", path.display()))
    }

    /// Reads costs from a file.
    ///
    /// # Errors
    /// A file that cannot be read or that no server wrote.
    pub fn read(path: &Path) -> anyhow::Result<Self> {
        let context = || format!("the costs {}", path.display());
        let text = std::fs::read_to_string(path).with_context(context)?;
        serde_json::from_str(&text).with_context(context)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_path_is_tried_and_left_as_it_was() {
        let folder = tempfile::tempdir().expect("a folder");
        let path = folder.path().join("costs.json");
        IterationCosts::check_path(&path).expect("can be written");
        assert!(!path.exists());
        std::fs::write(&path, "earlier").expect("written");
        IterationCosts::check_path(&path).expect("can be written");
        assert_eq!(std::fs::read_to_string(&path).expect("there"), "earlier");
        let missing = folder.path().join("no/costs.json");
        let refused = IterationCosts::check_path(&missing).expect_err("no such folder");
        assert!(format!("{refused:#}").contains("no/costs.json"), "{refused:#}");
    }

    #[test]
    fn a_file_says_all_of_it() {
        let mut costs = StepCosts { layers: 30, weights_us: 7, ..StepCosts::NONE };
        costs.device.points[0] = (1, 4_000);
        costs.device.position_ps = 9;
        (costs.device_position_ps, costs.host_position_ps, costs.host_row_ps) = (1, 2, 3);
        (costs.launch_us, costs.deferred_rows_us) = (4, 5);
        (costs.position_out_ps, costs.position_in_ps) = (6, 8);
        let limits = IterationLimits::from_extents(512, 2048, 20, 2);
        let file = tempfile::NamedTempFile::new().expect("a file");
        let written = IterationCosts::new("m".to_owned(), &limits, &costs);
        written.write(file.path()).expect("written");
        let read = IterationCosts::read(file.path()).expect("read");
        assert_eq!((read.costs(), read.limits()), (costs, limits));
        std::fs::write(file.path(), "{}").expect("written");
        let refused = format!("{:#}", IterationCosts::read(file.path()).expect_err("no costs"));
        assert!(refused.contains("model"), "{refused}");
    }
}
