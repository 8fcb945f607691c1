//! LIA's choice: for each of the 64 vectors the sum of all work (eq. 2 adds the parts up without
//! overlap), here of the compiled layer's instructions. The policies that LIA names are compared
//! with it as executed, since overlap may reverse a close result.

use program::ir::{Program, ProgramId};
use program::simulate::{Place, SimulationCosts};

use super::{CostError, Estimator};
use crate::lia::OffloadVector;
use crate::policy::{Placement, Policy};

/// Returns the vectors for prefill and decode that are compared: those with the lowest latency, and
/// for decode also the named ones.
///
/// # Errors
/// A plan that cannot be priced.
pub(super) fn vector_pairs(
    estimator: &Estimator<'_>,
) -> Result<Vec<[OffloadVector; 2]>, CostError> {
    let [prefill, least] = best_vectors(estimator)?;
    let others = OffloadVector::NAMED.into_iter().filter(|named| *named != least);
    Ok(std::iter::once(least).chain(others).map(|decode| [prefill, decode]).collect())
}

/// Returns the vectors with the lowest latency for prefill and for decode; of equal ones the first.
///
/// # Errors
/// A plan that cannot be priced.
fn best_vectors(estimator: &Estimator<'_>) -> Result<[OffloadVector; 2], CostError> {
    let prompt = estimator.request.max_prompt;
    let middle = prompt + estimator.request.max_new / 2;
    let mut best: [Option<(f64, OffloadVector)>; 2] = [None; 2];
    for vector in OffloadVector::all() {
        // Attention of prefill is not split, so such vectors apply only to decode.
        let whole = vector.0[1] == vector.0[2];
        let prefill = if whole { vector } else { OffloadVector::FULL_GPU };
        let placement =
            Placement::from_policy(Policy::Lia { prefill, decode: vector, spread: false });
        let kinds = estimator.for_each_kind(|estimator| {
            let work_ns = |program: ProgramId, positions: u32| -> Result<f64, CostError> {
                let plan = estimator.program_plan(&placement, 1, program)?;
                let program = &plan.programs[program.index()];
                let costs = estimator.pricing.costs(&plan, program, positions)?;
                Ok(total_work_ns(program, costs.as_ref()))
            };
            let prefill_ns = if whole { work_ns(ProgramId::PREFILL, prompt)? } else { 0.0 };
            Ok((prefill_ns, work_ns(ProgramId::DECODE, middle)?))
        })?;
        let mean = |part: fn((f64, f64)) -> f64| -> f64 {
            kinds.iter().map(|(share, sums)| share * part(*sums)).sum()
        };
        keep_min(&mut best[1], mean(|(_, decode_ns)| decode_ns), vector);
        if whole {
            keep_min(&mut best[0], mean(|(prefill_ns, _)| prefill_ns), vector);
        }
    }
    Ok(best.map(|best| best.map_or(OffloadVector::FULL_CPU, |(_, vector)| vector)))
}

fn keep_min(best: &mut Option<(f64, OffloadVector)>, latency: f64, vector: OffloadVector) {
    if best.is_none_or(|(best_latency, _)| latency < best_latency) {
        *best = Some((latency, vector));
    }
}

/// Returns the sum of all work of a program, in ns.
fn total_work_ns(program: &Program, costs: &dyn SimulationCosts) -> f64 {
    let of_lane = |list: &program::ir::LaneProgram| {
        let work = list.instructions.iter().enumerate().filter(|(_, found)| found.is_work());
        work.map(|(index, instruction)| {
            let (program, lane) = (program.id, list.lane);
            costs.work_ns(Place { program, lane, instruction: index as u32 }, instruction, 0)
        })
        .sum::<f64>()
    };
    program.lanes.iter().map(of_lane).sum()
}
