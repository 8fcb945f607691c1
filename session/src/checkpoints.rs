//! Checkpoints of a serving run: how many there are.

use planner::budget::{Budget, MemoryLimits};
use program::checkpoints::size_bytes;
use program::compile::compile;
use program::plan::{Plan, RunShape};
use program::sizes::Sizes;

use crate::request::Verbosity;
use crate::session::Session;

/// Number of checkpoints per slot: a conversation needs one after its prompt and one within its
/// answer.
const CHECKPOINTS_PER_SLOT: u32 = 2;
/// Minimum number of checkpoints, so that a few conversations can take turns in a single slot.
const CHECKPOINTS_MIN: u32 = 8;

/// Returns the plan of a serving run with as many checkpoints as are useful and fit in memory, if
/// the model overwrites what some layers keep of a sequence. The plan is returned unchanged if
/// checkpoints cannot be taken with its placement.
pub(super) fn with_checkpoints(session: &Session<'_>, plan: Plan, limits: &MemoryLimits) -> Plan {
    let shape = plan.shape;
    let size = size_bytes(&Sizes::new(&plan.config, &shape, &plan.map)) as u64;
    if size == 0 || shape.page_positions == 0 {
        return plan;
    }
    let wanted = CHECKPOINTS_MIN.max(CHECKPOINTS_PER_SLOT * u32::from(shape.batch_size));
    let spare_bytes = limits.dram_bytes.saturating_sub(Budget::from_plan(&plan).dram_bytes(limits));
    let fitting = spare_bytes / (size * u64::from(shape.batches));
    let checkpoints = wanted.min(shape.kv_pages).min(u32::try_from(fitting).unwrap_or(u32::MAX));
    let mib = |count: u32| (u64::from(count) * size) as f64 / f64::from(1u32 << 20);
    let compiled = compile(&plan.config, &RunShape { checkpoints, ..shape }, &plan.map);
    let note = match &compiled {
        _ if checkpoints == 0 => format!(
            "prefix checkpoints: none, since {:.1} MiB do not fit; prompts are not reused",
            mib(1)
        ),
        Ok(_) => format!(
            "prefix checkpoints: {checkpoints} of {:.1} MiB each, {:.1} MiB in all",
            mib(1),
            mib(checkpoints) * f64::from(shape.batches)
        ),
        Err(error) => format!("{error}; prompts are not reused"),
    };
    if session.options.verbosity >= Verbosity::Normal {
        eprintln!("{note}");
    }
    compiled.unwrap_or(plan)
}
