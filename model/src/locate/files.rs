//! Files of a model's directory, looked at before anything is read: whether they are there, and
//! themselves.

use std::collections::BTreeSet;
use std::fs::File;
use std::io::Read;
use std::path::{Path, PathBuf};

use super::LocateError;
use crate::source::gguf::{first_part, part_paths};

/// How the text begins that Git LFS leaves where a file was not fetched.
const POINTER: &[u8] = b"version https://git-lfs.github.com/spec/";
const INDEX: &str = "model.safetensors.index.json";

/// Refuses what Git LFS leaves in place of a file. What is not there is told elsewhere.
///
/// # Errors
/// A pointer, with what fetches the file.
pub(super) fn check_pointer(model: &str, file: &Path) -> Result<(), LocateError> {
    let mut start = Vec::new();
    let read = File::open(file)
        .and_then(|opened| opened.take(POINTER.len() as u64).read_to_end(&mut start));
    match read {
        Ok(_) if start == POINTER => {
            let shown = file.file_name().unwrap_or(file.as_os_str()).to_string_lossy().into();
            Err(LocateError::LfsPointer { model: model.to_owned(), file: shown })
        }
        _ => Ok(()),
    }
}

/// Checks the weights of a directory, one file or those that its index names.
///
/// # Errors
/// Files that are missing, or pointers of Git LFS. An index that cannot be read is told by whoever
/// reads it.
pub(super) fn check_shards(model: &str, directory: &Path) -> Result<(), LocateError> {
    let single = directory.join("model.safetensors");
    if single.is_file() {
        return check_pointer(model, &single);
    }
    check_pointer(model, &directory.join(INDEX))?;
    let text = std::fs::read_to_string(directory.join(INDEX)).unwrap_or_default();
    let index: serde_json::Value = serde_json::from_str(&text).unwrap_or_default();
    let named = index["weight_map"].as_object().into_iter().flat_map(|map| map.values());
    let names: BTreeSet<&str> = named.filter_map(serde_json::Value::as_str).collect();
    let is_missing = |name: &&&str| !directory.join(**name).is_file();
    let missing: Vec<String> =
        names.iter().filter(is_missing).map(|name| (*name).to_owned()).collect();
    if !missing.is_empty() {
        let (model, of) = (model.to_owned(), names.len());
        return Err(LocateError::MissingShards { model, missing, of });
    }
    names.iter().try_for_each(|name| check_pointer(model, &directory.join(name)))
}

/// Refuses a GGUF file of which some part is a pointer of Git LFS. Parts that are not there are
/// told by whoever reads them.
///
/// # Errors
/// As [`check_pointer`].
pub(super) fn check_parts(model: &str, file: &Path) -> Result<(), LocateError> {
    part_paths(file).iter().try_for_each(|part| check_pointer(model, part))
}

/// The GGUF files of a directory, by name; of one in several parts the first.
pub(super) fn ggufs(directory: &Path) -> Vec<PathBuf> {
    let entries = std::fs::read_dir(directory).into_iter().flatten().flatten();
    let is_gguf = |file: &PathBuf| {
        file.extension().is_some_and(|extension| extension.eq_ignore_ascii_case("gguf"))
    };
    let files = entries.map(|entry| entry.path()).filter(is_gguf);
    let files: BTreeSet<PathBuf> = files.map(|file| first_part(&file)).collect();
    files.into_iter().collect()
}
