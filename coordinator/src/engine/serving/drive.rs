//! Main loop of a server: the thread that drives its workers.

use std::sync::mpsc::{Receiver, RecvTimeoutError, TryRecvError};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::{Duration, Instant};

use workers::shared::protocol::FromWorker;
use workers::shared::release::list_first;
use workers::shared::table::{Deciding, StepTable};

use super::crew::{Crew, Measured, deciding};
use super::desk::Desk;
use super::measured_costs::measure;
use super::measured_owners::measure_owners;
use super::options::ServingOptions;
use super::restarts::Restarts;
use super::shelf::Shelf;
use crate::boundary::serving::{Listener, State, Status, Submission, SubmissionId};
use crate::engine::descriptors::Reserve;
use crate::engine::device_use::starts_carefully;
use crate::engine::launch::{LaunchError, SLICE};
use crate::engine::supervise::WorkerFailure;

/// Maximum time to wait for a worker's message if there is nothing else to do.
const FORM_SLICE: Duration = Duration::from_millis(20);
/// Maximum time to wait for a message about a copy after which a sequence can be offered, so that
/// the next step includes it.
const COPY_SLICE: Duration = Duration::from_millis(5);
/// Maximum time that shutdown waits for prompts to be stored.
const STORE_REST_MAX: Duration = Duration::from_secs(30);

/// Commands from the server's threads to this one.
pub(super) enum Command {
    Submit {
        id: SubmissionId,
        submission: Box<Submission>,
        listener: Box<dyn Listener>,
    },
    Cancel(SubmissionId),
    /// No more submissions arrive; the accepted ones are answered.
    Drain,
    /// The engine was dropped.
    End,
}

/// Main loop of a server. See the module header.
pub(super) struct Drive {
    options: ServingOptions,
    commands: Receiver<Command>,
    status: Arc<Mutex<Status>>,
    /// Current status, published in `status` by `Drive::show`.
    own: Status,
    costs: Measured,
    desk: Desk,
    crew: Option<Crew>,
    restarts: Restarts,
    /// Descriptors reserved for a launch, even if connections have taken all others.
    reserve: Reserve,
}

/// Continuation of the thread.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Goes {
    On,
    /// Nothing is left to do.
    Ends,
}

impl Drive {
    /// Starts the workers.
    ///
    /// # Errors
    /// The failure that kept a worker from becoming ready.
    pub(super) fn start(
        mut options: ServingOptions,
        commands: Receiver<Command>,
        status: Arc<Mutex<Status>>,
    ) -> Result<Drive, LaunchError> {
        let prompts = options.launch.prompts.as_ref();
        let shelf = prompts.map(|at| Shelf::open(at, options.plan.shape.page_positions));
        let desk = Desk::new(&options.plan, shelf.transpose()?);
        let cuda = options.launch.cuda;
        let (crew, costs) = match launch_measured(&mut options) {
            Err(LaunchError::Worker(failure)) if starts_carefully(cuda, &failure) => {
                launch_measured(&mut options)?
            }
            launched => launched?,
        };
        crew.clear(&options, &costs);
        let own = *status.lock().unwrap_or_else(PoisonError::into_inner);
        let mut drive = Drive {
            options,
            commands,
            status,
            own,
            costs,
            desk,
            crew: Some(crew),
            restarts: Restarts::default(),
            reserve: Reserve::take(),
        };
        drive.own.state = State::Ready;
        drive.show();
        Ok(drive)
    }

    /// Returns the parameters that decide iterations; `None` if sequences have no owners.
    pub(super) fn deciding(&self) -> Option<Deciding> {
        deciding(&self.options, &self.costs)
    }

