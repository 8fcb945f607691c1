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
    let compiled = (checkpoints > 0)
        .then(|| compile(&plan.config, &RunShape { checkpoints, ..shape }, &plan.map).ok())
        .flatten();
    if session.options.verbosity >= Verbosity::Normal {
        let mib = |bytes: u64| bytes as f64 / f64::from(1u32 << 20);
        let all = u64::from(checkpoints) * u64::from(shape.batches) * size;
        match &compiled {
            Some(_) => eprintln!(
                "prefix checkpoints: {checkpoints} of {:.1} MiB each, {:.1} MiB in all",
                mib(size),
                mib(all)
            ),
            None if checkpoints == 0 => eprintln!(
                "prefix checkpoints: none, since {:.1} MiB do not fit; prompts are not reused",
                mib(size)
            ),
            None => eprintln!(
                "prefix checkpoints: none, since the device has caches or logits; prompts are not \
                 reused"
            ),
        }
    }
    compiled.unwrap_or(plan)
}
