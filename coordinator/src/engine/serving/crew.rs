//! Worker processes of a server, and the group of steps that they are in.

use std::time::{Duration, Instant};

use program::ir::{Instruction, ProgramId};
use program::plan::Plan;
use program::topology::{Role, WorkerId};
use schedule::Costs;
use schedule::hybrid::{Limits, StepCosts};
use shm::WaitError;
use workers::shared::protocol::{FromWorker, ToWorker};
use workers::shared::release::stages;
use workers::shared::serving::clear;
use workers::shared::table::{Deciding, StepTable};

use super::options::ServingOptions;
use crate::boundary::serving::OwnerCounts;
use crate::engine::launch::{LaunchError, LaunchOptions, Launched, LoadProgress, SLICE, launch};
use crate::engine::supervise::{Worker, WorkerFailure};

/// Measured costs of steps.
#[derive(Debug, Clone, Copy)]
pub(super) enum Measured {
    Steps(Costs),
    /// Costs for a plan whose sequences have owners.
    Owners(StepCosts),
}

/// Returns the parameters that decide iterations; `None` if sequences have no owners.
pub(super) fn deciding(options: &ServingOptions, measured: &Measured) -> Option<Deciding> {
    let Measured::Owners(costs) = *measured else { return None };
    let shape = options.plan.shape;
    let (slots, device_slots) = (shape.batch_size.into(), shape.device_slots.into());
    let limits = Limits::of_extents(shape.prefill_chunk, shape.max_context, slots, device_slots);
    Some(Deciding { policy: options.policy, limits, costs })
}

/// A group of steps that is running.
#[derive(Debug, Clone, Copy)]
pub(super) struct Group {
    /// Number of steps of all groups before it.
    steps_before: u32,
    /// Number of steps observed so far.
    steps: u32,
    /// Value of the `drained` timeline once all lanes have left the group.
    drained: u32,
}

/// Workers of a server, and the group that they are in.
pub(super) struct Crew {
    pub(super) launched: Launched,
    pub(super) table: StepTable,
    /// Index of the worker that samples.
    sampler: Option<usize>,
    /// Index of the worker that owns the caches if these consist of pages.
    keeper: Option<usize>,
    pub(super) group: Option<Group>,
    /// Iterations and migrations counted up to the last call of [`Crew::count`].
    counted: [u32; 5],
    looked: Instant,
}

impl Crew {
    pub(super) fn launch(
        plan: &Plan,
        options: &LaunchOptions,
        loading: &mut LoadProgress<'_>,
    ) -> Result<Crew, LaunchError> {
        let launched = launch(plan, options, loading, &mut |_| {})?;
        let table = StepTable::new(launched.control.extra(0, plan.table.words()), plan);
        let sampler = sampler(plan);
        let is_sampler = |worker: &Worker| Some(worker.id) == sampler;
        let sampler = launched.supervisor.workers.iter().position(is_sampler);
        let keeper = plan.topology.workers_of(Role::Cpu).next();
        let is_keeper = |worker: &Worker| Some(worker.id) == keeper;
        let keeper = launched.supervisor.workers.iter().position(is_keeper);
        let (counted, looked) = ([0; 5], Instant::now());
        Ok(Crew { launched, table, sampler, keeper, group: None, counted, looked })
    }

    /// Empties the step table, in which no sequence may be running.
    pub(super) fn clear(&self, options: &ServingOptions, measured: &Measured) {
        let costs = match measured {
            Measured::Steps(costs) => costs,
            Measured::Owners(_) => &Costs::NONE,
        };
        let slots =
            u32::from(options.plan.shape.batches) * u32::from(options.plan.shape.batch_size);
        clear(&self.table, &options.plan, options.step.aim_us(slots, costs), costs);
        deciding(options, measured).iter().for_each(|deciding| self.table.set_deciding(deciding));
    }