    /// Serves until no more submissions can arrive or be computed.
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
        // This state is published last: a thread that waits for it may end the process, and no
        // worker must be left then.
        self.own.state = State::Ended;
        self.show();
    }

    /// Stores the computed parts of prompts. Bounded by [`STORE_REST_MAX`], since shutdown waits
    /// for it.
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

    /// Handles messages from workers.
    fn take(&mut self, heard: Vec<FromWorker>) {
        let Some(crew) = &self.crew else { return };
        for message in heard {
            let told = self.desk.hear(&crew.table, &self.options.plan, message, &mut self.own);
            told.iter().for_each(|sentence| (self.options.tell)(sentence));
        }
    }

    fn show(&self) {
        show(&self.status, &self.own);
    }

    fn turn(&mut self) -> Goes {
        let is_idle = self.desk.is_empty() && self.own.state != State::Draining;
        let wait = match (&self.crew, is_idle) {
            (None, _) => self.restarts.pause(Instant::now()).min(SLICE),
            (Some(_), true) => SLICE,
            (Some(_), false) => Duration::ZERO,
        };
        let table = self.crew.as_ref().map(|crew| &crew.table);
        if take_commands(&self.commands, (&mut self.desk, table), &mut self.own, wait) == Goes::Ends
        {
            return Goes::Ends;
        }
        if self.own.state == State::Draining && self.desk.is_empty() {
            return Goes::Ends;
        }
        if self.crew.is_none() {
            let is_due = self.restarts.pause(Instant::now()).is_zero();
            return if is_due { self.start_again() } else { Goes::On };
        }
        match self.step() {
            Ok(()) => Goes::On,
            Err(failure) => self.lose(&failure),
        }
    }

    /// Offers sequences, exchanges messages with the workers, and follows a step if there is
    /// anything to compute.
    fn step(&mut self) -> Result<(), WorkerFailure> {
        let Some(crew) = &mut self.crew else { return Ok(()) };
        let plan = &self.options.plan;
        self.desk.offer(&crew.table, plan);
        self.desk.look(&crew.table).iter().for_each(|sentence| (self.options.tell)(sentence));
        self.desk.store();
        crew.say(plan, &self.desk.messages())?;
        let is_waited_for = self.desk.waits_for_forms() || self.desk.waits_for_pages();
        if is_waited_for || self.desk.is_storing() {
            let wait = match (crew.group.is_none() && is_waited_for, self.desk.waits_for_copies()) {
                (true, _) => FORM_SLICE,
                (false, true) => COPY_SLICE,
                (false, false) => Duration::ZERO,
            };
            let heard = crew.hear(wait);
            self.take(heard);
        }
        let Some(crew) = &mut self.crew else { return Ok(()) };
        let plan = &self.options.plan;
        if crew.group.is_none() && list_first(&crew.table) {
            crew.release();
        }
        let steps = crew.follow(plan)?;
        if steps > 0 {
            self.restarts.is_well();
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

    /// Gives up all workers after one of them was lost.
    fn lose(&mut self, failure: &WorkerFailure) -> Goes {
        let reason = failure.to_string();
        if let Some(crew) = self.crew.take() {
            let table = crew.table.clone();
            // No process writes to the table any more: the tokens sampled so far are reported,
            // once.
            drop(crew);
            self.desk.observe(&table, &self.options.plan, &mut self.own);
            self.desk.unseat(&table, &self.options.plan, &reason);
        }
        // If lanes stalled, the workers are started again in the most careful way.
        starts_carefully(self.options.launch.cuda, failure);
        self.own.restarts += 1;
        self.go_on_without(&reason)
    }

    /// Schedules another start of the workers after a pause, unless they were lost too often.
    fn go_on_without(&mut self, reason: &str) -> Goes {
        if self.own.state == State::Ready {
            // A server that drains keeps reporting that state.
            self.own.state = State::Loading;
        }
        let Some(pause) = self.restarts.lose(Instant::now()) else {
            return self.give_up(reason);
        };
        let when = match pause.is_zero() {
            true => String::new(),
            false => format!(" in {:.1} s", pause.as_secs_f64()),
        };
        (self.options.tell)(&format!("{reason}; the workers are started again{when}"));
        Goes::On
    }

    fn give_up(&mut self, reason: &str) -> Goes {
        (self.options.tell)(&format!("{reason}; the server ends"));
        self.desk.fail_all(&format!("The model's workers cannot be kept running: {reason}."));
        Goes::Ends
    }

    /// Starts workers, and meanwhile handles commands, which may end the server.
    fn start_again(&mut self) -> Goes {
        self.show();
        self.reserve.release();
        let Drive { options, commands, desk, own, status, .. } = self;
        let launched = Crew::launch(&options.plan, &options.launch, &mut |_, _| {
            let goes = take_commands(commands, (desk, None), own, Duration::ZERO);
            show(status, own);
            goes == Goes::On && !(own.state == State::Draining && desk.is_empty())
        });
        self.reserve = Reserve::take();
        match launched {
            Ok(crew) => {
                if self.own.state == State::Loading {
                    self.own.state = State::Ready;
                }
                crew.clear(&self.options, &self.costs);
                self.crew = Some(crew);
                Goes::On
            }
            // A command interrupted the launch.
            Err(LaunchError::Interrupted) => Goes::Ends,
            Err(error) => self.go_on_without(&error.to_string()),
        }
    }

    /// Ends a server whose thread has panicked: every sequence gets an answer, and no worker is
    /// left running.
    pub(super) fn abandon(&mut self) {
        self.own.state = State::Draining;
        self.show();
        self.crew = None;
        self.desk.fail_all("The server ends because of an internal error.");
    }

    /// Publishes that the server has ended: nothing is left that could answer.
    pub(super) fn has_ended(status: &Mutex<Status>) {
        status.lock().unwrap_or_else(PoisonError::into_inner).state = State::Ended;
    }
}

/// Starts the workers and measures a few steps, unless their costs were specified.
fn launch_measured(options: &mut ServingOptions) -> Result<(Crew, Measured), LaunchError> {
    let plan = &options.plan;
    let mut crew = Crew::launch(plan, &options.launch, &mut *options.loading)?;
    let table = &crew.table;
    let costs = match plan.shape.has_owners() {
        true => Measured::Owners(match options.costs {
            Some(costs) => costs,
            None => measure_owners(plan, &mut crew.launched, table)?,
        }),
        false => Measured::Steps(measure(plan, &mut crew.launched, table)?),
    };
    Ok((crew, costs))
}

/// Handles the commands that have arrived, waiting at most `wait` for the first.
fn take_commands(
    commands: &Receiver<Command>,
    (desk, table): (&mut Desk, Option<&StepTable>),
    own: &mut Status,
    wait: Duration,
) -> Goes {
    let mut next = match wait.is_zero() {
        false => commands.recv_timeout(wait),
        true => commands.try_recv().map_err(|error| match error {
            TryRecvError::Empty => RecvTimeoutError::Timeout,
            TryRecvError::Disconnected => RecvTimeoutError::Disconnected,
        }),
    };
    loop {
        match next {
            Ok(Command::Submit { id, submission, listener }) => {
                desk.submit(id, *submission, listener);
            }
            Ok(Command::Cancel(id)) => desk.cancel(table, id),
            Ok(Command::Drain) => own.state = State::Draining,
            Ok(Command::End) | Err(RecvTimeoutError::Disconnected) => return Goes::Ends,
            Err(RecvTimeoutError::Timeout) => return Goes::On,
        }
        next = commands.try_recv().map_err(|_| RecvTimeoutError::Timeout);
    }
}

/// Publishes the status.
fn show(status: &Mutex<Status>, own: &Status) {
    *status.lock().unwrap_or_else(PoisonError::into_inner) = *own;
}
