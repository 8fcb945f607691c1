//! Profiles of this machine: the profile that a run needs, where it comes from (the cache, or a
//! measurement by the workers), and how many CPU threads it recommends.

use std::sync::Arc;
use std::time::Duration;

use engine::bench::WorkerRunner;
use engine::launch::LaunchOptions;
use model::config::ModelConfig;
use planner::policy::Formats;
use profiler::{LoadedProfile, Profile, ProfileCache, ProfilingRequest, load_or_measure};
use program::cuda_gaps::{gap_name, model_gap};
use program::map::{ChunkOrder, Chunking};
use program::plan::RunShape;
use protocol::messages::WeightsOrigin;
use workers::error::WorkerError;

use super::argument_error::ArgumentError;
use super::hardware::Hardware;
use super::progress_reporter::ProgressReporter;
use crate::interrupt::Interrupt;
use crate::request::Verbosity;

/// Number of chunks into which splits may divide attention; measured for runs with a device.
pub const ATTENTION_CHUNKS: u16 = 8;

/// Split of linears in the search for a placement. Each piece is priced by its share of the whole,
/// so it requires no measurement.
pub const LINEAR_CHUNKING: Chunking =
    Chunking { order: ChunkOrder::Linears, chunks: ATTENTION_CHUNKS };

/// Environment variable with the seconds that a profile may take, instead of the default; fewer
/// seconds measure fewer points.
const BUDGET_ENV: &str = "TANDEM_PROFILE_S";

/// Returns true if a batch has enough units, which are sequences x KV heads, to divide attention
/// into [`ATTENTION_CHUNKS`] chunks.
pub fn can_split_attention(config: &ModelConfig, batch_size: u16) -> bool {
    // An indexer selects positions of whole caches.
    config.features.indexer.is_none()
        && config.num_kv_heads * usize::from(batch_size) >= usize::from(ATTENTION_CHUNKS)
}

/// Returns the ways to split attention that a profile measured and for which a batch has enough
/// units.
pub fn chunkings(profile: &Profile, config: &ModelConfig, batch_size: u16) -> Vec<Chunking> {
    let measured = profile.fingerprint.profiled.get("attention parts");
    let is_measured = measured.is_some_and(|parts| *parts == format!("{:?}", [ATTENTION_CHUNKS]));
    if !is_measured || !can_split_attention(config, batch_size) {
        return Vec::new();
    }
    // Values that are in the cache of the keys would be in parts.
    let orders = match config.has_single_cache() {
        true => vec![ChunkOrder::Attention],
        false => vec![ChunkOrder::Scores, ChunkOrder::Attention],
    };
    let chunking = |order| Chunking { order, chunks: ATTENTION_CHUNKS };
    orders.into_iter().map(chunking).collect()
}

/// Returns the request for the profile that a run of this shape needs.
pub fn profile_request(
    config: &ModelConfig,
    shape: &RunShape,
    formats: &Formats,
    hardware: Hardware,
) -> ProfilingRequest {
    let mut request = ProfilingRequest::for_shape(config, shape, hardware.threads);
    request.weight_formats = vec![formats.weights.clone()];
    request.kv_formats = vec![formats.kv];
    request.device = hardware.describe_device();
    let seconds = std::env::var(BUDGET_ENV).ok().and_then(|text| text.parse().ok());
    request.budget = seconds.map_or(request.budget, Duration::from_secs);
    if hardware.has_device() && can_split_attention(config, shape.batch_size) {
        request.chunks = vec![ATTENTION_CHUNKS];
    }
    request
}

/// Returns the stored profile, if it is valid for this machine in its present state.
pub fn load_stored(request: &ProfilingRequest, hardware: Hardware) -> Option<Profile> {
    let fingerprint = profiler::Fingerprint::new(request, &hardware.describe_machine());
    ProfileCache::of_user()?.load(&fingerprint).ok()
}

/// Returns the stored profile, or measures one and reports that to `reporter`.
///
/// # Errors
/// A model with an operation that the kernels of the device lack, workers that failed, or an
/// interrupt.
pub fn obtain(
    request: &ProfilingRequest,
    hardware: Hardware,
    force: bool,
    reporter: &ProgressReporter,
    interrupt: &Interrupt,
) -> anyhow::Result<LoadedProfile> {
    let gap = |kv| Some((kv, model_gap(&request.config, kv)?));
    let gap = request.kv_formats.iter().copied().find_map(gap);
    if let Some((kv, op)) = hardware.cuda.and(gap) {
        let op = gap_name(&request.config, kv, op);
        // The worker would report the same error, but only after it has loaded weights.
        return Err(ArgumentError(WorkerError::NotOnDevice { op }.to_string()).into());
    }
    let reason = match &request.config {
        config if config.has_kind_models() => {
            Some("layers of different sizes, of which a profile measures one")
        }
        config if config.features.streams.is_some() => {
            Some("a residual of several streams, whose operations a profile does not measure")
        }
        _ => None,
    };
    if let Some(reason) = reason {
        let name = &request.config.name;
        let reason = format!("{name} has {reason}; choose a placement with --policy or --split");
        return Err(ArgumentError(reason).into());
    }
    let mut runner = runner(hardware, reporter.verbosity(), interrupt);
    let cache = ProfileCache::of_user();
    let mut is_announced = false;
    let mut progress = |done: u64, total: u64, what: &str| {
        if !std::mem::replace(&mut is_announced, true) {
            reporter.print_line(&announcement(request));
        }
        reporter.update(&format!("profiling {what}"), Some(done as f64 / total.max(1) as f64));
    };
    let machine = hardware.describe_machine();
    let found =
        load_or_measure(cache.as_ref(), request, &machine, force, &mut runner, &mut progress)?;
    report_result(&found, cache.as_ref(), reporter);
    Ok(found)
}

