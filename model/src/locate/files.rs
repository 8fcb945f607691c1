//! Checks of a model directory's files before anything is read: that they exist, and are not
//! pointers.

use std::collections::BTreeSet;
use std::fs::File;
use std::io::Read;
use std::path::{Path, PathBuf};

use super::LocateError;
use crate::source::gguf::{first_part, part_paths};

/// Beginning of the pointer that Git LFS leaves in place of a file that was not fetched.
const POINTER: &[u8] = b"version https://git-lfs.github.com/spec/";
const INDEX: &str = "model.safetensors.index.json";

/// Refuses a Git LFS pointer in place of a file. Missing files are reported elsewhere.
///
/// # Errors
/// A pointer; the error contains the command that fetches the file.
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

/// Checks the weights of a directory: a single file, or those that its index names.
///
/// # Errors
/// Missing files, or Git LFS pointers. An index that cannot be read is reported by its reader.
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

/// Refuses a GGUF file if one of its parts is a Git LFS pointer. Missing parts are reported by
/// their reader.
///
/// # Errors
/// See [`check_pointer`].
pub(super) fn check_parts(model: &str, file: &Path) -> Result<(), LocateError> {
    part_paths(file).iter().try_for_each(|part| check_pointer(model, part))
}

/// Returns the GGUF files of a directory, sorted by name; only the first part of a file with
/// several parts.
pub(super) fn ggufs(directory: &Path) -> Vec<PathBuf> {
    let entries = std::fs::read_dir(directory).into_iter().flatten().flatten();
    let is_gguf = |file: &PathBuf| {
        file.extension().is_some_and(|extension| extension.eq_ignore_ascii_case("gguf"))
    };
    let files = entries.map(|entry| entry.path()).filter(is_gguf);
    let files: BTreeSet<PathBuf> = files.map(|file| first_part(&file)).collect();
    files.into_iter().collect()
}
