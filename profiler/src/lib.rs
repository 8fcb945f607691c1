//! Measures this machine through the real worker code (Park-Egger §4.1).
//!
//! Profiling is running proved programs in the real workers and reading their trace. A plan is
//! data: [`run::profile`] makes plans of one layer's true shapes (`experiment/`, over `bench.rs`
//! and `stages.rs`), hands them to a [`Runner`], sorts the spans into samples by what they did,
//! where and beside whom (`recorder.rs`), and sums them up as a [`Profile`]. [`ProfileCosts`]
//! prices any plan of the model with it for the simulator. [`cached`] keeps profiles per thing
//! profiled and notices a changed machine by its [`Fingerprint`].
//!
//! Used by the coordinator (`profile`, and before planning). Invariants:
//! - Plans are proved free of deadlocks and races before a runner gets them.
//! - Work is measured and priced by the same [`key::Key`]; what was not measured is an error, never
//!   a guess (the exceptions are listed in [`costs`]).
//! - Nothing here depends on a policy.

mod bench;
mod book;
pub mod cache;
mod contention;
pub mod costs;
mod equals;
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

pub use cache::{Cache, Rejected, StoreError};
pub use costs::{ProfileCosts, Unpriced, Workload};
pub use error::ProfileError;
pub use fingerprint::Fingerprint;
pub use machine::{Gpu, Machine};
pub use plan_key::plan_key;
pub use profile::{Correction, End, Finished, Profile, Rehearsal, RunTimes, Skipped};
pub use rehearsal::rehearse;
pub use repeat::REPETITIONS_MIN;
pub use request::{Request, Threads};
pub use run::Progress;
pub use runner::{Runner, RunnerError, Session};

/// A profile, and why it was made anew.
#[derive(Debug)]
pub struct Cached {
    pub profile: Profile,
    /// `None`: it was in the cache.
    pub measured_because: Option<Rejected>,
    /// Why the new profile could not be kept; it is valid all the same.
    pub not_stored: Option<StoreError>,
}

/// The profile of `request` on `machine`: from the cache, or measured and kept there. `force`
/// measures in any case, and drops what was rehearsed with the earlier profile and with its sibling
/// with or without a device. While it measures, an earlier profile stays where it is.
///
/// # Errors
/// A runner that failed or was interrupted.
pub fn cached(
    cache: Option<&Cache>,
    request: &Request,
    machine: &Machine,
    force: bool,
    runner: &mut dyn Runner,
    progress: &mut Progress<'_>,
) -> Result<Cached, ProfileError> {
    let fingerprint = Fingerprint::of(request, machine);
    let found = match (force, cache) {
        (true, _) => Err(Rejected::Forced),
        (false, None) => Err(Rejected::Missing),
        (false, Some(cache)) => cache.load(&fingerprint),
    };
    let reason = match found {
        Ok(profile) => {
            return Ok(Cached { profile, measured_because: None, not_stored: None });
        }
        Err(reason) => reason,
    };
    let profile = run::profile(request, machine, runner, progress)?;
    let store = |cache: &Cache| {
        cache.store(&profile)?;
        if force { cache.forget_rehearsals(&profile.fingerprint) } else { Ok(()) }
    };
    let not_stored = cache.and_then(|cache| store(cache).err());
    Ok(Cached { profile, measured_because: Some(reason), not_stored })
}
