//! `--compress auto`: selects the compression of weights and KV.

use std::convert::Infallible;

use batch::workload::JobWorkload;
use planner::policy::{Placement, Policy};
use planner::search::{SearchEffort, SearchRequest, choose};

use super::formats::{RunCompression, candidate_compressions, prefer_wider_kv, resolve_formats};
use super::hardware::Hardware;
use super::plan_request::{limits, plan_request, resolve_batches, shrink_batches};
use super::pricing::{Profiles, compares_without_device};
use super::profile;
use super::staging::nvme::storage;
use crate::request::PlacementChoice;
use crate::session::Session;
use crate::values::{Batches, BatchesChoice};

/// Returns the compression of weights and KV. If lossless storage fits, that is the result.
/// Otherwise it is the compression with the highest predicted throughput of those that fit if the
/// machine was measured for all of them, and the first one that fits if not. KV in 4 bits is
/// considered only if nothing else fits. The compression is chosen for all requests of a file
/// together, so that a resumed run uses it again.
pub fn choose_compression(session: &Session<'_>, demand: Option<JobWorkload>) -> RunCompression {
    let Some(demand) = demand else { return first_fitting_compression(session, demand) };
    let mut fitting = fitting_compressions(session, demand);
    prefer_wider_kv(&mut fitting);
    match fitting.as_slice() {
        [] => candidate_compressions(session)[0],
        [first, ..] if first.is_lossless() || fitting.len() == 1 => *first,
        [first, ..] => fastest_compression(session, demand, &fitting).unwrap_or(*first),
    }
}

/// Returns the first compression that fits, lossless ones first. If none fits, returns the first
/// one, so that the refusal reports its numbers.
pub fn first_fitting_compression(
    session: &Session<'_>,
    demand: Option<JobWorkload>,
) -> RunCompression {
    let first = demand.and_then(|demand| fitting_compressions(session, demand).first().copied());
    first.unwrap_or_else(|| candidate_compressions(session)[0])
}

/// Returns the compressions that fit, or the only candidate without testing it.
fn fitting_compressions(session: &Session<'_>, demand: JobWorkload) -> Vec<RunCompression> {
    let cases = candidate_compressions(session);
    if cases.len() == 1 {
        return cases;
    }
    let limits = limits(session, demand);
    // Operations that the model lacks are reported when the run is planned.
    let storage = storage(session).ok().flatten();
    let (count, size) = match session.batches {
        Some(BatchesChoice::Fixed(batches)) => {
            let Batches { count, size } = shrink_batches(session, batches, demand.sequences);
            (count, size)
        }
        _ => (1, 1),
    };
    let fits = |compression: &RunCompression| {
        let formats = resolve_formats(session, *compression);
        [Policy::CpuOnly, Policy::GpuOnly].map(Placement::from_policy).iter().any(|placement| {
            let request =
                plan_request(session, demand, &formats, &limits, storage.as_ref(), placement);
            // A map that does not compile is reported when it is about to run.
            request.fits(count, size).unwrap_or(true)
        })
    };
    cases.into_iter().filter(fits).collect()
}

/// Returns the compression with the highest predicted throughput; `None` if the machine was not
/// measured for each of them.
fn fastest_compression(
    session: &Session<'_>,
    demand: JobWorkload,
    fitting: &[RunCompression],
) -> Option<RunCompression> {
    let rates = fitting
        .iter()
        .map(|compression| Some((predicted_rate(session, demand, *compression)?, *compression)));
    let rates: Vec<(f64, RunCompression)> = rates.collect::<Option<_>>()?;
    let fastest = rates.into_iter().max_by(|a, b| a.0.total_cmp(&b.0));
    fastest.map(|(_, compression)| compression.as_fastest())
}

/// Returns the tokens/s of a compression as predicted from the stored profiles. `None` if a profile
/// is missing, if a split is specified, or if weights may be read from drives.
fn predicted_rate(
    session: &Session<'_>,
    demand: JobWorkload,
    compression: RunCompression,
) -> Option<f64> {
    let PlacementChoice::Named(policy) = session.options.placement else { return None };
    if storage(session).ok()?.is_some() {
        return None;
    }
    let (limits, formats) = (limits(session, demand), resolve_formats(session, compression));
    let placement = Placement::from_policy(policy.without_parameters().unwrap_or(Policy::GpuOnly));
    let request = plan_request(session, demand, &formats, &limits, None, &placement);
    let Batches { count, size } = resolve_batches(session, demand, &request).ok()?;
    let shape = request.shape(count, size);
    let load_profile = |uses_gpu: bool| {
        let load = |hardware: Hardware| -> Result<_, Infallible> {
            let profile_request =
                profile::profile_request(request.config, &shape, &formats, hardware);
            Ok(profile::load_stored(&profile_request, hardware))
        };
        let hardware = Hardware::resolve(session, uses_gpu);
        let Ok(found) = profile::with_best_threads(session.options.cpu_threads, hardware, load);
        found.map(|(profile, _)| profile)
    };
    let is_alone = compares_without_device(policy) || policy.is_cpu_only();
    let profiles = Profiles {
        with_device: if policy.is_cpu_only() { None } else { Some(load_profile(true)?) },
        without_device: if is_alone { Some(load_profile(false)?) } else { None },
    };
    let question = SearchRequest {
        request: &request,
        batches: count,
        batch_size: size,
        policy,
        chunkings: &[None],
        pricing: &profiles,
        effort: SearchEffort::Quick,
        rehearser: None,
    };
    choose(&question).ok().map(|chosen| chosen.tokens_per_s())
}
