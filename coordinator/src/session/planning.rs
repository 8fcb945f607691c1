//! From arguments and demand to a plan that fits memory and is proved.

use anyhow::Context;
use planner::budget::{Limits, Request};
use planner::policy::{Policy, Stays};
use planner::split::parse_split;
use program::plan::Plan;

use super::Usage;
use super::forms::forms;
use crate::cli::high::{Placement, Run, Telling};
use crate::cli::values::Batches;
use crate::engine::memory;
use crate::job::run::Demand;
use crate::opened::Opened;
use crate::report::explain;

/// Largest batch that is chosen when `--batches` is left out.
pub(super) const DEFAULT_BATCH_MAX: u16 = 32;

/// Plans, and proves the plan before any worker exists.
///
/// # Errors
/// A split that the model lacks, or numbers that do not fit.
pub(super) fn plan(run: &Run, opened: &Opened, demand: Demand) -> anyhow::Result<Plan> {
    let config = &opened.config;
    let policy = match &run.placement {
        Placement::CpuOnly => Policy::CpuOnly,
        Placement::GpuOnly => Policy::GpuOnly,
        Placement::TwoSplit { split, chunking } => Policy::TwoSplit {
            split: parse_split(split, config, *chunking).map_err(|e| Usage(e.to_string()))?,
            chunking: *chunking,
        },
    };
    let limits = Limits {
        dram_bytes: run.dram_bytes.unwrap_or_else(memory::available_bytes),
        vram_bytes: run.vram_bytes,
        vram_is_dram: true,
    };
    let forms = forms(run, opened);
    let request = Request {
        config,
        policy: &policy,
        stays: Stays::NONE,
        forms: &forms,
        fuse_attention: run.fuse_attention,
        dtype: run.dtype,
        max_prompt: demand.max_prompt as u32,
        max_context: demand.max_context as u32,
        max_new: demand.max_new,
        limits: &limits,
    };
    let batches = match run.batches {
        Some(batches) => batches,
        None => {
            let most = demand.sequences.clamp(1, usize::from(DEFAULT_BATCH_MAX)) as u16;
            Batches { count: 1, size: request.largest_batch(1, most)?.unwrap_or(1) }
        }
    };
    let plan = request.plan(batches.count, batches.size)?;
    program::validate::validate(&plan)
        .context("the compiled program is not safe to run; this is a defect, please report it")?;
    if run.telling >= Telling::Verbose {
        eprint!("{}", explain::plan(&plan));
    }
    Ok(plan)
}

/// Threads of the cpu worker and of the emulated device; together no more than the cores unless
/// asked for, since threads that share a core only disturb each other.
pub(super) fn threads(run: &Run, uses_gpu: bool) -> (u16, u16) {
    let cores = std::thread::available_parallelism().map_or(1, |cores| cores.get()) as u16;
    let gpu = if uses_gpu { run.emulated_threads.unwrap_or_else(|| (cores / 2).max(1)) } else { 0 };
    (run.cpu_threads.unwrap_or_else(|| cores.saturating_sub(gpu).max(1)), gpu)
}
