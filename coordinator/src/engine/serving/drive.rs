//! The thread that follows the workers of a server.

use std::sync::mpsc::{Receiver, RecvTimeoutError, TryRecvError};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::{Duration, Instant};

use program::ir::{Instruction, ProgramId};
use program::plan::Plan;
use program::topology::{Role, WorkerId};
use schedule::Costs;
use schedule::hybrid::{Limits, StepCosts};
use shm::WaitError;
use workers::shared::protocol::{FromWorker, ToWorker};
use workers::shared::release::{list_first, stages};
use workers::shared::serving::clear;
use workers::shared::table::{Deciding, StepTable};

use super::desk::Desk;
use super::measured_costs::measure;
use super::measured_owners::measure_owners;
use super::options::ServingOptions;
use super::shelf::Shelf;
use crate::boundary::serving::{Listener, OwnerCounts, State, Status, Submission, SubmissionId};
use crate::engine::launch::{LaunchError, LaunchOptions, Launched, LoadProgress, SLICE, launch};
use crate::engine::supervise::{Worker, WorkerFailure};

/// Workers that may be lost one behind the other without a step between them.
const LOSSES_MAX: u32 = 3;

/// How long a worker's word is waited for where nothing else is going on.
const FORM_SLICE: Duration = Duration::from_millis(20);
/// How long the end waits for prompts to be stored.
const STORE_REST_MAX: Duration = Duration::from_secs(30);

/// What the server's threads ask of this one.
pub(super) enum Command {
    Submit {
        id: SubmissionId,
        submission: Box<Submission>,
        listener: Box<dyn Listener>,
    },
    Cancel(SubmissionId),
    /// Nothing more comes; what was taken is answered.
    Drain,
    /// Whoever has the engine has left it.
    End,
}

/// What steps were found to take.
#[derive(Debug, Clone, Copy)]
enum Measured {
    Steps(Costs),
    /// Of a plan whose sequences have owners.
    Owners(StepCosts),
}

/// By what iterations are decided.
fn deciding(options: &ServingOptions, measured: &Measured) -> Option<Deciding> {
    let Measured::Owners(costs) = *measured else { return None };
    let shape = options.plan.shape;
    let (slots, device_slots) = (shape.batch_size.into(), shape.device_slots.into());
    let limits = Limits::of_extents(shape.prefill_chunk, shape.max_context, slots, device_slots);
    Some(Deciding { policy: options.policy, limits, costs })
}

/// A group of steps that goes on.
#[derive(Debug, Clone, Copy)]
struct Group {
    /// Steps of all groups before it.
    steps_before: u32,
    /// Steps seen.
    steps: u32,
    /// What `drained` counts when all lanes have left it.
    drained: u32,
}

/// Workers, and the group that they are in.
struct Crew {
    launched: Launched,
    table: StepTable,
    /// The worker that samples.
    sampler: Option<usize>,
    /// The one that keeps the caches, where prompts are stored.
    keeper: Option<usize>,
    group: Option<Group>,
    /// What was counted of iterations.
    counted: [u32; 5],
    looked: Instant,
}

/// See the module header.
pub(super) struct Drive {
    options: ServingOptions,
    commands: Receiver<Command>,
    status: Arc<Mutex<Status>>,
    /// What [`Drive::status`] shows others.
    own: Status,
    costs: Measured,
    desk: Desk,
    crew: Option<Crew>,
    /// Since the last step.
    losses: u32,
}

/// Whether the thread goes on.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Goes {
    On,
    /// There is nothing more to do.
    Ends,
}

impl Drive {
    /// Starts the workers.
    ///
    /// # Errors
    /// What kept a worker from getting ready.
    pub(super) fn start(
        mut options: ServingOptions,
        commands: Receiver<Command>,
        status: Arc<Mutex<Status>>,
    ) -> Result<Drive, LaunchError> {
        let loading = &mut *options.loading;
        let mut crew = Crew::launch(&options.plan, &options.launch, loading)?;
        let table = &crew.table;
        let costs = match options.plan.shape.has_owners() {
            true => Measured::Owners(match options.costs {
                Some(costs) => costs,
                None => measure_owners(&options.plan, &mut crew.launched, table)?,
            }),
            false => Measured::Steps(measure(&options.plan, &mut crew.launched, table)?),
        };
        crew.clear(&options, &costs);
        let own = *status.lock().unwrap_or_else(PoisonError::into_inner);
        let prompts = options.launch.prompts.as_ref();
        let shelf = prompts.map(|at| Shelf::open(at, options.plan.shape.page_positions));
        let (desk, losses) = (Desk::new(&options.plan, shelf.transpose()?), 0);
        let mut drive =
            Drive { options, commands, status, own, costs, desk, crew: Some(crew), losses };
        drive.own.state = State::Ready;
        drive.show();
        Ok(drive)
    }

