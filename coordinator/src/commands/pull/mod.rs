//! `coordinator pull`: fetches a model from a hub into the Hugging Face cache, where `--model
//! org/name` finds it.
//!
//! A partially fetched file is resumed; a complete one is compared with the hub's checksum before
//! it gets its name. The hub's data is not trusted: names are validated (`names`), lists and files
//! are bounded (`files`, `fetch`), and nothing is created outside the repository's folder
//! (`cache`).

mod cache;
mod check;
mod fetch;
mod files;
mod hub;
mod names;

use std::io::Write;
use std::path::{Path, PathBuf};

use anyhow::Context;
use model::locate::SearchPaths;

use crate::cli::request::PullRequest;
use cache::Repository;
use fetch::{FetchProgress, Fetcher};
use files::{HubFile, Listing, files_of_model};
use hub::Hub;
use names::is_path;
use session::argument_error::ArgumentError;
use session::exit::Exit;

const MIB: f64 = (1u64 << 20) as f64;
/// Folder of Hugging Face's programs in a user's cache folder.
const FOLDER: &str = "huggingface";
/// Default revision.
const DEFAULT_REVISION: &str = "main";

/// Fetches the missing files, and prints the path of the model.
///
/// # Errors
/// An error whose message is meant for the user.
pub fn run(request: &PullRequest) -> anyhow::Result<Exit> {
    let places = SearchPaths::from_environment(|name| std::env::var(name).ok());
    let cache = places.hub_cache.context("the folder for models is unknown; set HF_HOME")?;
    let revision = request.revision.as_deref().unwrap_or(DEFAULT_REVISION);
    if !is_path(revision) {
        let sentence = format!("--revision {revision} is not a branch, tag or commit");
        return Err(ArgumentError(sentence).into());
    }
    let hub = Hub::from_environment(read_token())?;
    let list = hub.list(&request.model, revision);
    let list = list.map_err(|error| error.user_message(&request.model, revision))?;
    let listing = Listing::parse(&list)?;
    let files = files_of_model(&listing, &request.files).map_err(|error| {
        if error.is_usage() {
            ArgumentError(error.to_string()).into()
        } else {
            anyhow::Error::new(error)
        }
    })?;
    let repository = Repository::open(&cache, &request.model)
        .with_context(|| format!("cannot use the folder for models {}", cache.display()))?;
    let is_missing = |file: &&HubFile| !repository.has(&listing.commit, &file.path);
    let missing: Vec<&HubFile> = files.iter().copied().filter(is_missing).collect();
    check_capacity(&repository, &missing)?;
    print_summary(request, &files, &missing);
    let mut progress = FetchProgress::new(size_bytes(&missing), request.quiet);
    let fetcher = Fetcher { hub: &hub, repository: &repository, listing: &listing, revision };
    for file in missing {
        fetcher.fetch(&request.model, file, &mut progress)?;
    }
    progress.finish();
    let snapshot = repository.snapshot(&listing.commit);
    repository
        .set_revision(revision, &listing.commit)
        .with_context(|| format!("{} cannot be named {revision}", snapshot.display()))?;
    // If stdout is closed, there is no reader to report the error to.
    let _ = writeln!(std::io::stdout(), "{}", snapshot.display());
    if !request.quiet {
        let revision = request.revision.as_ref();
        let revision = revision.map(|name| format!(" --revision {name}")).unwrap_or_default();
        eprintln!("run it with: coordinator --model {}{revision}", request.model);
    }
    Ok(Exit::Done)
}

/// Returns the token of `HF_TOKEN`, or the one that a login stored next to the cache.
fn read_token() -> Option<String> {
    let variable = |name: &str| std::env::var(name).ok().filter(|value| !value.trim().is_empty());
    let stored = || {
        let hf_home = variable("HF_HOME").map(PathBuf::from);
        let cache = || variable("XDG_CACHE_HOME").map(|cache| Path::new(&cache).join(FOLDER));
        let hf_home = hf_home
            .or_else(cache)
            .or_else(|| Some(Path::new(&variable("HOME")?).join(".cache").join(FOLDER)));
        std::fs::read_to_string(hf_home?.join("token")).ok()
    };
    let token = variable("HF_TOKEN").or_else(stored)?.trim().to_owned();
    (!token.is_empty()).then_some(token)
}

/// Returns the total size of the files for which the hub lists a size.
fn size_bytes(files: &[&HubFile]) -> u64 {
    files.iter().filter_map(|file| file.size_bytes).fold(0, u64::saturating_add)
}

/// Refuses to fetch files for which the disk lacks space.
fn check_capacity(repository: &Repository, missing: &[&HubFile]) -> anyhow::Result<()> {
    let partial_bytes =
        |file: &HubFile| file.checksum().map_or(0, |sum| repository.part_bytes(sum));
    let remaining_bytes =
        |file: &&HubFile| file.size_bytes.unwrap_or(0).saturating_sub(partial_bytes(file));
    let needed = missing.iter().map(remaining_bytes).fold(0, u64::saturating_add);
    let Ok(free) = repository.available_bytes() else { return Ok(()) };
    anyhow::ensure!(
        needed <= free,
        "{:.0} MiB remain to be fetched, but the disk of {} has {:.0} MiB free; set HF_HOME to \
         another folder",
        needed as f64 / MIB,
        repository.path().display(),
        free as f64 / MIB
    );
    Ok(())
}

fn print_summary(request: &PullRequest, files: &[&HubFile], missing: &[&HubFile]) {
    if request.quiet {
        return;
    }
    let size = |files: &[&HubFile]| size_bytes(files) as f64 / MIB;
    let name = &request.model;
    match missing.len() {
        0 => eprintln!("{name}: all {} files are present ({:.0} MiB)", files.len(), size(files)),
        count => eprintln!(
            "{name}: fetching {count} of {} files, {:.0} of {:.0} MiB",
            files.len(),
            size(missing),
            size(files)
        ),
    }
}
