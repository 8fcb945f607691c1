//! `coordinator pull`: fetches a model from a hub into the Hugging Face cache, where `--model
//! org/name` finds it.
//!
//! A file that was fetched in part goes on where it ended; what is whole is compared with the hub's
//! checksum before the model can be used.

mod check;
mod files;

use std::io::Write;
use std::path::{Path, PathBuf};

use anyhow::Context;
use hf_hub::api::sync::{ApiBuilder, ApiError, ApiRepo};
use hf_hub::{Cache, Repo, RepoType};
use model::locate::Places;

use crate::cli::request::PullRequest;
use crate::exit::Exit;
use crate::setup::bar::Bar;
use crate::setup::usage::Usage;
use check::is_whole;
use files::{HubFile, Listing, files_of_model};

const MIB: f64 = (1u64 << 20) as f64;
/// Connections that are tried again where one breaks.
const RETRIES: usize = 3;
/// The revision unless one is named.
const MAIN: &str = "main";

/// Fetches what is not there yet, and prints where it is.
///
/// # Errors
/// A sentence for the user.
pub fn run(request: &PullRequest) -> anyhow::Result<Exit> {
    let places = Places::from_environment(|name| std::env::var(name).ok());
    let cache = places.hub_cache.context("there is no folder for models; set HF_HOME to one")?;
    let hub = Hub::of(request, cache)?;
    let listing = hub.listing()?;
    let files =
        files_of_model(&listing, &request.files).map_err(|error| Usage(error.to_string()))?;
    let snapshot = hub.folder.join("snapshots").join(&listing.sha);
    let missing: Vec<&HubFile> =
        files.iter().copied().filter(|file| !snapshot.join(&file.rfilename).is_file()).collect();
    check_room(&hub, &missing)?;
    say(request, &files, &missing);
    let total_bytes = missing.iter().map(|file| file.size_bytes()).sum();
    let mut progress = Fetched::new(total_bytes, request.quiet);
    for file in missing {
        hub.fetch(file, &mut progress)?;
    }
    progress.bar.end();
    // A closed stdout leaves nobody to tell.
    let _ = writeln!(std::io::stdout(), "{}", snapshot.display());
    if !request.quiet {
        let revision = request.revision.as_ref();
        let revision = revision.map(|name| format!(" --revision {name}")).unwrap_or_default();
        eprintln!("Use it: coordinator --model {}{revision}", request.model);
    }
    Ok(Exit::Done)
}

/// A repository of a hub, and its folder in the cache.
struct Hub<'a> {
    request: &'a PullRequest,
    api: ApiRepo,
    cache: Cache,
    repo: Repo,
    folder: PathBuf,
}

