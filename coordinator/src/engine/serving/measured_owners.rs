//! Durations of iterations whose sequences are owned by the device or the host, measured with a few
//! of them before the first sequence arrives.

use std::time::{Duration, Instant};

use program::ir::ProgramId;
use program::plan::Plan;
use program::step_table::{Field, Home, List};
use program::topology::MemoryId;
use schedule::hybrid::StepCosts;
use schedule::{Costs, POINTS};
use shm::{Stage, WaitError};
use workers::shared::group::{Placed, Request, place};
use workers::shared::serving::clear;
use workers::shared::table::{Item, StepTable};

use crate::engine::launch::{Launched, SLICE};
use crate::engine::supervise::WorkerFailure;

/// Numbers of rows of the prompts that are measured, in addition to the maximum.
const ROWS: [u32; POINTS - 1] = [1, 4, 16, 48, 128, 256, 512];
/// Duration of a step after which longer ones need not be measured.
const LONG: Duration = Duration::from_millis(500);
/// Maximum number of positions before rows of decode.
const PAST: u32 = 1024;
/// Number of measurements, of which the shortest counts.
const TIMES: u32 = 2;

/// Rows that are computed for a slot.
#[derive(Debug, Clone, Copy)]
struct Rows {
    past: u32,
    rows: u32,
    home: Home,
    stream: u16,
}

impl Rows {
    /// Returns a row of a sequence owned by the device, after `past` positions.
    const fn of_device(past: u32) -> Rows {
        Rows { past, rows: 1, home: Home::Device, stream: 0 }
    }

    /// Returns a row of a sequence owned by the host, after `past` positions.
    const fn of_host(past: u32) -> Rows {
        Rows { past, rows: 1, home: Home::Host, stream: 1 }
    }
}

struct Measuring<'a> {
    plan: &'a Plan,
    launched: &'a mut Launched,
    table: &'a StepTable,
}

/// Runs iterations with increasing numbers of rows, with more and fewer positions before them, for
/// either owner; migrations of caches; and, if rows may be deferred, their transfers in every
/// layer.
///
/// # Errors
/// A worker that was lost.
pub(super) fn measure_owners(
    plan: &Plan,
    launched: &mut Launched,
    table: &StepTable,
) -> Result<StepCosts, WorkerFailure> {
    let mut measuring = Measuring { plan, launched, table };
    let shape = plan.shape;
    let (step, pipelined) = (ProgramId::STEP, ProgramId::PIPELINED);
    // The very first iteration touches memory that was never touched before.
    measuring.time(pipelined, &[Rows::of_host(1)])?;
    let device = measuring.points()?;
    let past = PAST.min(shape.max_context - 1);
    let of_device = |past| vec![Rows::of_device(past); usize::from(shape.device_slots)];
    let of_host = |past| vec![Rows::of_host(past); usize::from(shape.batch_size)];
    let [device_far, device_near] = [past, 1].map(|past| measuring.time(step, &of_device(past)));
    let device_position_ps = per(device_far?, device_near?, shape.device_slots, past);
    let [host_far, host_near] = [past, 1].map(|past| measuring.time(pipelined, &of_host(past)));
    let (host_far, host_near) = (host_far?, host_near?);
    let host_alone = measuring.time(pipelined, &[Rows::of_host(1)])?;
    let linear = |rows: u32| Duration::from_nanos(device.step_ns(rows, 0));
    let others = u32::from(shape.batch_size).saturating_sub(1).max(1);
    let attended = host_near.saturating_sub(linear(others + 1));
    let launch = host_alone.saturating_sub(linear(1));
    let moved = |measuring: &mut Measuring<'_>, program| -> Result<u32, WorkerFailure> {
        let [far, near] = [past, 1].map(|past| measuring.time(program, &[Rows::of_host(past)]));
        Ok(per(far?, near?, 1, past))
    };
    let lagging = match table.can_lag() {
        true => measuring.time(ProgramId::ASYNC, &[Rows::of_device(1)])?,
        false => Duration::ZERO,
    };
    let alone = measuring.time(step, &[Rows::of_device(1)])?;
    let position_out_ps = moved(&mut measuring, ProgramId::MOVE_OUT)?;
    let position_in_ps = moved(&mut measuring, ProgramId::MOVE_IN)?;
    let costs = StepCosts {
        layers: plan.config.num_layers as u32,
        device,
        weights_us: 0,
        device_position_ps,
        host_position_ps: per(host_far, host_near, shape.batch_size, past),
        host_row_ps: ps(attended.saturating_sub(launch) / others),
        launch_us: u32::try_from(launch.as_micros()).unwrap_or(u32::MAX),
        lagging_us: u32::try_from(lagging.saturating_sub(alone).as_micros()).unwrap_or(u32::MAX),
        position_out_ps,
        position_in_ps,
    };
    Ok(if streams(plan) { apart(costs) } else { costs })
}

