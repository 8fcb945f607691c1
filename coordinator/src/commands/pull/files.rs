//! What a repository holds, and which of its files a model needs.

use std::path::Path;

use model::source::gguf::part_paths;
use serde::Deserialize;

/// A repository at a revision, as a hub lists it.
#[derive(Debug, Deserialize)]
pub(super) struct Listing {
    /// The commit.
    pub(super) sha: String,
    siblings: Vec<HubFile>,
}

/// A file of a repository.
#[derive(Debug, Deserialize)]
pub(super) struct HubFile {
    /// Its path in the repository.
    pub(super) rfilename: String,
    size: Option<u64>,
    /// The object's name in git.
    #[serde(rename = "blobId")]
    blob_id: Option<String>,
    lfs: Option<Lfs>,
}

/// A file that lies beside git.
#[derive(Debug, Deserialize)]
struct Lfs {
    sha256: String,
}

impl HubFile {
    /// Its size; 0 where the hub does not say.
    pub(super) fn size_bytes(&self) -> u64 {
        self.size.unwrap_or(0)
    }

    /// By what the hub knows its content: SHA-256, or the SHA-1 of a git object.
    pub(super) fn checksum(&self) -> Option<&str> {
        self.sha256().or(self.blob_id.as_deref())
    }

    pub(super) fn sha256(&self) -> Option<&str> {
        self.lfs.as_ref().map(|lfs| lfs.sha256.as_str())
    }

    fn ends_with(&self, ending: &str) -> bool {
        self.rfilename.ends_with(ending)
    }

    /// Of a checkpoint in Hugging Face's form: beside these some repositories have the same weights
    /// in the form of their publisher.
    fn is_checkpoint(&self) -> bool {
        self.rfilename.starts_with("model") && self.ends_with(".safetensors")
    }

    /// Configuration, tokenizer, chat template.
    fn is_described(&self) -> bool {
        self.ends_with(".json") || self.ends_with(".jinja")
    }
}

/// Why there is nothing to fetch.
#[derive(Debug, PartialEq, Eq, thiserror::Error)]
pub(super) enum Unwanted {
    #[error("the repository has no {file}; it has: {}", .has.join(", "))]
    NoFile { file: String, has: Vec<String> },
    #[error(
        "the repository holds several GGUF files; name one of them with --file: {}",
        .files.join(", ")
    )]
    SeveralGguf { files: Vec<String> },
    #[error(
        "the weights are only there as PyTorch .bin files, which are not read; look for a \
         repository of this model with safetensors or GGUF files"
    )]
    OnlyBin,
    #[error("the repository has neither safetensors nor GGUF files")]
    NoWeights,
}

/// The files of `named`, with all parts of each; else those that a model needs.
///
/// # Errors
/// Why there are none.
pub(super) fn files_of_model<'a>(
    listing: &'a Listing,
    named: &[String],
) -> Result<Vec<&'a HubFile>, Unwanted> {
    let at_top: Vec<&HubFile> =
        listing.siblings.iter().filter(|file| !file.rfilename.contains('/')).collect();
    if !named.is_empty() {
        return of_names(listing, named);
    }
    if at_top.iter().any(|file| file.is_checkpoint()) {
        let needs = |file: &&HubFile| file.is_checkpoint() || file.is_described();
        return Ok(at_top.into_iter().filter(needs).collect());
    }
    let ggufs: Vec<&HubFile> =
        listing.siblings.iter().filter(|file| file.ends_with(".gguf")).collect();
    match ggufs.as_slice() {
        [] if at_top.iter().any(|file| file.ends_with(".bin")) => Err(Unwanted::OnlyBin),
        [] => Err(Unwanted::NoWeights),
        [first, ..] => {
            let parts = of_names(listing, std::slice::from_ref(&first.rfilename))?;
            match parts.len() == ggufs.len() {
                true => Ok(parts),
                false => Err(Unwanted::SeveralGguf { files: names(&ggufs) }),
            }
        }
    }
}

fn of_names<'a>(listing: &'a Listing, named: &[String]) -> Result<Vec<&'a HubFile>, Unwanted> {
    let parts = named.iter().flat_map(|name| part_paths(Path::new(name)));
    let find = |part: std::path::PathBuf| {
        let file = listing.siblings.iter().find(|file| Path::new(&file.rfilename) == part);
        file.ok_or_else(|| Unwanted::NoFile {
            file: part.display().to_string(),
            has: names(&listing.siblings.iter().collect::<Vec<_>>()),
        })
    };
    parts.map(find).collect()
}

fn names(files: &[&HubFile]) -> Vec<String> {
    files.iter().map(|file| file.rfilename.clone()).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn listing(names: &[&str]) -> Listing {
        let file = |name: &&str| HubFile {
            rfilename: (*name).to_owned(),
            size: Some(1),
            blob_id: None,
            lfs: None,
        };
        Listing { sha: "c".into(), siblings: names.iter().map(file).collect() }
    }

    fn chosen(names: &[&str], named: &[&str]) -> Result<Vec<String>, Unwanted> {
        let named: Vec<String> = named.iter().map(|name| (*name).to_owned()).collect();
        let listing = listing(names);
        files_of_model(&listing, &named).map(|files| super::names(&files))
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
        let files = chosen(&has, &[]).expect("a checkpoint");
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
        assert_eq!(chosen(&["a.gguf", "README.md"], &[]).expect("one"), ["a.gguf"]);
        assert_eq!(chosen(&split, &[]).expect("parts of one"), split);
        let several = ["a.gguf", "b.gguf"].map(str::to_owned);
        let error = chosen(&["a.gguf", "b.gguf"], &[]).expect_err("which?");
        assert_eq!(error, Unwanted::SeveralGguf { files: several.to_vec() });
        assert_eq!(chosen(&["a.gguf", "b.gguf"], &["b.gguf"]).expect("named"), ["b.gguf"]);
        assert_eq!(chosen(&split, &["a-00002-of-00002.gguf"]).expect("named"), split);
    }

    #[test]
    fn what_there_is_not_is_said() {
        assert_eq!(chosen(&["pytorch_model.bin"], &[]), Err(Unwanted::OnlyBin));
        assert_eq!(chosen(&["README.md"], &[]), Err(Unwanted::NoWeights));
        let error = chosen(&["a.gguf"], &["c.gguf"]).expect_err("not there");
        assert_eq!(error.to_string(), "the repository has no c.gguf; it has: a.gguf");
    }
}
