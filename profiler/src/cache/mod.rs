//! Profiles on disk: one readable file per profiled configuration, replaced as a whole.
//!
//! A file is written under a temporary name in the same directory, synced, and renamed; a process
//! that dies at any instant leaves the earlier file or the new one, never a part. A file that was
//! torn or edited is refused with a reason and measured again. The checksum covers the
//! measurements; the fingerprint needs none, since any change to it is found, and named, by
//! comparison.

use std::fs;
use std::io::{self, Write};
use std::path::{Path, PathBuf};

use atomic_fs::{Directory, PRIVATE_DIRECTORY_MODE, PRIVATE_MODE};
use serde::{Deserialize, Serialize};
use serde_json::Value;
use sha2::{Digest, Sha256};

use crate::fingerprint::Fingerprint;
use crate::profile::{CompletedRun, Profile, ProfileMeasurements, VERSION};

/// Reason for which a cached profile is not used.
#[derive(Debug, thiserror::Error)]
pub enum CacheMiss {
    #[error("there is no profile yet")]
    Missing,
    #[error("the cached profile {} cannot be read: {source}", .path.display())]
    Unreadable { path: PathBuf, source: io::Error },
    #[error("the profile {} is damaged: {reason}", .path.display())]
    Damaged { path: PathBuf, reason: String },
    #[error(
        "the profile {} has version {found}, but this program uses version {VERSION}",
        .path.display()
    )]
    Version { path: PathBuf, found: u64 },
    #[error("the machine or the profiled configuration has changed: {}", .differences.join("; "))]
    Changed { differences: Vec<String> },
    #[error("a new profile was requested")]
    Forced,
}

/// Error: a profile could not be stored.
#[derive(Debug, thiserror::Error)]
#[error("The profile could not be written to {}: {source}", .path.display())]
pub struct ProfileStoreError {
    pub path: PathBuf,
    pub source: io::Error,
}

#[derive(Serialize, Deserialize)]
struct Envelope {
    version: u32,
    fingerprint: Fingerprint,
    /// SHA-256 of `measurements` as compact JSON.
    checksum: String,
    measurements: Value,
}

/// A step of writing a file, before which a test may fail.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum WriteStep {
    Create,
    Write,
    Sync,
    Rename,
    SyncDirectory,
}

/// A directory of profiles.
#[derive(Debug, Clone)]
pub struct ProfileCache {
    directory: PathBuf,
}

impl ProfileCache {
    /// Returns the cache in `directory`, which need not exist yet.
    pub fn new(directory: impl Into<PathBuf>) -> ProfileCache {
        ProfileCache { directory: directory.into() }
    }

    /// Returns the user's cache, `$XDG_CACHE_HOME/tandem` or `~/.cache/tandem`; `None` without a
    /// home directory.
    pub fn of_user() -> Option<ProfileCache> {
        let absolute = |name: &str| {
            std::env::var_os(name).map(PathBuf::from).filter(|path| path.is_absolute())
        };
        let base = absolute("XDG_CACHE_HOME").or_else(|| Some(absolute("HOME")?.join(".cache")))?;
        Some(ProfileCache::new(base.join("tandem")))
    }

    /// Returns the directory of the profiles, which need not exist.
    pub fn directory(&self) -> &Path {
        &self.directory
    }

    /// Returns the path of the profile with this fingerprint.
    pub fn path(&self, fingerprint: &Fingerprint) -> PathBuf {
        self.directory.join(format!("profile-{}.json", fingerprint.key()))
    }

    /// Loads the profile that is valid for `fingerprint`.
    ///
    /// # Errors
    /// The reason for which there is none.
    pub fn load(&self, fingerprint: &Fingerprint) -> Result<Profile, CacheMiss> {
        let profile = read(&self.path(fingerprint))?;
        let differences = profile.fingerprint.differences(fingerprint);
        if differences.is_empty() { Ok(profile) } else { Err(CacheMiss::Changed { differences }) }
    }

    /// Adds a completed run to its stored profile; returns `false` if there is none. If two runs
    /// end at the same instant, one may be lost.
    ///
    /// # Errors
    /// Fails like [`ProfileCache::store`].
    pub fn record_finished(
        &self,
        fingerprint: &Fingerprint,
        run: CompletedRun,
    ) -> Result<bool, ProfileStoreError> {
        let Ok(mut profile) = self.load(fingerprint) else { return Ok(false) };
        profile.measurements.add_run(run);
        self.store(&profile).map(|_| true)
    }

    /// Removes the rehearsals from this profile and from its sibling with or without a device: if
    /// one of them is in doubt, so is the choice between them.
    ///
    /// # Errors
    /// Fails like [`ProfileCache::store`].
    pub fn forget_rehearsals(&self, fingerprint: &Fingerprint) -> Result<(), ProfileStoreError> {
        let Ok(entries) = fs::read_dir(&self.directory) else { return Ok(()) };
        for path in entries.flatten().map(|entry| entry.path()) {
            let is_profile = path.extension().is_some_and(|extension| extension == "json");
            // A file that cannot be read as a profile has no rehearsals that would be used.
            let Some(mut profile) = is_profile.then(|| read(&path).ok()).flatten() else {
                continue;
            };
            let is_sibling = profile.fingerprint.is_sibling(fingerprint);
            if is_sibling && !profile.measurements.rehearsals.is_empty() {
                profile.measurements.rehearsals.clear();
                self.store(&profile)?;
            }
        }
        Ok(())
    }

