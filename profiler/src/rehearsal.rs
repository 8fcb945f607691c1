//! A compiled plan tried out: real decode steps in the real workers, behind prompts that nobody
//! computed.

use std::time::{Duration, Instant};

use model::ops::Op;
use program::ir::{Instruction, LaneProgram, Program, ProgramId};
use program::plan::Plan;
use program::validate::{validate, validate_program};
use sha2::{Digest, Sha256};
use shm::TraceRecord;
use workers::shared::group::{Placed, Request as Sequence};

use crate::profile::Rehearsal;
use crate::request::Threads;
use crate::run::ProfileError;
use crate::runner::{Runner, Session};

/// Groups that are measured at least, and at most.
const GROUPS: std::ops::RangeInclusive<u32> = 2..=8;
/// What the measured groups may take, but for the least number of them.
const BUDGET: Duration = Duration::from_secs(2);

impl Rehearsal {
    /// Tells plans from each other: SHA-256 of what is run.
    pub fn key(plan: &Plan) -> String {
        Sha256::digest(format!("{plan:?}"))
            .iter()
            .take(16)
            .map(|byte| format!("{byte:02x}"))
            .collect()
    }
}

/// Runs `steps` decode steps of `plan` with dummy weights, several times, in full batches behind
/// prompts of the longest length.
///
/// # Errors
/// A plan that is not safe to run, a runner that failed or was interrupted.
pub fn rehearse(
    plan: &Plan,
    steps: u32,
    threads: Threads,
    runner: &mut dyn Runner,
) -> Result<Rehearsal, ProfileError> {
    validate(plan)?;
    let mut pretended = plan.clone();
    *pretended.program_mut(ProgramId::PREFILL) = only_samples(plan.prefill());
    validate_program(pretended.prefill(), &pretended.buffers, &pretended.topology)?;
    let mut session = runner.start(pretended, threads)?;
    // The first step brings pages and caches up.
    decode_ns(session.as_mut(), plan, 1)?;
    let begun = Instant::now();
    let (mut sum_ns, mut groups) = (0, 0);
    while groups < *GROUPS.start() || (groups < *GROUPS.end() && begun.elapsed() < BUDGET) {
        sum_ns += decode_ns(session.as_mut(), plan, steps)?;
        groups += 1;
    }
    let decode_ns = sum_ns as f64 / f64::from(groups);
    Ok(Rehearsal { plan: Rehearsal::key(plan), steps, decode_ns, groups })
}

/// Prefill that computes nothing: sampling alone sets the length of every sequence's cache.
fn only_samples(prefill: &Program) -> Program {
    let samples = |instruction: &&Instruction| match instruction {
        Instruction::Compute(compute) => compute.op == Op::Sample,
        _ => false,
    };
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

/// Runs a group of full batches; returns how long its decode steps took together.
fn decode_ns(session: &mut dyn Session, plan: &Plan, steps: u32) -> Result<u64, ProfileError> {
    let shape = &plan.shape;
    let one = |batch, slot| Placed {
        batch,
        slot,
        request: Sequence::greedy(vec![0; shape.max_prompt as usize], steps + 1),
    };
    let slots = usize::from(shape.batch_size);
    let group: Vec<Placed> = (0..usize::from(shape.batches))
        .flat_map(|batch| (0..slots).map(move |slot| one(batch, slot)))
        .collect();
    let records = session.run(&group)?;
    let of_decode = |record: &&TraceRecord| record.program == u32::from(ProgramId::DECODE.0);
    let decode = || records.iter().map(|(_, record)| record).filter(of_decode);
    let start_ns = decode().map(|record| record.start_ns).min().unwrap_or(0);
    let end_ns = decode().map(|record| record.end_ns).max().unwrap_or(0);
    Ok(end_ns - start_ns)
}
