//! Worker processes of a server, and the group of steps that they are in.

use std::time::{Duration, Instant};

use engine_api::serving::HybridStepCounts;
use program::ir::ProgramId;
use program::plan::Plan;
use program::topology::Role;
use protocol::messages::{FromWorker, ToWorker};
use protocol::release::stages;
use protocol::serving::clear_table;
use protocol::table::{HybridPolicy, StepTable};
use scheduler::StepCostCurve;
use scheduler::hybrid::{IterationLimits, StepCosts};
use shm::WaitError;

use super::options::ServingOptions;
use crate::launch::{
    LaunchError, LaunchOptions, LaunchedWorkers, LoadProgress, POLL_INTERVAL, launch,
};
use crate::supervisor::{SupervisedWorker, Supervisor, WorkerFailure};
use crate::worker_roles::sampler;

/// Measured costs of steps.
#[derive(Debug, Clone, Copy)]
pub(super) enum MeasuredEngineCosts {
    Steps(StepCostCurve),
    /// Costs for a plan whose sequences have owners.
    Hybrid(StepCosts),
}

/// Returns the parameters that decide iterations; `None` if sequences have no owners.
pub(super) fn hybrid_policy(
    options: &ServingOptions,
    measured: &MeasuredEngineCosts,
) -> Option<HybridPolicy> {
    let MeasuredEngineCosts::Hybrid(costs) = *measured else { return None };
    let shape = options.plan.shape;
    let (slots, device_slots) = (shape.batch_size.into(), shape.device_slots.into());
    let limits =
        IterationLimits::from_extents(shape.prefill_chunk, shape.max_context, slots, device_slots);
    Some(HybridPolicy { policy: options.policy, limits, costs })
}

/// A group of steps that is running.
#[derive(Debug, Clone, Copy)]
pub(super) struct StepGroup {
    /// Number of steps of all groups before it.
    steps_before: u32,
    /// Number of steps observed so far.
    steps: u32,
    /// Value of the `drained` timeline once all lanes have left the group.
    drained: u32,
}

/// Workers of a server, and the group that they are in.
pub(super) struct WorkerGroup {
    pub(super) launched: LaunchedWorkers,
    pub(super) table: StepTable,
    /// Index of the worker that samples.
    sampler: Option<usize>,
    /// Index of the worker that owns the caches if these consist of pages.
    cache_worker: Option<usize>,
    pub(super) group: Option<StepGroup>,
    /// Iterations and migrations counted up to the last call of [`WorkerGroup::update_counts`].
    last_counts: [u32; 5],
    checked_at: Instant,
}

impl WorkerGroup {
    pub(super) fn launch(
        plan: &Plan,
        options: &LaunchOptions,
        on_load_progress: &mut LoadProgress<'_>,
        sample_memory: &mut dyn FnMut(&Supervisor),
    ) -> Result<WorkerGroup, LaunchError> {
        let launched = launch(plan, options, on_load_progress, sample_memory)?;
        let table = StepTable::new(launched.control.extra(0, plan.table.words()), plan);
        let sampler = sampler(plan);
        let is_sampler = |worker: &SupervisedWorker| Some(worker.id) == sampler;
        let sampler = launched.supervisor.workers.iter().position(is_sampler);
        let cache_worker = plan.topology.workers_of(Role::Cpu).next();
        let is_cache_worker = |worker: &SupervisedWorker| Some(worker.id) == cache_worker;
        let cache_worker = launched.supervisor.workers.iter().position(is_cache_worker);
        let (last_counts, checked_at) = ([0; 5], Instant::now());
        Ok(WorkerGroup {
            launched,
            table,
            sampler,
            cache_worker,
            group: None,
            last_counts,
            checked_at,
        })
    }

    /// Empties the step table, in which no sequence may be running.
    pub(super) fn clear(&self, options: &ServingOptions, measured: &MeasuredEngineCosts) {
        let costs = match measured {
            MeasuredEngineCosts::Steps(costs) => costs,
            MeasuredEngineCosts::Hybrid(_) => &StepCostCurve::NONE,
        };
        let slots =
            u32::from(options.plan.shape.batches) * u32::from(options.plan.shape.batch_size);
        clear_table(&self.table, &options.plan, options.step_time.target_us(slots, costs), costs);
        self.table.set_max_drafts(options.max_drafts());
        self.table.set_drafts_all(options.drafts_all);
        hybrid_policy(options, measured)
            .iter()
            .for_each(|deciding| self.table.set_hybrid_policy(deciding));
    }

