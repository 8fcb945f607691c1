//! Timed lanes: instructions that last for a specified duration and move no data, so that the real
//! processes, programs and timelines run at the speed of hardware that is not present.
//!
//! An instruction ends at a time on the clock, not after a sleep: an instruction that follows
//! another one starts when that one was due, so the overshoot of sleeps does not accumulate. After
//! a wait that blocked, an instruction starts when the lane woke up, so every measurement includes
//! the cost of the handover.

mod iteration_costs;

use std::num::NonZeroU64;
use std::sync::Arc;
use std::time::Duration;

use model::ops::Op;
use program::ir::{Instruction, ProgramId};
use program::plan::Plan;
use program::topology::LaneId;
use rustix::thread::set_current_timer_slack;
use shm::{Control, now_ns};

use crate::error::LaneError;
use crate::execute::sample;
use crate::lane_executor::{LaneExecutor, Task, WorkAmount};
use crate::work_items::row_counts;
use protocol::iteration_planner::IterationPlanner;
use protocol::messages::TimedDurations;
use protocol::table::StepTable;

/// Time before the end of an instruction at which sleeping ends and spinning begins. Timers of a
/// virtual machine fire 30 to 60 us late; spinning longer would take the core from a lane that is
/// due.
const SPIN: Duration = Duration::from_micros(60);

/// Executor of a timed lane.
#[derive(Debug)]
pub struct TimedLane {
    durations_ns: Vec<u64>,
    slow_motion: u32,
    plan: Arc<Plan>,
    table: StepTable,
    /// Scheduling state of a run whose sequences have owners.
    planner: IterationPlanner,
    /// Time at which the previous work was due; 0 if the next instruction starts as soon as it is
    /// reached.
    due_ns: u64,
}

impl TimedLane {
    /// Returns the executor of `lane`.
    pub fn new(
        durations: &TimedDurations,
        lane: LaneId,
        plan: &Arc<Plan>,
        control: &Control,
    ) -> TimedLane {
        TimedLane {
            durations_ns: durations.for_lane(lane).to_vec(),
            slow_motion: durations.slow_motion(),
            plan: Arc::clone(plan),
            table: StepTable::new(control.extra(0, plan.table.words()), plan),
            planner: IterationPlanner::new(
                usize::from(plan.shape.batch_size),
                usize::from(plan.shape.device_slots),
            ),
            due_ns: 0,
        }
    }
}

impl LaneExecutor for TimedLane {
    /// Sets the thread's timer slack to the minimum instead of the default of 50 us.
    fn begin(&mut self) -> Result<(), LaneError> {
        // On a system without the call timers fire later, which the report shows.
        let _ = set_current_timer_slack(NonZeroU64::new(1));
        Ok(())
    }

    /// Lets the next instruction start when it is reached.
    fn on_blocked(&mut self) {
        self.due_ns = 0;
    }

    /// Lets an instruction's duration pass. `Sample` assigns token 0 to every row.
    fn execute(&mut self, task: Task<'_>) -> Result<Option<WorkAmount>, LaneError> {
        let Task { program, index, instruction: work, .. } = task;
        let duration_ns = match program {
            _ if self.table.has_owners() => {
                let at_speed = iteration_costs::duration_ns(&self.plan, &self.table, program, work);
                at_speed * u64::from(self.slow_motion)
            }
            ProgramId::DECODE => self.durations_ns.get(index).copied().unwrap_or(0),
            _ => 0,
        };
        if duration_ns > 0 {
            let start_ns = if self.due_ns == 0 { now_ns() } else { self.due_ns };
            self.due_ns = start_ns + duration_ns;
            sleep_until(self.due_ns);
        }
        let Some(at) = work.at() else { return Ok(Some(WorkAmount::default())) };
        // Counted first, since sampling may replace the lists.
        let (_, rows) = row_counts(&self.table, program, at);
        if let Instruction::Compute(compute) = work
            && compute.op == Op::Sample
        {
            match self.table.has_owners() {
                true => sample::record_iteration(&self.table, program, at, &mut self.planner),
                false => sample::record(&self.table, program, at, &[], |_, _| 0),
            }
        }
        Ok(Some(WorkAmount { bytes: 0, rows: rows as u32 }))
    }
}

/// Sleeps until [`SPIN`] before the time, then spins.
fn sleep_until(due_ns: u64) {
    loop {
        let remaining = Duration::from_nanos(due_ns.saturating_sub(now_ns()));
        match remaining.checked_sub(SPIN) {
            Some(sleep) if !sleep.is_zero() => std::thread::sleep(sleep),
            _ => break,
        }
    }
    while now_ns() < due_ns {
        std::hint::spin_loop();
    }
}
