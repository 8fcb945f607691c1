//! Files of a repository, and the selection of those that a model needs.

use std::collections::HashMap;
use std::path::Path;

use model::source::gguf::part_paths;
use serde::Deserialize;

use super::names::{Hash, is_path};

/// Maximum number of files of a model.
const FILES_MAX: usize = 10_000;
/// Maximum size of a fetched file; the size is the hub's claim.
const FILE_MAX_BYTES: u64 = 16 << 40;
/// Maximum number of file names listed in a message.
const NAMES_MAX: usize = 20;

/// A list of files as a hub sends it.
#[derive(Debug, Deserialize)]
struct ListingJson {
    sha: String,
    siblings: Vec<FileJson>,
}

/// A file as a hub lists it.
#[derive(Debug, Deserialize)]
struct FileJson {
    rfilename: String,
    size: Option<u64>,
    #[serde(rename = "blobId")]
    blob_id: Option<String>,
    lfs: Option<LfsJson>,
}

/// Pointer to a file that is stored outside git (LFS).
#[derive(Debug, Deserialize)]
struct LfsJson {
    sha256: String,
}

/// Files of a repository at a revision. Checksums are validated when the list is parsed, names only
/// when the files are selected.
#[derive(Debug)]
pub(super) struct Listing {
    pub(super) commit: Hash,
    files: Vec<HubFile>,
}

/// A file of a repository.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct HubFile {
    /// Path in the repository.
    pub(super) path: String,
    /// Size in bytes, if the hub lists it.
    pub(super) size_bytes: Option<u64>,
    /// Name of the object in git, a hash over a header and its content.
    pub(super) blob_id: Option<Hash>,
    /// SHA-256 of the content, for files stored outside git.
    pub(super) sha256: Option<Hash>,
}

/// Reason why a list of files is rejected.
#[derive(Debug, thiserror::Error)]
pub(super) enum ListError {
    #[error("the hub's list of files cannot be read: {0}")]
    Json(#[from] serde_json::Error),
    #[error("the hub names the commit {0:?}, which is not a hash of 40 or 64 digits")]
    Commit(String),
    #[error("the hub lists {path:?} with the invalid checksum {checksum:?}")]
    Checksum { path: String, checksum: String },
}

impl Listing {
    /// Parses a hub's list of files.
    ///
    /// # Errors
    /// See [`ListError`].
    pub(super) fn parse(json: &[u8]) -> Result<Listing, ListError> {
        let sent: ListingJson = serde_json::from_slice(json)?;
        let commit = Hash::parse(&sent.sha).ok_or(ListError::Commit(sent.sha))?;
        let files = sent.siblings.into_iter().map(HubFile::from_json).collect::<Result<_, _>>()?;
        Ok(Listing { commit, files })
    }
}

impl HubFile {
    fn from_json(sent: FileJson) -> Result<HubFile, ListError> {
        let path = sent.rfilename;
        let hash = |text: Option<String>| match text {
            None => Ok(None),
            Some(text) => match Hash::parse(&text) {
                Some(hash) => Ok(Some(hash)),
                None => Err(ListError::Checksum { path: path.clone(), checksum: text }),
            },
        };
        let blob_id = hash(sent.blob_id)?;
        let sha256 = sent.lfs.map(|lfs| lfs.sha256);
        let content_hash = hash(sha256.clone())?.filter(Hash::is_sha256);
        if let (None, Some(checksum)) = (&content_hash, sha256) {
            return Err(ListError::Checksum { path, checksum });
        }
        Ok(HubFile { path, size_bytes: sent.size, blob_id, sha256: content_hash })
    }

    /// Returns the hub's checksum of the content: its SHA-256, or the hash of a git object.
    pub(super) fn checksum(&self) -> Option<&Hash> {
        self.sha256.as_ref().or(self.blob_id.as_ref())
    }

    fn ends_with(&self, ending: &str) -> bool {
        self.path.ends_with(ending)
    }

    /// Returns true for weights of a checkpoint in Hugging Face's format. Some repositories also
    /// contain the same weights in their publisher's format.
    fn is_checkpoint(&self) -> bool {
        self.path.starts_with("model") && self.ends_with(".safetensors")
    }

