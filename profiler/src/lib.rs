//! Measures this machine through the real worker code (Park-Egger §4.1).
//!
//! Profiling runs proved programs in the real workers and reads their trace. A plan is data:
//! [`run::profile`] makes plans with the true shapes of one layer (`experiment/`, using `bench.rs`
//! and `stages.rs`), hands them to a [`Runner`], sorts the spans into samples by their work, lane
//! and concurrent lanes (`recorder.rs`), and summarises them as a [`Profile`]. [`ProfileCosts`]
//! prices any plan of the model with it for the simulator. [`load_or_measure`] stores profiles per
//! profiled configuration and notices a changed machine by its [`Fingerprint`].
//!
//! Used by the coordinator (`profile`, and before planning). Invariants:
//! - Plans are proved free of deadlocks and races before a runner gets them.
//! - Work is measured and priced by the same [`key::WorkKey`]; what was not measured is an error,
//!   never a guess (the exceptions are listed in [`costs`]).
//! - Nothing here depends on a policy.

mod bench;
pub mod cache;
mod contention;
mod cost_table;
pub mod costs;
mod equal_work;
mod error;
mod experiment;
mod fingerprint;
mod fit;
pub mod key;
mod lane_names;
pub mod machine;
mod plan_key;
mod price;
pub mod profile;
pub mod rates;
mod recorder;
pub mod rehearsal;
mod repeat;
mod request;
pub mod run;
mod runner;
mod stages;
pub mod stat;
mod surface;

pub use cache::{CacheMiss, ProfileCache, ProfileStoreError};
pub use costs::{ProfileCostError, ProfileCosts, RunLength};
pub use error::ProfileError;
pub use fingerprint::Fingerprint;
pub use machine::{GpuInfo, MachineIdentity};
pub use plan_key::plan_key;
pub use profile::{
    CompletedRun, Correction, Profile, RehearsalTimes, RunTimes, SkippedPoint, UncertaintyBound,
};
pub use rehearsal::rehearse;
pub use repeat::REPETITIONS_MIN;
pub use request::{ComputeThreads, ProfilingRequest};
pub use run::ProfileProgress;
pub use runner::{Runner, RunnerError, RunnerSession};

/// A profile, and the reason for which it was measured.
#[derive(Debug)]
pub struct LoadedProfile {
    pub profile: Profile,
    /// `None` if it was in the cache.
    pub measured_because: Option<CacheMiss>,
    /// Error if the new profile could not be stored; it is valid nevertheless.
    pub not_stored: Option<ProfileStoreError>,
}

/// Returns the profile of `request` on `machine`: from the cache, or measured and stored there.
/// `force` always measures, and removes what was rehearsed with the earlier profile and with its
/// sibling with or without a device. An earlier profile stays in place during the measurement.
///
/// # Errors
/// A runner that failed or was interrupted.
pub fn load_or_measure(
    cache: Option<&ProfileCache>,
    request: &ProfilingRequest,
    machine: &MachineIdentity,
    force: bool,
    runner: &mut dyn Runner,
    progress: &mut ProfileProgress<'_>,
) -> Result<LoadedProfile, ProfileError> {
    let fingerprint = Fingerprint::new(request, machine);
    let found = match (force, cache) {
        (true, _) => Err(CacheMiss::Forced),
        (false, None) => Err(CacheMiss::Missing),
        (false, Some(cache)) => cache.load(&fingerprint),
    };
    let reason = match found {
        Ok(profile) => {
            return Ok(LoadedProfile { profile, measured_because: None, not_stored: None });
        }
        Err(reason) => reason,
    };
    let profile = run::profile(request, machine, runner, progress)?;
    let store = |cache: &ProfileCache| {
        cache.store(&profile)?;
        if force { cache.forget_rehearsals(&profile.fingerprint) } else { Ok(()) }
    };
    let not_stored = cache.and_then(|cache| store(cache).err());
    Ok(LoadedProfile { profile, measured_because: Some(reason), not_stored })
}
