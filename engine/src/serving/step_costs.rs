//! Durations of steps, measured with a few of them before the first sequence arrives.

use std::time::{Duration, Instant};

use program::plan::Plan;
use program::step_table::Field;
use protocol::group::{GenerationRequest, PlacedRequest};
use protocol::release::{SERVING_STAGES, list_first};
use protocol::serving::{OfferedSequence, clear_table, free_slot, offer_sequence};
use protocol::table::StepTable;
use scheduler::{COST_POINTS, StepCostCurve};
use shm::WaitError;

use crate::launch::{LaunchedWorkers, POLL_INTERVAL};
use crate::supervisor::WorkerFailure;

/// Numbers of rows of the steps that are measured, in addition to the maximum of a step.
const ROWS: [u32; COST_POINTS - 1] = [1, 4, 16, 48, 128, 256, 512];
/// Duration of a step after which longer ones need not be measured.
const LONG_STEP: Duration = Duration::from_millis(500);
/// Duration up to which steps are measured several times, of which the shortest counts: on a busy
/// machine a single one may wait for a processor.
const SHORT_STEP: Duration = Duration::from_millis(20);
/// Number of measurements of a short step.
const SHORT_STEP_RUNS: u32 = 3;
/// Number of rows of the steps that are measured with and without the logits of each row.
const LOGITS_ROWS: u32 = 64;
/// Maximum number of chunks of the prompt that is run to measure the cost of cached positions.
const CHUNKS: u32 = 4;

/// Runs steps with increasing numbers of rows, a prompt in several chunks, and a step with
/// `max_drafts` drafts.
///
/// # Errors
/// A worker that was lost.
pub(super) fn measure_step_costs(
    plan: &Plan,
    launched: &mut LaunchedWorkers,
    table: &StepTable,
    max_drafts: u32,
) -> Result<StepCostCurve, WorkerFailure> {
    let mut run = |request: GenerationRequest| -> Result<Duration, WorkerFailure> {
        clear_table(table, plan, u32::MAX, &StepCostCurve::NONE);
        let pages = table.pages().min(plan.shape.kv_pages as usize);
        (0..pages).for_each(|page| table.set_page(0, 0, page, page as u32));
        offer(table, request, &[], 0);
        list_first(table);
        run_listed(plan, launched, table)
    };
    let mut costs = StepCostCurve::NONE;
    let longest_prompt = longest_prompt(plan);
    let max_rows = plan.shape.prefill_chunk.min(longest_prompt);
    // The very first step touches memory that was never touched before.
    run(prompt(1))?;
    let mut longest = (0, Duration::ZERO);
    let rows = ROWS.into_iter().filter(|rows| *rows < max_rows).chain([max_rows]);
    for (point, rows) in costs.points.iter_mut().zip(rows) {
        let time = shortest(|| run(prompt(rows)))?;
        *point = (rows, u32::try_from(time.as_micros()).unwrap_or(u32::MAX).max(1));
        longest = (rows, time);
        if time > LONG_STEP {
            break;
        }
    }
    let (rows, time) = longest;
    let chunks = CHUNKS.min(longest_prompt / rows.max(1));
    if rows == max_rows && chunks > 1 && time <= LONG_STEP {
        let all = run(prompt(rows * chunks))?;
        let attention = all.saturating_sub(time * chunks);
        let (rows, chunks) = (u64::from(rows), u64::from(chunks));
        let positions = rows * rows * chunks * (chunks - 1) / 2;
        let ps = attention.as_nanos() * 1000 / u128::from(positions.max(1));
        costs.position_ps = u32::try_from(ps).unwrap_or(u32::MAX);
    }
    let rows = LOGITS_ROWS.min(max_rows).min(table.step_budget().logits_rows);
    if plan.shape.logprobs > 0 && rows > 1 {
        let without = run(prompt(rows))?;
        let logprobs = plan.shape.logprobs;
        let with = run(GenerationRequest { prompt_logprobs: logprobs, ..prompt(rows) })?;
        let ns = with.saturating_sub(without).as_nanos() / u128::from(rows - 1);
        costs.logits_row_ns = u32::try_from(ns).unwrap_or(u32::MAX);
    }
    let drafts = max_drafts.min(max_rows - 1).min(table.step_budget().logits_rows - 1);
    let drafts = drafts.min(longest_prompt.saturating_sub(2));
    if drafts > 0 {
        let all = shortest(|| measure_drafts(plan, launched, table, drafts))?;
        let ns = u64::try_from(all.as_nanos()).unwrap_or(u64::MAX);
        let ns = ns.saturating_sub(costs.step_ns(1 + drafts, 0)) / u64::from(drafts);
        costs.draft_row_ns = u32::try_from(ns).unwrap_or(u32::MAX);
    }
    Ok(costs)
}