    /// Stores a profile, replacing the earlier one.
    ///
    /// # Errors
    /// A directory or file that cannot be written; the earlier profile still exists then.
    pub fn store(&self, profile: &Profile) -> Result<PathBuf, ProfileStoreError> {
        self.store_with(profile, &mut |_| Ok(()))
    }

    fn store_with(
        &self,
        profile: &Profile,
        before: &mut dyn FnMut(WriteStep) -> io::Result<()>,
    ) -> Result<PathBuf, ProfileStoreError> {
        let path = self.path(&profile.fingerprint);
        match self.replace(profile, &path, before) {
            Ok(()) => Ok(path),
            Err(source) => Err(ProfileStoreError { path, source }),
        }
    }

    fn replace(
        &self,
        profile: &Profile,
        path: &Path,
        before: &mut dyn FnMut(WriteStep) -> io::Result<()>,
    ) -> io::Result<()> {
        let text = encode(profile)?;
        let directory = Directory::create(&self.directory, PRIVATE_DIRECTORY_MODE)?;
        self.remove_litter();
        before(WriteStep::Create)?;
        let name = path.file_name().unwrap_or_default();
        let prefix = format!("{}.{}-", name.display(), std::process::id());
        let temporary = directory.temporary_file(&prefix, "", PRIVATE_MODE)?;
        let mut file = temporary.file();
        let (first, second) = text.as_bytes().split_at(text.len() / 2);
        file.write_all(first)?;
        before(WriteStep::Write)?;
        file.write_all(second)?;
        before(WriteStep::Sync)?;
        file.sync_all()?;
        before(WriteStep::Rename)?;
        temporary.persist(name)?;
        before(WriteStep::SyncDirectory)?;
        directory.sync()
    }

    /// Removes the unfinished files of processes that no longer exist.
    fn remove_litter(&self) {
        let Ok(entries) = fs::read_dir(&self.directory) else { return };
        for entry in entries.flatten() {
            let name = entry.file_name();
            let owner = name.to_str().and_then(|name| {
                let (_, rest) = name.strip_prefix("profile-")?.split_once(".json.")?;
                // Earlier versions wrote no random digits behind it.
                let pid = rest.split_once('-').map_or(rest, |(pid, _)| pid);
                pid.parse::<u32>().ok()
            });
            if owner.is_some_and(|pid| !Path::new("/proc").join(pid.to_string()).exists()) {
                let _ = fs::remove_file(entry.path());
            }
        }
    }
}

/// Reads the profile in a file, regardless of its machine.
fn read(path: &Path) -> Result<Profile, CacheMiss> {
    let text = match fs::read_to_string(path) {
        Ok(text) => text,
        Err(error) if error.kind() == io::ErrorKind::NotFound => return Err(CacheMiss::Missing),
        Err(source) => return Err(CacheMiss::Unreadable { path: path.to_owned(), source }),
    };
    decode(&text, path)
}

/// Decodes the text of a profile, which [`encode`] produced, stored at a path.
///
/// # Errors
/// A text that was torn, edited or written by another version.
pub fn decode(text: &str, path: &Path) -> Result<Profile, CacheMiss> {
    let damaged = |reason: String| CacheMiss::Damaged { path: path.to_owned(), reason };
    let value: Value = serde_json::from_str(text)
        .map_err(|error| damaged(format!("it is not complete JSON ({error})")))?;
    match value.get("version").and_then(Value::as_u64) {
        Some(found) if found == u64::from(VERSION) => {}
        Some(found) => return Err(CacheMiss::Version { path: path.to_owned(), found }),
        None => return Err(damaged("it has no version".to_owned())),
    }
    let envelope: Envelope = serde_json::from_value(value)
        .map_err(|error| damaged(format!("it is not a profile ({error})")))?;
    if checksum(&envelope.measurements) != envelope.checksum {
        return Err(damaged("its measurements do not match their checksum".to_owned()));
    }
    let measurements: ProfileMeasurements = serde_json::from_value(envelope.measurements)
        .map_err(|error| damaged(format!("its measurements are incomplete ({error})")))?;
    Ok(Profile { fingerprint: envelope.fingerprint, measurements })
}

/// Encodes a profile as the text that is stored.
///
/// # Errors
/// None for a profile that was measured.
pub fn encode(profile: &Profile) -> io::Result<String> {
    let measurements = serde_json::to_value(&profile.measurements)?;
    let envelope = Envelope {
        version: VERSION,
        fingerprint: profile.fingerprint.clone(),
        checksum: checksum(&measurements),
        measurements,
    };
    Ok(serde_json::to_string_pretty(&envelope)? + "\n")
}

/// Computes the checksum of a value, not of its text: indentation may change.
fn checksum(value: &Value) -> String {
    Sha256::digest(value.to_string()).iter().map(|byte| format!("{byte:02x}")).collect()
}

#[cfg(test)]
mod tests;
