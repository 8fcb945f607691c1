//! Rehearsal of a compiled plan: real decode steps in the real workers, after prompts that were
//! never computed.

use std::time::{Duration, Instant};

use program::ir::{Instruction, LaneProgram, Program, ProgramId};
use program::plan::Plan;
use program::validate::{validate, validate_program};
use protocol::group::{GenerationRequest as Sequence, PlacedRequest};
use shm::TraceRecord;

use crate::error::ProfileError;
use crate::plan_key::plan_key;
use crate::profile::RehearsalTimes;
use crate::request::ComputeThreads;
use crate::runner::{Runner, RunnerSession};

/// Minimum and maximum number of groups of a session.
const GROUPS: std::ops::RangeInclusive<usize> = 3..=8;
/// Maximum duration of a session's groups beyond the minimum number.
const BUDGET: Duration = Duration::from_secs(2);
/// Groups that differ by more than this fraction of their median are repeated,
const SPREAD_MAX: f64 = 0.1;
/// and so are those whose ratio to the expected duration is out of this range.
const EXPECTED_RATIO: std::ops::RangeInclusive<f64> = 0.8..=1.25;
/// Maximum number of times that workers are started: if two sessions disagree, a third decides.
const SESSIONS_MAX: u32 = 3;

/// Runs `steps` decode steps of `plan` with dummy weights, several times, in full batches after
/// prompts of the longest length. Groups that spread widely, or that differ much from the
/// expectation, are repeated with newly started workers: a machine that was disturbed for a while
/// yields groups that agree only with each other.
///
/// # Errors
/// A plan that is not safe to run, a runner that failed or was interrupted.
pub fn rehearse(
    plan: &Plan,
    steps: u32,
    threads: ComputeThreads,
    expected_ns: Option<f64>,
    runner: &mut dyn Runner,
) -> Result<RehearsalTimes, ProfileError> {
    validate(plan)?;
    let mut without_prefill = plan.clone();
    *without_prefill.program_mut(ProgramId::PREFILL) = only_samples(plan.prefill());
    validate_program(
        without_prefill.prefill(),
        &without_prefill.buffers,
        &without_prefill.topology,
        &without_prefill.config,
    )?;
    let key = plan_key(plan);
    let mut all = RehearsalTimes { plan: key, steps, groups_ns: Vec::new(), sessions: 0 };
    let mut medians_ns: Vec<f64> = Vec::new();
    while all.sessions < SESSIONS_MAX {
        let session = runner.start(without_prefill.clone(), threads)?;
        let groups_ns = groups_ns(session, plan, steps)?;
        let session = RehearsalTimes { groups_ns, ..all.clone() };
        let median_ns = session.decode_ns();
        let is_settled = match medians_ns.first() {
            None => {
                let ratio = expected_ns.map_or(1.0, |expected_ns| median_ns / expected_ns);
                session.spread() <= SPREAD_MAX && EXPECTED_RATIO.contains(&ratio)
            }
            Some(first_ns) => (median_ns - first_ns).abs() <= SPREAD_MAX * median_ns.min(*first_ns),
        };
        medians_ns.push(median_ns);
        all.groups_ns.extend(session.groups_ns);
        all.sessions += 1;
        if is_settled {
            break;
        }
    }
    Ok(all)
}

/// Returns the durations of the groups of one session.
fn groups_ns(
    mut session: Box<dyn RunnerSession>,
    plan: &Plan,
    steps: u32,
) -> Result<Vec<u64>, ProfileError> {
    // The first step warms up pages and caches.
    decode_ns(session.as_mut(), plan, 1)?;
    let started = Instant::now();
    let mut groups_ns = Vec::new();
    let (min_groups, max_groups) = (*GROUPS.start(), *GROUPS.end());
    while groups_ns.len() < min_groups
        || (groups_ns.len() < max_groups && started.elapsed() < BUDGET)
    {
        groups_ns.push(decode_ns(session.as_mut(), plan, steps)?);
    }
    Ok(groups_ns)
}

/// Returns a prefill that computes nothing: sampling alone sets the length of every sequence's
/// cache.
fn only_samples(prefill: &Program) -> Program {
    let samples = |instruction: &&Instruction| instruction.is_sample();
    let lanes = prefill.lanes.iter().map(|list| LaneProgram {
        instructions: list.instructions.iter().filter(samples).cloned().collect(),
        signals_per_step: 0,
        ..list.clone()
    });
    Program {
        id: prefill.id,
        shape: prefill.shape,
        lanes: lanes.filter(|list| !list.instructions.is_empty()).collect(),
    }
}

/// Runs a group of full batches; returns the total duration of its decode steps.
fn decode_ns(
    session: &mut dyn RunnerSession,
    plan: &Plan,
    steps: u32,
) -> Result<u64, ProfileError> {
    let shape = &plan.shape;
    let prompt = vec![0; shape.longest_prompt(steps + 1) as usize];
    let one = |batch, slot| PlacedRequest {
        batch,
        slot,
        request: Sequence::greedy(prompt.clone(), steps + 1),
    };
    let slots = usize::from(shape.batch_size);
    let group: Vec<PlacedRequest> = (0..usize::from(shape.batches))
        .flat_map(|batch| (0..slots).map(move |slot| one(batch, slot)))
        .collect();
    let records = session.run(&group)?;
    let of_decode = |record: &&TraceRecord| record.program == u32::from(ProgramId::DECODE.0);
    let decode = || records.iter().map(|(_, record)| record).filter(of_decode);
    let start_ns = decode().map(|record| record.start_ns).min().unwrap_or(0);
    let end_ns = decode().map(|record| record.end_ns).max().unwrap_or(0);
    Ok(end_ns - start_ns)
}