    /// Releases a group with the listed work.
    pub(super) fn release(&mut self) {
        let control = &self.launched.control;
        self.group = Some(StepGroup {
            steps_before: control.steps().value(),
            steps: 0,
            drained: control.drained().value().wrapping_add(1),
        });
        control.release(&stages(&self.table), u32::MAX - 1);
    }

    /// Waits at most [`POLL_INTERVAL`] for the group's next step or its end. Returns the number of
    /// new steps.
    pub(super) fn wait_for_steps(&mut self, plan: &Plan) -> Result<u32, WorkerFailure> {
        let Some(group) = &mut self.group else { return Ok(0) };
        let control = self.launched.control.clone();
        let has_all = control.last_step().is_some_and(|last| group.steps > last);
        let waited = match has_all {
            true => control.drained().wait_until(group.drained, control.poison(), POLL_INTERVAL),
            false => {
                let target = group.steps_before.wrapping_add(group.steps + 1);
                control.steps().wait_until(target, control.poison(), POLL_INTERVAL)
            }
        };
        if let Err(WaitError::Poisoned(_)) = waited {
            return Err(self.launched.supervisor.wait_for_cause(plan));
        }
        let steps = control.steps().value().wrapping_sub(group.steps_before);
        let new = steps - std::mem::replace(&mut group.steps, steps);
        if has_all && waited.is_ok() {
            self.group = None;
        }
        Ok(new)
    }

    /// Sends messages: those about grammars to the worker that samples, those about pages to the
    /// worker that owns the caches.
    pub(super) fn send(&mut self, plan: &Plan, messages: &[ToWorker]) -> Result<(), WorkerFailure> {
        for message in messages {
            let is_about_pages = matches!(
                message,
                ToWorker::StorePage { .. }
                    | ToWorker::FetchPages { .. }
                    | ToWorker::CancelFetch { .. }
                    | ToWorker::CopyPage { .. }
                    | ToWorker::RestoreCheckpoint { .. }
            );
            let Some(to) = (if is_about_pages { self.cache_worker } else { self.sampler }) else {
                continue;
            };
            let bytes = postcard::to_stdvec(message).expect("a message is written to memory");
            let worker = &self.launched.supervisor.workers[to];
            if worker.channel.send_any(&bytes).is_err() {
                return Err(self.launched.supervisor.wait_for_cause(plan));
            }
        }
        Ok(())
    }

    /// Returns the messages of these workers, waiting at most `wait` for the first message of each.
    pub(super) fn receive(&mut self, wait: Duration) -> Vec<FromWorker> {
        let mut messages = Vec::new();
        let cache_worker =
            self.cache_worker.filter(|cache_worker| Some(*cache_worker) != self.sampler);
        for from in self.sampler.into_iter().chain(cache_worker) {
            let worker = &mut self.launched.supervisor.workers[from];
            let mut wait = wait;
            while let Some((message, _)) = worker.receive(std::mem::take(&mut wait)) {
                messages.push(message);
            }
        }
        messages
    }

    /// Lets the workers exit.
    pub(super) fn shut_down(&mut self) {
        self.launched.shut_down(self.group.is_some());
    }

    /// Adds the iterations and migrations since the last call.
    pub(super) fn update_counts(&mut self, counts: &mut HybridStepCounts) {
        if !self.table.has_owners() {
            return;
        }
        let now = self.table.program_counts();
        let before = std::mem::replace(&mut self.last_counts, now);
        let more = |program: ProgramId| {
            u64::from(now[program.index()].wrapping_sub(before[program.index()]))
        };
        counts.gpu += more(ProgramId::STEP);
        counts.pipelined += more(ProgramId::PIPELINED);
        counts.deferred += more(ProgramId::ASYNC);
        counts.moves_to_host += more(ProgramId::MOVE_OUT);
        counts.moves_to_device += more(ProgramId::MOVE_IN);
    }

    /// Returns the number of heap allocations of all workers since they were ready.
    pub(super) fn allocations(&self) -> u64 {
        let allocations = |worker: &SupervisedWorker| {
            self.launched.control.worker(worker.id.index()).allocations_seen()
        };
        self.launched.supervisor.workers.iter().map(allocations).sum()
    }

    /// Checks the workers, at most once per [`POLL_INTERVAL`].
    pub(super) fn check_health(&mut self, plan: &Plan) -> Result<(), WorkerFailure> {
        if self.checked_at.elapsed() < POLL_INTERVAL {
            return Ok(());
        }
        self.checked_at = Instant::now();
        self.launched.supervisor.check(plan)
    }
}
