//! Durations of iterations whose sequences are owned by the device or the host, measured with a few
//! of them before the first sequence arrives.

use std::time::{Duration, Instant};

use program::ir::ProgramId;
use program::plan::Plan;
use program::step_table::{Field, KvTier, List};
use program::topology::MemoryId;
use protocol::group::{GenerationRequest, PlacedRequest, place_request};
use protocol::serving::clear_table;
use protocol::table::{StepTable, WorkItem};
use scheduler::hybrid::StepCosts;
use scheduler::{COST_POINTS, StepCostCurve};
use shm::{ProgramStage, WaitError};

use crate::launch::{LaunchedWorkers, POLL_INTERVAL};
use crate::supervisor::WorkerFailure;

/// Numbers of rows of the prompts that are measured, in addition to the maximum.
const ROWS: [u32; COST_POINTS - 1] = [1, 4, 16, 48, 128, 256, 512];
/// Duration of a step after which longer ones need not be measured.
const LONG_STEP: Duration = Duration::from_millis(500);
/// Maximum number of positions before rows of decode.
const PAST_POSITIONS: u32 = 1024;
/// Number of measurements, of which the shortest counts.
const REPETITIONS: u32 = 2;

/// Rows that are computed for a slot.
#[derive(Debug, Clone, Copy)]
struct WorkRows {
    past: u32,
    rows: u32,
    tier: KvTier,
    stream: u16,
}

impl WorkRows {
    /// Returns a row of a sequence owned by the device, after `past` positions.
    const fn on_device(past: u32) -> WorkRows {
        WorkRows { past, rows: 1, tier: KvTier::Device, stream: 0 }
    }

    /// Returns a row of a sequence owned by the host, after `past` positions.
    const fn on_host(past: u32) -> WorkRows {
        WorkRows { past, rows: 1, tier: KvTier::Host, stream: 1 }
    }
}

struct CostMeasurement<'a> {
    plan: &'a Plan,
    launched: &'a mut LaunchedWorkers,
    table: &'a StepTable,
}

/// Runs iterations with increasing numbers of rows, with more and fewer positions before them, for
/// either owner; migrations of caches; and, if rows may be deferred, their transfers in every
/// layer.
///
/// # Errors
/// A worker that was lost.
pub(super) fn measure_hybrid_costs(
    plan: &Plan,
    launched: &mut LaunchedWorkers,
    table: &StepTable,
) -> Result<StepCosts, WorkerFailure> {
    let mut measurement = CostMeasurement { plan, launched, table };
    let shape = plan.shape;
    let (step, pipelined) = (ProgramId::STEP, ProgramId::PIPELINED);
    // The very first iteration touches memory that was never touched before.
    measurement.measure(pipelined, &[WorkRows::on_host(1)])?;
    let device = measurement.measure_points()?;
    let past = PAST_POSITIONS.min(shape.max_context - 1);
    let of_device = |past| vec![WorkRows::on_device(past); usize::from(shape.device_slots)];
    let of_host = |past| vec![WorkRows::on_host(past); usize::from(shape.batch_size)];
    let [device_long, device_short] =
        [past, 1].map(|past| measurement.measure(step, &of_device(past)));
    let device_position_ps = position_ps(device_long?, device_short?, shape.device_slots, past);
    let [host_long, host_short] =
        [past, 1].map(|past| measurement.measure(pipelined, &of_host(past)));
    let (host_long, host_short) = (host_long?, host_short?);
    let host_alone = measurement.measure(pipelined, &[WorkRows::on_host(1)])?;
    let linear = |rows: u32| Duration::from_nanos(device.step_ns(rows, 0));
    let others = u32::from(shape.batch_size).saturating_sub(1).max(1);
    let attended = host_short.saturating_sub(linear(others + 1));
    let launch = host_alone.saturating_sub(linear(1));
    let time_move =
        |measurement: &mut CostMeasurement<'_>, program| -> Result<u32, WorkerFailure> {
            let [long, short] =
                [past, 1].map(|past| measurement.measure(program, &[WorkRows::on_host(past)]));
            Ok(position_ps(long?, short?, 1, past))
        };
    let deferred = match table.can_defer_rows() {
        true => measurement.measure(ProgramId::ASYNC, &[WorkRows::on_device(1)])?,
        false => Duration::ZERO,
    };
    let alone = measurement.measure(step, &[WorkRows::on_device(1)])?;
    let position_out_ps = time_move(&mut measurement, ProgramId::MOVE_OUT)?;
    let position_in_ps = time_move(&mut measurement, ProgramId::MOVE_IN)?;
    let costs = StepCosts {
        layers: plan.config.num_layers as u32,
        device,
        weights_us: 0,
        device_position_ps,
        host_position_ps: position_ps(host_long, host_short, shape.batch_size, past),
        host_row_ps: as_ps(attended.saturating_sub(launch) / others),
        launch_us: u32::try_from(launch.as_micros()).unwrap_or(u32::MAX),
        deferred_rows_us: u32::try_from(deferred.saturating_sub(alone).as_micros())
            .unwrap_or(u32::MAX),
        position_out_ps,
        position_in_ps,
    };
    Ok(if streams_weights(plan) { split_off_weights(costs) } else { costs })
}