    /// Returns true for configuration, tokenizer and chat template.
    fn is_metadata(&self) -> bool {
        self.ends_with(".json") || self.ends_with(".jinja")
    }
}

/// Reason why there are no files to fetch.
#[derive(Debug, PartialEq, Eq, thiserror::Error)]
pub(super) enum SelectionError {
    #[error("the repository has no {file}; it has: {}", format_names(.has))]
    NoFile { file: String, has: Vec<String> },
    #[error(
        "the repository holds several GGUF files; name one of them with --file: {}",
        format_names(.files)
    )]
    SeveralGguf { files: Vec<String> },
    #[error(
        "the weights exist only as PyTorch .bin files, which are not supported; look for a \
         repository of this model with safetensors or GGUF files"
    )]
    OnlyBin,
    #[error("the repository has neither safetensors nor GGUF files")]
    NoWeights,
    #[error("the hub names a file {path:?}, which is not a path below a folder")]
    Path { path: String },
    #[error("the hub lists {path} with {size_bytes} bytes; no more than 16 TiB are fetched")]
    Size { path: String, size_bytes: u64 },
    #[error("the repository has {count} files of this model; no more than {FILES_MAX} are fetched")]
    Files { count: usize },
}

impl SelectionError {
    /// Returns true if another command line would help.
    pub(super) fn is_usage(&self) -> bool {
        !matches!(
            self,
            SelectionError::Path { .. }
                | SelectionError::Size { .. }
                | SelectionError::Files { .. }
        )
    }
}

/// Returns the first names, and the number of the remaining ones.
fn format_names(names: &[String]) -> String {
    let mut text = names[..names.len().min(NAMES_MAX)].join(", ");
    if names.len() > NAMES_MAX {
        text += &format!(" and {} more", names.len() - NAMES_MAX);
    }
    text
}

/// Returns the files of `named` with all parts of each; if it is empty, the files that a model
/// needs.
///
/// # Errors
/// The reason why there are no files, or why one of them must not be fetched.
pub(super) fn files_of_model<'a>(
    listing: &'a Listing,
    named: &[String],
) -> Result<Vec<&'a HubFile>, SelectionError> {
    let files = select_files(listing, named)?;
    if files.len() > FILES_MAX {
        return Err(SelectionError::Files { count: files.len() });
    }
    for file in &files {
        let path = file.path.clone();
        if !is_path(&path) {
            return Err(SelectionError::Path { path });
        }
        if let Some(size_bytes) = file.size_bytes.filter(|size_bytes| *size_bytes > FILE_MAX_BYTES)
        {
            return Err(SelectionError::Size { path, size_bytes });
        }
    }
    Ok(files)
}

fn select_files<'a>(
    listing: &'a Listing,
    named: &[String],
) -> Result<Vec<&'a HubFile>, SelectionError> {
    let at_top: Vec<&HubFile> =
        listing.files.iter().filter(|file| !file.path.contains('/')).collect();
    if !named.is_empty() {
        return files_by_name(listing, named);
    }
    if at_top.iter().any(|file| file.is_checkpoint()) {
        let needs = |file: &&HubFile| file.is_checkpoint() || file.is_metadata();
        return Ok(at_top.into_iter().filter(needs).collect());
    }
    let ggufs: Vec<&HubFile> =
        listing.files.iter().filter(|file| file.ends_with(".gguf")).collect();
    match ggufs.as_slice() {
        [] if at_top.iter().any(|file| file.ends_with(".bin")) => Err(SelectionError::OnlyBin),
        [] => Err(SelectionError::NoWeights),
        // Checked before the paths of all parts are derived from it.
        [first, ..] if !is_path(&first.path) => {
            Err(SelectionError::Path { path: first.path.clone() })
        }
        [first, ..] => {
            let parts = files_by_name(listing, std::slice::from_ref(&first.path))?;
            match parts.len() == ggufs.len() {
                true => Ok(parts),
                false => Err(SelectionError::SeveralGguf { files: names(&ggufs) }),
            }
        }
    }
}

fn files_by_name<'a>(
    listing: &'a Listing,
    named: &[String],
) -> Result<Vec<&'a HubFile>, SelectionError> {
    let by_path: HashMap<&Path, &HubFile> =
        listing.files.iter().map(|file| (Path::new(&file.path), file)).collect();
    let parts = named.iter().flat_map(|name| part_paths(Path::new(name)));
    let find = |part: std::path::PathBuf| {
        by_path.get(&*part).copied().ok_or_else(|| SelectionError::NoFile {
            file: part.display().to_string(),
            has: names(&listing.files.iter().collect::<Vec<_>>()),
        })
    };
    parts.map(find).collect()
}