impl Measuring<'_> {
    /// Measures prompts with increasing numbers of rows on the device. Returns the cost of the rows
    /// alone, and the cost of a row per position before it, derived from the time that twice as
    /// many rows take in excess of twice the time.
    fn points(&mut self) -> Result<Costs, WorkerFailure> {
        let shape = self.plan.shape;
        let most = shape.prefill_chunk.saturating_sub(shape.batch_size.into());
        let most = most.min(shape.max_context - 1).max(1);
        let mut costs = Costs::NONE;
        let rows = ROWS.into_iter().filter(|rows| *rows < most).chain([most]);
        for (point, rows) in costs.points.iter_mut().zip(rows) {
            let prompt = Rows { past: 0, rows, home: Home::Device, stream: 0 };
            let time = self.time(ProgramId::STEP, &[prompt])?;
            *point = (rows, u32::try_from(time.as_micros()).unwrap_or(u32::MAX).max(1));
            if time > LONG {
                break;
            }
        }
        let first_ns = costs.step_ns(1, 0);
        let last = costs.points.iter().rfind(|(rows, _)| *rows > 0).map_or(0, |(rows, _)| *rows);
        let half = last / 2;
        if half > 1 {
            let twice_ns = 2 * costs.step_ns(half, 0) - first_ns.min(costs.step_ns(half, 0));
            let more_ns = costs.step_ns(2 * half, 0).saturating_sub(twice_ns);
            let pairs = u64::from(half) * u64::from(half);
            costs.position_ps = u32::try_from(more_ns * 1000 / pairs).unwrap_or(u32::MAX);
            for (rows, us) in &mut costs.points {
                let pairs = u64::from(*rows) * u64::from(*rows) / 2;
                let attention_us = pairs * u64::from(costs.position_ps) / 1_000_000;
                *us -= u32::try_from(attention_us).unwrap_or(u32::MAX).min(*us);
            }
        }
        Ok(costs)
    }

    /// Returns the shortest of [`TIMES`] measured durations of a program with these rows, each in a
    /// slot of its own.
    fn time(&mut self, program: ProgramId, rows: &[Rows]) -> Result<Duration, WorkerFailure> {
        let mut best = Duration::MAX;
        for _ in 0..TIMES {
            clear(self.table, self.plan, u32::MAX, &Costs::NONE);
            rows.iter().enumerate().for_each(|(slot, rows)| self.list(program, slot, *rows));
            best = best.min(self.run(program)?);
        }
        Ok(best)
    }

    /// Lists the rows of a sequence whose first `of.past` prompt tokens count as computed.
    fn list(&self, program: ProgramId, slot: usize, of: Rows) {
        let table = self.table;
        let request = Request::greedy(vec![0; (of.past + of.rows) as usize], 1);
        place(table, &Placed { batch: 0, slot, request });
        table.set_field(0, slot, Field::Home, of.home as u32);
        let seats = usize::from(self.plan.shape.device_slots);
        table.set_field(0, slot, Field::Seat, (slot % seats) as u32);
        let is_step = self.plan.program(program).shape.samples() > 0;
        let item = Item {
            slot,
            first: of.past as usize,
            rows: if is_step { of.rows as usize } else { 0 },
            shared_row: None,
            samples: is_step,
            logits_rows: is_step.into(),
        };
        let stream = if program == ProgramId::PIPELINED { of.stream } else { 0 };
        table.push_item(0, List { program, stream }, item);
    }

    /// Runs one step of the listed work. No sequence is running in the slots, so no further step
    /// follows.
    fn run(&mut self, program: ProgramId) -> Result<Duration, WorkerFailure> {
        let control = self.launched.control.clone();
        let drained = control.drained().value().wrapping_add(1);
        let begun = Instant::now();
        control.release(&[Stage { program: program.0.into(), steps: 1 }], u32::MAX - 1);
        while let Err(error) = control.drained().wait_at_least(drained, control.poison(), SLICE) {
            match error {
                WaitError::Poisoned(_) => return Err(self.launched.supervisor.cause(self.plan)),
                WaitError::TimedOut { .. } => self.launched.supervisor.check(self.plan)?,
            }
        }
        Ok(begun.elapsed())
    }
}

/// Returns the cost per position for each of `sequences` sequences, in ps, from the additional time
/// that `past` positions take over a single one.
fn per(far: Duration, near: Duration, sequences: u16, past: u32) -> u32 {
    let positions = u128::from(sequences) * u128::from(past.saturating_sub(1).max(1));
    let all_ps = far.saturating_sub(near).as_nanos() * 1000;
    u32::try_from(all_ps / positions.max(1)).unwrap_or(u32::MAX)
}

fn ps(time: Duration) -> u32 {
    u32::try_from(time.as_nanos() * 1000).unwrap_or(u32::MAX)
}

/// Returns true if weights are streamed to the device in each step.
fn streams(plan: &Plan) -> bool {
    plan.map.weights.iter().flatten().any(|home| *home != MemoryId::VRAM)
}

/// Separates the cost of streamed weights from that of rows: weights are streamed once for all
/// rows, so the duration of a single row is attributed to them, and rows cost what they add to it.
fn apart(mut costs: StepCosts) -> StepCosts {
    let (_, weights_us) = costs.device.points[0];
    costs.device.points.iter_mut().for_each(|(_, us)| *us = us.saturating_sub(weights_us));
    StepCosts { weights_us, ..costs }
}