impl CostMeasurement<'_> {
    /// Measures prompts with increasing numbers of rows on the device. Returns the cost of the rows
    /// alone, and the cost of a row per position before it, derived from the time that twice as
    /// many rows take in excess of twice the time.
    fn measure_points(&mut self) -> Result<StepCostCurve, WorkerFailure> {
        let shape = self.plan.shape;
        let max_rows = shape.prefill_chunk.saturating_sub(shape.batch_size.into());
        let max_rows = max_rows.min(shape.max_context - 1).max(1);
        let mut costs = StepCostCurve::NONE;
        let rows = ROWS.into_iter().filter(|rows| *rows < max_rows).chain([max_rows]);
        for (point, rows) in costs.points.iter_mut().zip(rows) {
            let prompt = WorkRows { past: 0, rows, tier: KvTier::Device, stream: 0 };
            let time = self.measure(ProgramId::STEP, &[prompt])?;
            *point = (rows, u32::try_from(time.as_micros()).unwrap_or(u32::MAX).max(1));
            if time > LONG_STEP {
                break;
            }
        }
        let first_ns = costs.step_ns(1, 0);
        let last = costs.points.iter().rfind(|(rows, _)| *rows > 0).map_or(0, |(rows, _)| *rows);
        let half = last / 2;
        if half > 1 {
            let doubled_ns = 2 * costs.step_ns(half, 0) - first_ns.min(costs.step_ns(half, 0));
            let more_ns = costs.step_ns(2 * half, 0).saturating_sub(doubled_ns);
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

    /// Returns the shortest of [`REPETITIONS`] measured durations of a program with these rows,
    /// each in a slot of its own.
    fn measure(
        &mut self,
        program: ProgramId,
        rows: &[WorkRows],
    ) -> Result<Duration, WorkerFailure> {
        let mut best = Duration::MAX;
        for _ in 0..REPETITIONS {
            clear_table(self.table, self.plan, u32::MAX, &StepCostCurve::NONE);
            rows.iter().enumerate().for_each(|(slot, rows)| self.list_rows(program, slot, *rows));
            best = best.min(self.run(program)?);
        }
        Ok(best)
    }

    /// Lists the rows of a sequence whose first `rows.past` prompt tokens count as computed.
    fn list_rows(&self, program: ProgramId, slot: usize, rows: WorkRows) {
        let table = self.table;
        let request = GenerationRequest::greedy(vec![0; (rows.past + rows.rows) as usize], 1);
        place_request(table, &PlacedRequest { batch: 0, slot, request });
        table.set_field(0, slot, Field::Tier, rows.tier as u32);
        let device_slots = usize::from(self.plan.shape.device_slots);
        table.set_field(0, slot, Field::Allocation, (slot % device_slots) as u32);
        let is_step = self.plan.program(program).shape.samples() > 0;
        let item = WorkItem {
            slot,
            first: rows.past as usize,
            rows: if is_step { rows.rows as usize } else { 0 },
            shared_row: None,
            samples: is_step,
            logits_rows: is_step.into(),
            drafts: 0,
        };
        let stream = if program == ProgramId::PIPELINED { rows.stream } else { 0 };
        table.push_item(0, List { program, stream }, item);
    }

    /// Runs one step of the listed work. No sequence is running in the slots, so no further step
    /// follows.
    fn run(&mut self, program: ProgramId) -> Result<Duration, WorkerFailure> {
        let control = self.launched.control.clone();
        let drained = control.drained().value().wrapping_add(1);
        let begun = Instant::now();
        control.release(&[ProgramStage { program: program.0.into(), steps: 1 }], u32::MAX - 1);
        while let Err(error) =
            control.drained().wait_until(drained, control.poison(), POLL_INTERVAL)
        {
            match error {
                WaitError::Poisoned(_) => {
                    return Err(self.launched.supervisor.wait_for_cause(self.plan));
                }
                WaitError::TimedOut { .. } => self.launched.supervisor.check(self.plan)?,
            }
        }
        Ok(begun.elapsed())
    }
}

/// Returns the cost per position for each of `sequences` sequences, in ps, from the additional time
/// that `past` positions take over a single one.
fn position_ps(long: Duration, short: Duration, sequences: u16, past: u32) -> u32 {
    let positions = u128::from(sequences) * u128::from(past.saturating_sub(1).max(1));
    let all_ps = long.saturating_sub(short).as_nanos() * 1000;
    u32::try_from(all_ps / positions.max(1)).unwrap_or(u32::MAX)
}

fn as_ps(time: Duration) -> u32 {
    u32::try_from(time.as_nanos() * 1000).unwrap_or(u32::MAX)
}

/// Returns true if weights are streamed to the device in each step.
fn streams_weights(plan: &Plan) -> bool {
    plan.map.weights.iter().flatten().any(|memory| *memory != MemoryId::VRAM)
}

/// Separates the cost of streamed weights from that of rows: weights are streamed once for all
/// rows, so the duration of a single row is attributed to them, and rows cost what they add to it.
fn split_off_weights(mut costs: StepCosts) -> StepCosts {
    let (_, weights_us) = costs.device.points[0];
    costs.device.points.iter_mut().for_each(|(_, us)| *us = us.saturating_sub(weights_us));
    StepCosts { weights_us, ..costs }
}