impl<'a> Hub<'a> {
    fn of(request: &'a PullRequest, cache: PathBuf) -> anyhow::Result<Hub<'a>> {
        let revision = request.revision.clone().unwrap_or_else(|| MAIN.to_owned());
        let repo = Repo::with_revision(request.model.clone(), RepoType::Model, revision);
        let folder = cache.join(repo.folder_name());
        let mut builder = ApiBuilder::from_env().with_cache_dir(cache.clone());
        if let Some(token) = std::env::var("HF_TOKEN").ok().filter(|token| !token.is_empty()) {
            builder = builder.with_token(Some(token));
        }
        let builder =
            builder.with_retries(RETRIES).with_user_agent("tandem", env!("CARGO_PKG_VERSION"));
        let api = builder.build().context("no connection can be prepared")?.repo(repo.clone());
        Ok(Hub { request, api, cache: Cache::new(cache), repo, folder })
    }

    /// What the repository holds.
    fn listing(&self) -> anyhow::Result<Listing> {
        let reply = self.api.info_request().query("blobs", "true").call();
        let mut reply = reply.map_err(|error| self.sentence(&error))?;
        let listing = reply.body_mut().read_json().map_err(|error| self.sentence(&error));
        listing.context("the hub's list of files cannot be read")
    }

    /// Fetches a file, or the rest of it, and compares it with its checksum.
    fn fetch(&self, file: &HubFile, progress: &mut Fetched) -> anyhow::Result<()> {
        let name = &file.rfilename;
        self.remove_whole_part(file)?;
        let fetched = self.api.download_with_progress(name, &mut *progress);
        let pointer = fetched.map_err(|error| match error {
            ApiError::RequestError(error) => self.sentence(&error),
            error => anyhow::Error::new(error).context(format!(
                "{name} was not fetched whole; the same command again goes on where it ended"
            )),
        })?;
        progress.end_file(file.size_bytes());
        let blob = std::fs::canonicalize(&pointer).with_context(|| format!("{name} is gone"))?;
        if is_whole(&blob, file).with_context(|| format!("{} cannot be read", blob.display()))? {
            return Ok(());
        }
        for path in [&pointer, &blob] {
            std::fs::remove_file(path)
                .with_context(|| format!("{} is damaged and cannot be removed", path.display()))?;
        }
        anyhow::bail!("{name} came damaged and was removed; run the same command again")
    }

    /// A part that has all bytes, as an earlier run left that ended just before the file had its
    /// name: there is nothing behind them that a hub could be asked for.
    fn remove_whole_part(&self, file: &HubFile) -> anyhow::Result<()> {
        let Some(part) = file.checksum().map(|checksum| self.part(checksum)) else {
            return Ok(());
        };
        if length(&part) < file.size_bytes().max(1) {
            return Ok(());
        }
        std::fs::remove_file(&part).with_context(|| format!("{} cannot be removed", part.display()))
    }

    /// Where a file is while it is fetched.
    fn part(&self, checksum: &str) -> PathBuf {
        self.cache.repo(self.repo.clone()).blob_path(checksum).with_extension("part")
    }

    /// What a failed request means.
    fn sentence(&self, error: &ureq::Error) -> anyhow::Error {
        let name = &self.request.model;
        let revision = self.repo.revision();
        match error {
            ureq::Error::StatusCode(401 | 403) => anyhow::anyhow!(
                "the hub does not give {name} to everybody, or has no such model; set HF_TOKEN to \
                 a token of an account that may read it"
            ),
            ureq::Error::StatusCode(404) => {
                anyhow::anyhow!("the hub has no {name} at revision {revision}")
            }
            ureq::Error::StatusCode(status) => {
                anyhow::anyhow!("the hub answered with status {status}; try it again later")
            }
            error => anyhow::anyhow!(
                "the hub cannot be reached ({error}). Where there is no network, copy the model's \
                 folder and give its path as --model; HF_ENDPOINT names another hub"
            ),
        }
    }
}

/// Refuses what the disk has no room for.
fn check_room(hub: &Hub<'_>, missing: &[&HubFile]) -> anyhow::Result<()> {
    std::fs::create_dir_all(&hub.folder)
        .with_context(|| format!("{} cannot be made", hub.folder.display()))?;
    let kept = |file: &HubFile| file.checksum().map_or(0, |sum| length(&hub.part(sum)));
    let needed: u64 = missing.iter().map(|file| file.size_bytes().saturating_sub(kept(file))).sum();
    let Ok(disk) = rustix::fs::statvfs(&hub.folder) else { return Ok(()) };
    let free = disk.f_bavail * disk.f_frsize;
    let folder = hub.folder.display();
    anyhow::ensure!(
        needed <= free,
        "{:.0} MiB are to be fetched, and the disk of {folder} has {:.0} MiB left; HF_HOME names \
         another folder",
        needed as f64 / MIB,
        free as f64 / MIB
    );
    Ok(())
}

/// Of a file; 0 where there is none.
fn length(path: &Path) -> u64 {
    std::fs::metadata(path).map_or(0, |file| file.len())
}

fn say(request: &PullRequest, files: &[&HubFile], missing: &[&HubFile]) {
    if request.quiet {
        return;
    }
    let size =
        |files: &[&HubFile]| files.iter().map(|file| file.size_bytes()).sum::<u64>() as f64 / MIB;
    let name = &request.model;
    match missing.len() {
        0 => eprintln!("{name}: all {} files are here ({:.0} MiB)", files.len(), size(files)),
        count => eprintln!(
            "{name}: fetching {count} of {} files, {:.0} of {:.0} MiB",
            files.len(),
            size(missing),
            size(files)
        ),
    }
}

/// How far all files together are.
struct Fetched {
    bar: Bar,
    total_bytes: u64,
    /// Of the files before this one, and of this one.
    before_bytes: u64,
    of_file_bytes: u64,
}

impl Fetched {
    fn new(total_bytes: u64, quiet: bool) -> Fetched {
        Fetched { bar: Bar::new("fetching", quiet), total_bytes, before_bytes: 0, of_file_bytes: 0 }
    }

    fn end_file(&mut self, size_bytes: u64) {
        self.before_bytes += size_bytes;
        self.of_file_bytes = 0;
    }
}

impl hf_hub::api::Progress for &mut Fetched {
    fn init(&mut self, _: usize, _: &str) {
        // Again where a connection is: what is there is told as the first piece.
        self.of_file_bytes = 0;
    }

    fn update(&mut self, bytes: usize) {
        self.of_file_bytes += bytes as u64;
        self.bar.update(self.before_bytes + self.of_file_bytes, self.total_bytes);
    }

    fn finish(&mut self) {}
}