    /// Releases a group with the listed work.
    pub(super) fn release(&mut self) {
        let control = &self.launched.control;
        self.group = Some(Group {
            steps_before: control.steps().value(),
            steps: 0,
            drained: control.drained().value().wrapping_add(1),
        });
        control.release(&stages(&self.table), u32::MAX - 1);
    }

    /// Waits at most [`SLICE`] for the group's next step or its end. Returns the number of new
    /// steps.
    pub(super) fn follow(&mut self, plan: &Plan) -> Result<u32, WorkerFailure> {
        let Some(group) = &mut self.group else { return Ok(0) };
        let control = self.launched.control.clone();
        let has_all = control.last_step().is_some_and(|last| group.steps > last);
        let waited = match has_all {
            true => control.drained().wait_at_least(group.drained, control.poison(), SLICE),
            false => {
                let target = group.steps_before.wrapping_add(group.steps + 1);
                control.steps().wait_at_least(target, control.poison(), SLICE)
            }
        };
        if let Err(WaitError::Poisoned(_)) = waited {
            return Err(self.launched.supervisor.cause(plan));
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
    pub(super) fn say(&mut self, plan: &Plan, messages: &[ToWorker]) -> Result<(), WorkerFailure> {
        for message in messages {
            let is_of_pages = matches!(
                message,
                ToWorker::Store { .. }
                    | ToWorker::Fetch { .. }
                    | ToWorker::GiveUp { .. }
                    | ToWorker::CopyPage { .. }
            );
            let Some(to) = (if is_of_pages { self.keeper } else { self.sampler }) else { continue };
            let bytes = postcard::to_stdvec(message).expect("a message is written to memory");
            let worker = &self.launched.supervisor.workers[to];
            if worker.channel.send_any(&bytes).is_err() {
                return Err(self.launched.supervisor.cause(plan));
            }
        }
        Ok(())
    }

    /// Returns the messages of these workers, waiting at most `wait` for the first message of each.
    pub(super) fn hear(&mut self, wait: Duration) -> Vec<FromWorker> {
        let mut heard = Vec::new();
        let keeper = self.keeper.filter(|keeper| Some(*keeper) != self.sampler);
        for from in self.sampler.into_iter().chain(keeper) {
            let worker = &mut self.launched.supervisor.workers[from];
            let mut wait = wait;
            while let Some((message, _)) = worker.receive(std::mem::take(&mut wait)) {
                heard.push(message);
            }
        }
        heard
    }

    /// Adds the iterations and migrations since the last call.
    pub(super) fn count(&mut self, owners: &mut OwnerCounts) {
        if !self.table.has_owners() {
            return;
        }
        let now = self.table.counts();
        let before = std::mem::replace(&mut self.counted, now);
        let more = |program: ProgramId| {
            u64::from(now[program.index()].wrapping_sub(before[program.index()]))
        };
        owners.gpu += more(ProgramId::STEP);
        owners.pipelined += more(ProgramId::PIPELINED);
        owners.lagging += more(ProgramId::ASYNC);
        owners.to_host += more(ProgramId::MOVE_OUT);
        owners.to_device += more(ProgramId::MOVE_IN);
    }

    /// Returns the number of heap allocations of all workers since they were ready.
    pub(super) fn allocations(&self) -> u64 {
        let of =
            |worker: &Worker| self.launched.control.worker(worker.id.index()).allocations_seen();
        self.launched.supervisor.workers.iter().map(of).sum()
    }

    /// Checks the workers, at most once per [`SLICE`].
    pub(super) fn look(&mut self, plan: &Plan) -> Result<(), WorkerFailure> {
        if self.looked.elapsed() < SLICE {
            return Ok(());
        }
        self.looked = Instant::now();
        self.launched.supervisor.check(plan)
    }
}

/// Returns the worker whose lane samples.
fn sampler(plan: &Plan) -> Option<WorkerId> {
    let mut lists = plan.programs.iter().flat_map(|program| &program.lanes);
    let list = lists.find(|list| list.instructions.iter().any(Instruction::is_sample))?;
    plan.topology.worker_ids().find(|id| plan.topology.lanes_of(*id).contains(&list.lane))
}