    /// By what iterations are decided, where sequences have owners.
    pub(super) fn deciding(&self) -> Option<Deciding> {
        deciding(&self.options, &self.costs)
    }

    /// Serves until nothing more can come or be computed.
    pub(super) fn run(&mut self) {
        while self.turn() == Goes::On {
            self.show();
        }
        self.own.state = State::Draining;
        self.show();
        self.store_rest();
        self.desk.fail_all("The server has ended.");
        if let Some(crew) = &mut self.crew {
            let busy = crew.group.is_some();
            if !busy {
                crew.launched.control.release(&[], 0);
            }
            crew.launched.supervisor.leave(busy);
        }
        // Whoever waits for this may end the process, and no worker is left behind then.
        self.own.state = State::Ended;
        self.show();
    }

    /// Stores what prompts are computed so far, within a bound: who ends is waited for.
    fn store_rest(&mut self) {
        let until = Instant::now() + STORE_REST_MAX;
        while self.desk.is_storing() && Instant::now() < until {
            let Some(crew) = &mut self.crew else { return };
            self.desk.store_rest();
            let plan = &self.options.plan;
            let said = crew.say(plan, &self.desk.messages());
            if said.and_then(|()| crew.look(plan)).is_err() {
                return;
            }
            let heard = crew.hear(FORM_SLICE);
            self.take(heard);
        }
    }

    /// Takes what workers said.
    fn take(&mut self, heard: Vec<FromWorker>) {
        let Some(crew) = &self.crew else { return };
        for message in heard {
            let told = self.desk.hear(&crew.table, &self.options.plan, message, &mut self.own);
            told.iter().for_each(|sentence| (self.options.tell)(sentence));
        }
    }

    /// Shows others what is done.
    fn show(&self) {
        *self.status.lock().unwrap_or_else(PoisonError::into_inner) = self.own;
    }

    fn turn(&mut self) -> Goes {
        if self.take_commands() == Goes::Ends {
            return Goes::Ends;
        }
        if self.own.state == State::Draining && self.desk.is_empty() {
            return Goes::Ends;
        }
        if self.crew.is_none() && self.start_again() == Goes::Ends {
            return Goes::Ends;
        }
        match self.step() {
            Ok(()) => Goes::On,
            Err(failure) => self.lose(&failure),
        }
    }

    /// Takes what came; waits for it where there is nothing else to do.
    fn take_commands(&mut self) -> Goes {
        let is_idle = self.desk.is_empty() && self.own.state != State::Draining;
        let mut next = match is_idle {
            true => self.commands.recv_timeout(SLICE),
            false => self.commands.try_recv().map_err(|error| match error {
                TryRecvError::Empty => RecvTimeoutError::Timeout,
                TryRecvError::Disconnected => RecvTimeoutError::Disconnected,
            }),
        };
        loop {
            match next {
                Ok(Command::Submit { id, submission, listener }) => {
                    self.desk.submit(id, *submission, listener);
                }
                Ok(Command::Cancel(id)) => {
                    self.desk.cancel(self.crew.as_ref().map(|crew| &crew.table), id);
                }
                Ok(Command::Drain) => self.own.state = State::Draining,
                Ok(Command::End) | Err(RecvTimeoutError::Disconnected) => return Goes::Ends,
                Err(RecvTimeoutError::Timeout) => return Goes::On,
            }
            next = self.commands.try_recv().map_err(|_| RecvTimeoutError::Timeout);
        }
    }

    /// Follows a step, if there is anything to compute.
    fn step(&mut self) -> Result<(), WorkerFailure> {
        let Some(crew) = &mut self.crew else { return Ok(()) };
        let plan = &self.options.plan;
        self.desk.offer(&crew.table, plan);
        self.desk.store();
        crew.say(plan, &self.desk.messages())?;
        let is_waited_for = self.desk.waits_for_forms() || self.desk.waits_for_pages();
        if is_waited_for || self.desk.is_storing() {
            let is_idle = crew.group.is_none() && is_waited_for;
            let heard = crew.hear(if is_idle { FORM_SLICE } else { Duration::ZERO });
            self.take(heard);
        }
        let Some(crew) = &mut self.crew else { return Ok(()) };
        let plan = &self.options.plan;
        if crew.group.is_none() && list_first(&crew.table) {
            crew.release();
        }
        let steps = crew.follow(plan)?;
        if steps > 0 {
            self.losses = 0;
            self.own.steps += u64::from(steps);
        }
        self.desk.observe(&crew.table, plan, &mut self.own);
        if let Measured::Steps(costs) = &self.costs {
            let rows = plan.shape.prefill_chunk;
            self.own.prompts_going = self.desk.prompts_going(&crew.table, costs, rows);
        }
        crew.count(&mut self.own.owners);
        self.own.worker_allocations = crew.allocations();
        crew.look(plan)
    }