/// Returns the shortest of several durations of a step, if the first one is short.
fn shortest(
    mut run: impl FnMut() -> Result<Duration, WorkerFailure>,
) -> Result<Duration, WorkerFailure> {
    let mut time = run()?;
    for _ in 1..SHORT_STEP_RUNS {
        if time <= SHORT_STEP {
            time = time.min(run()?);
        }
    }
    Ok(time)
}

/// Returns the duration of a step of a sequence with `drafts` drafts.
fn measure_drafts(
    plan: &Plan,
    launched: &mut LaunchedWorkers,
    table: &StepTable,
    drafts: u32,
) -> Result<Duration, WorkerFailure> {
    // A state has to contain the rows before those of the step.
    offer(table, prompt(1), &[], 0);
    list_first(table);
    run_listed(plan, launched, table)?;
    table.set_max_drafts(drafts);
    table.set_drafts_all(true);
    // A repeated token predicts itself.
    offer(table, GenerationRequest::greedy(vec![0], drafts + 2), &[0], 1);
    table.set_field(0, 0, Field::Acceptance, 1f32.to_bits());
    list_first(table);
    // The sequence ends with this step.
    table.set_field(0, 0, Field::Cancel, 1);
    run_listed(plan, launched, table)
}

/// Returns a request for one token after a prompt of `rows` tokens.
fn prompt(rows: u32) -> GenerationRequest {
    GenerationRequest::greedy(vec![0; rows as usize], 1)
}

/// Returns the number of tokens of the longest prompt for which there are caches, if one token
/// follows it.
fn longest_prompt(plan: &Plan) -> u32 {
    let shape = plan.shape;
    let positions = match shape.page_positions {
        0 => shape.max_context,
        positions => shape.max_context.min(positions.saturating_mul(shape.kv_pages)),
    };
    positions - 1
}

/// Offers a sequence with `generated` new tokens and `computed` positions in its caches.
fn offer(table: &StepTable, request: GenerationRequest, generated: &[u32], computed: u32) {
    let capacity = request.prompt.len() as u32 + request.max_new;
    let placed = PlacedRequest { batch: 0, slot: 0, request };
    let arrival = 0;
    offer_sequence(
        table,
        &OfferedSequence { placed: &placed, generated, computed, capacity, arrival },
    );
}

/// Returns the time in which the listed sequence ends.
fn run_listed(
    plan: &Plan,
    launched: &mut LaunchedWorkers,
    table: &StepTable,
) -> Result<Duration, WorkerFailure> {
    let control = launched.control.clone();
    let drained = control.drained().value().wrapping_add(1);
    let begun = Instant::now();
    control.release(&SERVING_STAGES, u32::MAX - 1);
    while let Err(error) = control.drained().wait_until(drained, control.poison(), POLL_INTERVAL) {
        match error {
            WaitError::Poisoned(_) => return Err(launched.supervisor.wait_for_cause(plan)),
            WaitError::TimedOut { .. } => launched.supervisor.check(plan)?,
        }
    }
    let time = begun.elapsed();
    free_slot(table, 0, 0);
    Ok(time)
}
