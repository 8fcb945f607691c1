//! `--compress auto`: in which form weights and KV are kept.

use std::convert::Infallible;

use planner::policy::by_name::PolicyName;
use planner::policy::{Placement, Policy};
use planner::priced::{Effort, Question, choose};

use super::formats::{Case, cases, formats};
use super::hardware::Hardware;
use super::model::Opened;
use super::plan_request::{batches, filled, limits, request};
use super::pricing::{Profiles, compares_alone};
use super::profile;
use super::staging::nvme::storage;
use crate::cli::request::{PlacementChoice, Run};
use crate::cli::values::{Batches, BatchesChoice};
use crate::job::demand::Demand;

/// The form of weights and KV: lossless where that fits; else of the forms that fit the one that is
/// predicted to be the fastest, where the machine was measured for all of them, and the first of
/// them where it was not. It is settled for all requests of a file together, so that a run that is
/// resumed keeps it.
pub(crate) fn best_that_fits(run: &Run, opened: &Opened, demand: Option<Demand>) -> Case {
    let Some(demand) = demand else { return first_that_fits(run, opened, demand) };
    let fitting = fitting(run, opened, demand);
    match fitting.as_slice() {
        [] => cases(run, opened)[0],
        [first, ..] if first.is_lossless() || fitting.len() == 1 => *first,
        [first, ..] => fastest(run, opened, demand, &fitting).unwrap_or(*first),
    }
}

/// The first form that fits, lossless ones first; the first one when none does, so that the refusal
/// has its numbers.
pub(crate) fn first_that_fits(run: &Run, opened: &Opened, demand: Option<Demand>) -> Case {
    let first = demand.and_then(|demand| fitting(run, opened, demand).first().copied());
    first.unwrap_or_else(|| cases(run, opened)[0])
}

/// The forms that fit; the only one of which there is no choice.
fn fitting(run: &Run, opened: &Opened, demand: Demand) -> Vec<Case> {
    let cases = cases(run, opened);
    if cases.len() == 1 {
        return cases;
    }
    let limits = limits(run, opened, demand);
    // Operations that the model lacks are told of when the run is planned.
    let storage = storage(run, &opened.config).ok().flatten();
    let (count, size) = match run.batches {
        Some(BatchesChoice::Given(batches)) => {
            let Batches { count, size } = filled(run, opened, batches, demand.sequences);
            (count, size)
        }
        _ => (1, 1),
    };
    let fits = |case: &Case| {
        let formats = formats(run, opened, *case);
        [Policy::CpuOnly, Policy::GpuOnly].map(Placement::of).iter().any(|placement| {
            let memory = (&limits, storage.as_ref());
            let request = request(run, opened, demand, &formats, memory, placement);
            // A map that does not compile is told of when it is to be run.
            request.fits(count, size).unwrap_or(true)
        })
    };
    cases.into_iter().filter(fits).collect()
}

/// The form of the highest predicted throughput; `None` where any of them was not measured.
fn fastest(run: &Run, opened: &Opened, demand: Demand, fitting: &[Case]) -> Option<Case> {
    let rates = fitting.iter().map(|case| Some((rate(run, opened, demand, *case)?, *case)));
    let rates: Vec<(f64, Case)> = rates.collect::<Option<_>>()?;
    let fastest = rates.into_iter().max_by(|a, b| a.0.total_cmp(&b.0));
    fastest.map(|(_, case)| case.as_fastest())
}

/// Tokens/s of a form by the profiles that are kept of it, without its drives; `None` without any.
fn rate(run: &Run, opened: &Opened, demand: Demand, case: Case) -> Option<f64> {
    let PlacementChoice::Named(policy) = run.placement else { return None };
    if storage(run, &opened.config).ok()?.is_some() {
        return None;
    }
    let (limits, formats) = (limits(run, opened, demand), formats(run, opened, case));
    let placement = Placement::of(policy.alone().unwrap_or(Policy::GpuOnly));
    let request = request(run, opened, demand, &formats, (&limits, None), &placement);
    let Batches { count, size } = batches(run, demand, &request).ok()?;
    let shape = request.shape(count, size);
    let kept = |uses_gpu: bool| {
        let of = |hardware: Hardware| -> Result<_, Infallible> {
            let wanted = profile::request(request.config, &shape, &formats, hardware);
            Ok(profile::kept(&wanted, hardware))
        };
        let hardware = Hardware::resolve(run, uses_gpu);
        let Ok(found) = profile::with_best_threads(run.cpu_threads, hardware, of);
        found.map(|(profile, _)| profile)
    };
    let is_alone = compares_alone(policy) || policy == PolicyName::CpuOnly;
    let profiles = Profiles {
        with_device: if policy == PolicyName::CpuOnly { None } else { Some(kept(true)?) },
        alone: if is_alone { Some(kept(false)?) } else { None },
    };
    let question = Question {
        request: &request,
        batches: count,
        batch_size: size,
        policy,
        chunkings: &[None],
        pricing: &profiles,
        effort: Effort::Quick,
        stage: None,
    };
    choose(&question).ok().map(|chosen| chosen.tokens_per_s())
}