    /// Gives the workers up of which one is lost.
    fn lose(&mut self, failure: &WorkerFailure) -> Goes {
        let reason = failure.to_string();
        if let Some(crew) = &self.crew {
            // What was drawn before is told.
            self.desk.observe(&crew.table, &self.options.plan, &mut self.own);
        }
        self.crew = None;
        self.own.restarts += 1;
        self.losses += 1;
        self.desk.unseat(&self.options.plan, &reason);
        if self.losses >= LOSSES_MAX {
            return self.give_up(&reason);
        }
        (self.options.tell)(&format!("{reason}; the workers are started again"));
        Goes::On
    }

    fn give_up(&mut self, reason: &str) -> Goes {
        (self.options.tell)(&format!("{reason}; the server ends"));
        self.desk.fail_all(&format!("The model's workers cannot be kept running: {reason}."));
        Goes::Ends
    }

    fn start_again(&mut self) -> Goes {
        let before = self.own.state;
        if before == State::Ready {
            // Where nothing more is taken, that is what others see.
            self.own.state = State::Loading;
            self.show();
        }
        let ServingOptions { plan, launch, .. } = &self.options;
        let launched = Crew::launch(plan, launch, &mut |_, _| true);
        self.own.state = before;
        match launched {
            Ok(crew) => {
                crew.clear(&self.options, &self.costs);
                self.crew = Some(crew);
                Goes::On
            }
            Err(error) => {
                self.losses += 1;
                match self.losses >= LOSSES_MAX || matches!(error, LaunchError::Interrupted) {
                    true => self.give_up(&error.to_string()),
                    false => Goes::On,
                }
            }
        }
    }
}

impl Crew {
    fn launch(
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

    /// Empties the table, in which nothing may run.
    fn clear(&self, options: &ServingOptions, measured: &Measured) {
        let costs = match measured {
            Measured::Steps(costs) => costs,
            Measured::Owners(_) => &Costs::NONE,
        };
        let slots =
            u32::from(options.plan.shape.batches) * u32::from(options.plan.shape.batch_size);
        clear(&self.table, &options.plan, options.step.aim_us(slots, costs), costs);
        deciding(options, measured).iter().for_each(|deciding| self.table.set_deciding(deciding));
    }

    /// Lets the lanes run what is listed.
    fn release(&mut self) {
        let control = &self.launched.control;
        self.group = Some(Group {
            steps_before: control.steps().value(),
            steps: 0,
            drained: control.drained().value().wrapping_add(1),
        });
        control.release(&stages(&self.table), u32::MAX - 1);
    }

    /// Waits a little for the group's next step or its end; how many steps were done.
    fn follow(&mut self, plan: &Plan) -> Result<u32, WorkerFailure> {
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

    /// Sends messages, of forms to the worker that samples, of pages to the one that keeps caches.
    fn say(&mut self, plan: &Plan, messages: &[ToWorker]) -> Result<(), WorkerFailure> {
        for message in messages {
            let is_of_pages = matches!(message, ToWorker::Store { .. } | ToWorker::Fetch { .. });
            let Some(to) = (if is_of_pages { self.keeper } else { self.sampler }) else { continue };
            let bytes = postcard::to_stdvec(message).expect("a message is written to memory");
            let worker = &self.launched.supervisor.workers[to];
            if worker.channel.send_any(&bytes).is_err() {
                return Err(self.launched.supervisor.cause(plan));
            }
        }
        Ok(())
    }

    /// What they say, after waiting at most so long for each.
    fn hear(&mut self, wait: Duration) -> Vec<FromWorker> {
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

    /// Adds what was counted since the last time.
    fn count(&mut self, owners: &mut OwnerCounts) {
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

    /// Heap allocations of all workers since they were ready.
    fn allocations(&self) -> u64 {
        let of =
            |worker: &Worker| self.launched.control.worker(worker.id.index()).allocations_seen();
        self.launched.supervisor.workers.iter().map(of).sum()
    }

    /// Looks after the workers, if it is time to.
    fn look(&mut self, plan: &Plan) -> Result<(), WorkerFailure> {
        if self.looked.elapsed() < SLICE {
            return Ok(());
        }
        self.looked = Instant::now();
        self.launched.supervisor.check(plan)
    }
}

/// The worker whose lane samples.
fn sampler(plan: &Plan) -> Option<WorkerId> {
    let mut lists = plan.programs.iter().flat_map(|program| &program.lanes);
    let list = lists.find(|list| list.instructions.iter().any(Instruction::is_sample))?;
    plan.topology.worker_ids().find(|id| plan.topology.lanes_of(*id).contains(&list.lane))
}
