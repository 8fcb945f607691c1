//! Replay of requests with given arrival times on workers whose sequences have owners, each in a
//! slot of its own, and the records of the lanes: a server without clients.
//!
//! The sampler decides which iteration follows, as in any server.

use std::time::Duration;

use program::plan::Plan;
use program::topology::LaneId;
use protocol::group::{GenerationRequest, PlacedRequest};
use protocol::release::{list_first, stages};
use protocol::serving::{OfferedSequence, clear_table, offer_sequence};
use protocol::table::{HybridPolicy, StepTable};
use scheduler::StepCostCurve;
use shm::{TraceReader, TraceRecord, WaitError, now_ns};

use super::launch::{LaunchError, LaunchOptions, LaunchedWorkers, launch};

/// Maximum interval between two drains of the lanes' records.
const DRAIN_INTERVAL: Duration = Duration::from_millis(20);

/// A request with its arrival time.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct ReplayRequest {
    /// Arrival time since the beginning of the replay, not before that of the preceding request.
    pub arrival: Duration,
    pub prompt_tokens: u32,
    pub answer_tokens: u32,
}

/// Observations of a replay; times are on the clock of the trace.
#[derive(Debug, Clone, Default)]
pub struct ReplayTrace {
    pub start_ns: u64,
    /// Time at which each request was offered.
    pub offered_ns: Vec<u64>,
    /// Times at which the lanes were released: initially and after every idle period.
    pub released_ns: Vec<u64>,
    /// Records of the lanes, each lane's in order.
    pub records: Vec<(LaneId, TraceRecord)>,
    /// Number of records that were lost because a ring was full.
    pub lost_records: u64,
}

/// Starts the workers, offers every request at its time and waits until all are answered.
///
/// # Errors
/// Workers that do not start or are lost, or an interruption requested by `stop`.
///
/// # Panics
/// If there are more requests than the plan has slots.
pub fn replay(
    plan: &Plan,
    options: &LaunchOptions,
    policy: &HybridPolicy,
    requests: &[ReplayRequest],
    stop: &dyn Fn() -> bool,
) -> Result<ReplayTrace, LaunchError> {
    let mut launched = launch(plan, options, &mut |_, _| !stop(), &mut |_| {})?;
    let table = StepTable::new(launched.control.extra(0, plan.table.words()), plan);
    clear_table(&table, plan, u32::MAX, &StepCostCurve::NONE);
    table.set_hybrid_policy(policy);
    let mut readers = launched.trace_readers(plan)?;
    let mut trace = ReplayTrace { start_ns: now_ns(), ..ReplayTrace::default() };
    // Value of the `drained` timeline once all lanes have left the current group.
    let mut group: Option<u32> = None;
    loop {
        let since = Duration::from_nanos(now_ns() - trace.start_ns);
        while let Some(request) =
            requests.get(trace.offered_ns.len()).filter(|request| request.arrival <= since)
        {
            offer_request(&table, plan, trace.offered_ns.len(), request);
            trace.offered_ns.push(now_ns());
        }
        let control = launched.control.clone();
        if group.is_none() && list_first(&table) {
            group = Some(control.drained().value().wrapping_add(1));
            trace.released_ns.push(now_ns());
            control.release(&stages(&table), u32::MAX - 1);
        }
        let next = requests
            .get(trace.offered_ns.len())
            .map(|request| request.arrival.saturating_sub(since));
        let slice =
            next.unwrap_or(DRAIN_INTERVAL).min(DRAIN_INTERVAL).max(Duration::from_millis(1));
        match (group, next) {
            (Some(drained), _) if wait_for_drain(&mut launched, plan, drained, slice)? => {
                group = None
            }
            (Some(_), _) => {}
            (None, Some(_)) => std::thread::sleep(slice),
            (None, None) => break,
        }
        drain(&mut readers, &mut trace.records);
        if stop() {
            return Err(LaunchError::Interrupted);
        }
    }
    trace.lost_records = readers.iter().map(|(_, reader)| reader.lost()).sum();
    launched.control.release(&[], 0);
    launched.supervisor.shut_down(false);
    Ok(trace)
}

/// Offers a request in the slot with its number.
fn offer_request(table: &StepTable, plan: &Plan, slot: usize, coming: &ReplayRequest) {
    let prompt = vec![0; coming.prompt_tokens as usize];
    let placed = PlacedRequest {
        batch: 0,
        slot,
        request: GenerationRequest::greedy(prompt, coming.answer_tokens),
    };
    let (capacity, arrival) = (plan.shape.max_context, slot as u32);
    let generated = &[][..];
    offer_sequence(
        table,
        &OfferedSequence { placed: &placed, generated, computed: 0, capacity, arrival },
    );
}

/// Waits at most `slice` for all lanes to leave their group. Returns true if they have.
fn wait_for_drain(
    launched: &mut LaunchedWorkers,
    plan: &Plan,
    drained: u32,
    slice: Duration,
) -> Result<bool, LaunchError> {
    let control = launched.control.clone();
    match control.drained().wait_until(drained, control.poison(), slice) {
        Ok(()) => Ok(true),
        Err(WaitError::TimedOut { .. }) => {
            launched.supervisor.check(plan)?;
            Ok(false)
        }
        Err(WaitError::Poisoned(_)) => Err(launched.supervisor.wait_for_cause(plan).into()),
    }
}

fn drain(readers: &mut [(LaneId, TraceReader)], records: &mut Vec<(LaneId, TraceRecord)>) {
    for (lane, reader) in readers {
        reader.drain(|record| records.push((*lane, *record)));
    }
}