/// Returns the message that is printed before the machine is measured.
fn announcement(request: &ProfilingRequest) -> String {
    format!(
        "measuring this machine for {} with {} CPU thread{}, once: this takes {} s, or longer if \
         the model's shapes are large or the machine is busy",
        request.config.name,
        request.threads.cpu,
        if request.threads.cpu == 1 { "" } else { "s" },
        request.budget.as_secs()
    )
}

/// Returns the profile for the number of CPU threads that the profile for all cores found to be the
/// best, and that number if it differs. `load` measures a profile or returns a stored one. If it
/// returns none for that number, or if a number was `requested` for, the profile for the threads of
/// `hardware` is returned.
///
/// # Errors
/// An error of `load`.
pub fn with_best_threads<E>(
    requested: Option<u16>,
    hardware: Hardware,
    mut load: impl FnMut(Hardware) -> Result<Option<Profile>, E>,
) -> Result<Option<(Profile, Option<u16>)>, E> {
    match requested {
        Some(_) => Ok(load(hardware)?.map(|profile| (profile, None))),
        None => select_best(hardware, |profile| profile.measurements.best_cpu_threads, load),
    }
}

fn select_best<P, E>(
    hardware: Hardware,
    best: impl Fn(&P) -> u16,
    mut load: impl FnMut(Hardware) -> Result<Option<P>, E>,
) -> Result<Option<(P, Option<u16>)>, E> {
    let Some(first) = load(hardware)? else { return Ok(None) };
    let best = best(&first);
    if best == hardware.threads.cpu {
        return Ok(Some((first, None)));
    }
    Ok(Some(match load(hardware.with_cpu_threads(best))? {
        Some(tuned) => (tuned, Some(best)),
        None => (first, None),
    }))
}

/// Returns a runner that starts workers for the profiler's plans.
pub(crate) fn runner(
    hardware: Hardware,
    verbosity: Verbosity,
    interrupt: &Interrupt,
) -> WorkerRunner {
    let signals = interrupt.clone();
    let launch = hardware.launch_options(WeightsOrigin::Dummy { seed: 0 });
    WorkerRunner {
        options: LaunchOptions { quiet: verbosity == Verbosity::Quiet, ..launch },
        interrupt: Arc::new(Box::new(move || signals.is_requested())),
    }
}

fn report_result(found: &LoadedProfile, cache: Option<&ProfileCache>, reporter: &ProgressReporter) {
    let measurements = &found.profile.measurements;
    let location = cache.map_or_else(
        || "nowhere".to_owned(),
        |cache| cache.path(&found.profile.fingerprint).display().to_string(),
    );
    match &found.measured_because {
        Some(reason) => reporter.print_line(&format!(
            "measured this machine in {:.1} s ({reason}); stored in {location}",
            measurements.took_ms as f64 / 1e3
        )),
        None if reporter.verbosity() >= Verbosity::Normal => {
            reporter.print_line(&format!("measured before, stored in {location}"));
        }
        None => {}
    }
    if let Some(error) = &found.not_stored {
        reporter.print_line(&error.to_string());
    }
}

#[cfg(test)]
mod tests {
    use std::convert::Infallible;

    use profiler::ComputeThreads;

    use super::super::hardware::Hardware;
    use super::select_best;

    /// Calls [`select_best`] with profiles that consist of nothing but a number of threads.
    fn found(kept: &[u16], best: u16) -> Option<(u16, Option<u16>)> {
        let hardware =
            Hardware { threads: ComputeThreads { cpu: 8, gpu: 1 }, emulated: None, cuda: None };
        let measure = |hardware: Hardware| -> Result<Option<u16>, Infallible> {
            assert_eq!(hardware.threads.gpu, 1);
            Ok(Some(hardware.threads.cpu).filter(|cpu| kept.contains(cpu)))
        };
        let Ok(found) = select_best(hardware, |_| best, measure);
        found
    }

    #[test]
    fn the_profile_is_that_for_the_best_number_of_threads() {
        assert_eq!(found(&[8, 4], 8), Some((8, None)));
        assert_eq!(found(&[8, 4], 4), Some((4, Some(4))));
        assert_eq!(found(&[8], 4), Some((8, None)), "nothing is known with four");
        assert_eq!(found(&[], 4), None);
    }
}
