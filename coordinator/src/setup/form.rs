//! `--compress auto`: selects the compression of weights and KV.

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

/// Returns the compression of weights and KV. If lossless storage fits, that is the result.
/// Otherwise it is the compression with the highest predicted throughput of those that fit if the
/// machine was measured for all of them, and the first one that fits if not. It is chosen for all
/// requests of a file together, so that a resumed run uses it again.
pub(crate) fn best_that_fits(run: &Run, opened: &Opened, demand: Option<Demand>) -> Case {
    let Some(demand) = demand else { return first_that_fits(run, opened, demand) };
    let fitting = fitting(run, opened, demand);
    match fitting.as_slice() {
        [] => cases(run, opened)[0],
        [first, ..] if first.is_lossless() || fitting.len() == 1 => *first,
        [first, ..] => fastest(run, opened, demand, &fitting).unwrap_or(*first),
    }
}

/// Returns the first compression that fits, lossless ones first. If none fits, returns the first
/// one, so that the refusal reports its numbers.
pub(crate) fn first_that_fits(run: &Run, opened: &Opened, demand: Option<Demand>) -> Case {
    let first = demand.and_then(|demand| fitting(run, opened, demand).first().copied());
    first.unwrap_or_else(|| cases(run, opened)[0])
}

/// Returns the compressions that fit, or the only candidate without testing it.
fn fitting(run: &Run, opened: &Opened, demand: Demand) -> Vec<Case> {
    let cases = cases(run, opened);
    if cases.len() == 1 {
        return cases;
    }
    let limits = limits(run, opened, demand);
    // Operations that the model lacks are reported when the run is planned.
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
            // A map that does not compile is reported when it is about to run.
            request.fits(count, size).unwrap_or(true)
        })
    };
    cases.into_iter().filter(fits).collect()
}

/// Returns the compression with the highest predicted throughput; `None` if the machine was not
/// measured for each of them.
fn fastest(run: &Run, opened: &Opened, demand: Demand, fitting: &[Case]) -> Option<Case> {
    let rates = fitting.iter().map(|case| Some((rate(run, opened, demand, *case)?, *case)));
    let rates: Vec<(f64, Case)> = rates.collect::<Option<_>>()?;
    let fastest = rates.into_iter().max_by(|a, b| a.0.total_cmp(&b.0));
    fastest.map(|(_, case)| case.as_fastest())
}

/// Returns the tokens/s of a compression as predicted from the stored profiles. `None` if a profile
/// is missing, if a split is specified, or if weights may be read from drives.
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