fn names(files: &[&HubFile]) -> Vec<String> {
    files.iter().map(|file| file.path.clone()).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn listing(names: &[&str]) -> Listing {
        let file = |name: &&str| HubFile {
            path: (*name).to_owned(),
            size_bytes: Some(1),
            blob_id: None,
            sha256: None,
        };
        let commit = Hash::parse(&"c".repeat(40)).expect("a commit");
        Listing { commit, files: names.iter().map(file).collect() }
    }

    fn select_names(names: &[&str], named: &[&str]) -> Result<Vec<String>, SelectionError> {
        let named: Vec<String> = named.iter().map(|name| (*name).to_owned()).collect();
        let listing = listing(names);
        files_of_model(&listing, &named).map(|files| super::names(&files))
    }

    #[test]
    fn names_sizes_and_checksums_are_the_hub_s_word() {
        let outside = select_names(&["../../x.gguf"], &[]).expect_err("outside");
        assert_eq!(outside, SelectionError::Path { path: "../../x.gguf".into() });
        let mut huge = listing(&["a.gguf"]);
        huge.files[0].size_bytes = Some(u64::MAX);
        let error = files_of_model(&huge, &[]).expect_err("huge");
        assert!(matches!(error, SelectionError::Size { .. }), "{error}");
        let split = "a-00001-of-99999.gguf";
        assert!(matches!(select_names(&[split], &[]), Err(SelectionError::NoFile { .. })));
        let many: Vec<String> = (0..=FILES_MAX).map(|i| format!("{i}.json")).collect();
        let many: Vec<&str> =
            many.iter().map(String::as_str).chain(["model.safetensors"]).collect();
        assert_eq!(select_names(&many, &[]), Err(SelectionError::Files { count: FILES_MAX + 2 }));
        let error = SelectionError::NoFile { file: "x".into(), has: vec!["y".into(); 25] };
        assert!(error.to_string().ends_with("y, y and 5 more"), "{error}");
        let sha = "a".repeat(40);
        let list = |sha: &str, file: &str| {
            Listing::parse(format!(r#"{{"sha": "{sha}", "siblings": [{file}]}}"#).as_bytes())
        };
        list(&sha, r#"{"rfilename": "x", "lfs": null}"#).expect("a list");
        assert!(matches!(list("../x", ""), Err(ListError::Commit(_))));
        for file in [
            r#"{"rfilename": "x", "blobId": "../x"}"#.to_owned(),
            r#"{"rfilename": "x", "lfs": {"sha256": ""}}"#.to_owned(),
            // 40 digits are not a SHA-256.
            format!(r#"{{"rfilename": "x", "lfs": {{"sha256": "{sha}"}}}}"#),
        ] {
            assert!(matches!(list(&sha, &file), Err(ListError::Checksum { .. })), "{file}");
        }
        assert!(matches!(list(&sha, r#"{"rfilename": "x", "size": -1}"#), Err(ListError::Json(_))));
    }

    #[test]
    fn a_checkpoint_is_its_weights_and_what_describes_them() {
        let has = [
            "README.md",
            "config.json",
            "consolidated.safetensors",
            "model-00001-of-00002.safetensors",
            "model-00002-of-00002.safetensors",
            "model.safetensors.index.json",
            "onnx/model.onnx",
            "pytorch_model.bin",
            "tokenizer.json",
            "chat_template.jinja",
        ];
        let files = select_names(&has, &[]).expect("a checkpoint");
        assert_eq!(
            files,
            [
                "config.json",
                "model-00001-of-00002.safetensors",
                "model-00002-of-00002.safetensors",
                "model.safetensors.index.json",
                "tokenizer.json",
                "chat_template.jinja",
            ]
        );
    }

    #[test]
    fn one_gguf_file_is_clear_and_of_several_one_is_named() {
        let split = ["a-00001-of-00002.gguf", "a-00002-of-00002.gguf"];
        assert_eq!(select_names(&["a.gguf", "README.md"], &[]).expect("one"), ["a.gguf"]);
        assert_eq!(select_names(&split, &[]).expect("parts of one"), split);
        let several = ["a.gguf", "b.gguf"].map(str::to_owned);
        let error = select_names(&["a.gguf", "b.gguf"], &[]).expect_err("which?");
        assert_eq!(error, SelectionError::SeveralGguf { files: several.to_vec() });
        assert_eq!(select_names(&["a.gguf", "b.gguf"], &["b.gguf"]).expect("named"), ["b.gguf"]);
        assert_eq!(select_names(&split, &["a-00002-of-00002.gguf"]).expect("named"), split);
    }

    #[test]
    fn what_there_is_not_is_said() {
        assert_eq!(select_names(&["pytorch_model.bin"], &[]), Err(SelectionError::OnlyBin));
        assert_eq!(select_names(&["README.md"], &[]), Err(SelectionError::NoWeights));
        let error = select_names(&["a.gguf"], &["c.gguf"]).expect_err("not there");
        assert_eq!(error.to_string(), "the repository has no c.gguf; it has: a.gguf");
    }
}
