//! Resolution of `--model M`: a path, a repository in the Hugging Face cache, or a known name.
//!
//! The environment is passed as [`SearchPaths`], so that everything here can be tested in a
//! temporary folder.

mod files;

use std::path::{Path, PathBuf};

use crate::config::ModelConfig;
use crate::config_fields::ConfigError;
use crate::config_json;
use crate::known::{self, KnownModel};
use crate::source::gguf::model_name;
use crate::unknown_field;

/// Maximum number of files that an error names.
const FILES_NAMED_MAX: usize = 5;

/// Locations in which models are searched.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct SearchPaths {
    /// The Hugging Face hub cache, which contains `models--org--name` folders.
    pub hub_cache: Option<PathBuf>,
}

impl SearchPaths {
    /// Returns `$HF_HUB_CACHE`, else `$HF_HOME/hub`, else `$XDG_CACHE_HOME/huggingface/hub`, else
    /// `~/.cache/huggingface/hub`. `variable` looks up an environment variable.
    pub fn from_environment(variable: impl Fn(&str) -> Option<String>) -> SearchPaths {
        let path = |name: &str| variable(name).filter(|value| !value.is_empty()).map(PathBuf::from);
        let hub_cache = path("HF_HUB_CACHE")
            .or_else(|| path("HF_HOME").map(|home| home.join("hub")))
            .or_else(|| path("XDG_CACHE_HOME").map(|cache| cache.join("huggingface/hub")))
            .or_else(|| path("HOME").map(|home| home.join(".cache/huggingface/hub")));
        SearchPaths { hub_cache }
    }
}

/// Location of a model's weights.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum WeightsLocation {
    /// A directory with `model.safetensors` or its index.
    Safetensors(PathBuf),
    /// A file that also contains configuration and tokenizer, or one of the parts of such a file.
    Gguf(PathBuf),
    /// No files: random weights are generated.
    Dummy,
}

/// A model that was found.
#[derive(Debug, Clone, PartialEq)]
pub struct LocatedModel {
    /// Name in reports.
    pub name: String,
    /// Configuration; `None` for a GGUF file, which contains it.
    pub config: Option<ModelConfig>,
    pub weights: WeightsLocation,
    /// Directory that may contain a tokenizer; `None` for GGUF and for an architecture without
    /// files.
    pub tokenizer_directory: Option<PathBuf>,
    /// Notice to the user about the model's configuration.
    pub notice: Option<String>,
}

/// Reason for which no model was found.
#[derive(Debug, thiserror::Error)]
pub enum LocateError {
    #[error("--model {path}: there is no such file or directory")]
    NoPath { path: String },
    #[error(
        "--model {path}: this file is not a .gguf file; give the model's directory, or a .gguf file"
    )]
    NotGguf { path: String },
    #[error(
        "--model {path}: the directory has no config.json; give the directory that contains \
         config.json and the weights"
    )]
    NoConfig { path: String },
    #[error(
        "--model {path}: the directory has no model.safetensors and no \
         model.safetensors.index.json; download the weights, or add --dummy-weights for random \
         ones"
    )]
    NoWeights { path: String },
    #[error(
        "--model {path}: the weights are only there as PyTorch .bin files; convert them once, \
         where transformers is installed: python3 -c \"from transformers import \
         AutoModelForCausalLM as M; M.from_pretrained('{path}').save_pretrained('{path}')\""
    )]
    OnlyBin { path: String },
    #[error(
        "--model {model}: {file} is a Git LFS pointer, not the file itself; fetch it with git lfs \
         pull where it was cloned, or download the model with: coordinator pull org/name"
    )]
    LfsPointer { model: String, file: String },
    #[error(
        "--model {model}: {} of its {of} weight files are missing, which \
         model.safetensors.index.json names: {}; download them again",
        .missing.len(),
        first(.missing)
    )]
    MissingShards { model: String, missing: Vec<String>, of: usize },
    #[error(
        "--model {path}: the directory contains several GGUF files, {}; give one of them",
        first(.files)
    )]
    SeveralGguf { path: String, files: Vec<String> },
    #[error(
        "--model {name}: opt-350m is not supported: it normalises after its layers and projects \
         its embeddings, unlike every other OPT"
    )]
    Opt350m { name: String },
    #[error(
        "--model {name} was not found. Looked for {}. Download it with: coordinator pull \
         {repository}{}", .looked.join("; "), .hint
    )]
    NotFound { name: String, looked: Vec<String>, repository: String, hint: &'static str },
    #[error(
        "--model {name} is neither a path, nor org/name in the Hugging Face cache, nor a known \
         name ({}). Looked for {}. Models can be downloaded with: coordinator pull org/name",
         known::names().collect::<Vec<_>>().join(", "), .looked.join("; ")
    )]
    Unknown { name: String, looked: Vec<String> },
    #[error("--model {name}: {source}")]
    Config { name: String, source: ConfigError },
}

/// Model to search for.
#[derive(Debug, Clone, Copy)]
pub struct ModelQuery<'a> {
    pub name: &'a str,
    /// Branch, tag or commit of `org/name`; `main` if `None`.
    pub revision: Option<&'a str>,
    pub dummy_weights: bool,
}

/// Resolves `--model`.
///
/// # Errors
/// No model was found; the error contains the searched locations and how to obtain the model.
pub fn locate(wanted: ModelQuery<'_>, places: &SearchPaths) -> Result<LocatedModel, LocateError> {
    let name = wanted.name;
    let path = Path::new(name);
    if path.is_dir() {
        return directory(wanted, path, name);
    }
    if path.is_file() {
        let gguf = path.extension().is_some_and(|extension| extension.eq_ignore_ascii_case("gguf"));
        if !gguf {
            return Err(LocateError::NotGguf { path: name.into() });
        }
        files::check_parts(name, path)?;
        return Ok(gguf_file(path));
    }
    if name.to_ascii_lowercase().ends_with("opt-350m") {
        return Err(LocateError::Opt350m { name: name.into() });
    }
    let mut looked = vec![format!("the path {name}")];
    let known = known::find_known(name);
    let looks_like_path = name.starts_with(['/', '.', '~']) || name.matches('/').count() > 1;
    if looks_like_path {
        return Err(LocateError::NoPath { path: name.into() });
    }
    let repository = match &known {
        Some(known) => known.repository,
        None => name,
    };
    if repository.contains('/')
        && let Some(snapshot) = snapshot(repository, wanted.revision, places, &mut looked)
    {
        return directory(wanted, &snapshot, name);
    }
    match known {
        Some(KnownModel { config, .. }) if wanted.dummy_weights => Ok(LocatedModel {
            name: name.to_owned(),
            config: Some(config),
            weights: WeightsLocation::Dummy,
            tokenizer_directory: None,
            notice: None,
        }),
        Some(_) => Err(LocateError::NotFound {
            name: name.into(),
            looked,
            repository: repository.into(),
            hint: ", or add --dummy-weights to run its architecture with random weights",
        }),
        None if name.contains('/') => Err(LocateError::NotFound {
            name: name.into(),
            looked,
            repository: repository.into(),
            hint: "",
        }),
        None => Err(LocateError::Unknown { name: name.into(), looked }),
    }
}

fn gguf_file(path: &Path) -> LocatedModel {
    LocatedModel {
        name: model_name(path),
        config: None,
        weights: WeightsLocation::Gguf(path.to_owned()),
        tokenizer_directory: None,
        notice: None,
    }
}

/// Returns the snapshot of a repository in the cache. `refs/<revision>` contains a commit, or the
/// revision is itself a commit.
fn snapshot(
    repository: &str,
    revision: Option<&str>,
    places: &SearchPaths,
    looked: &mut Vec<String>,
) -> Option<PathBuf> {
    let revision = revision.unwrap_or("main");
    let folder = format!("models--{}", repository.replace('/', "--"));
    let Some(cache) = &places.hub_cache else {
        looked.push("a Hugging Face cache (none: HF_HUB_CACHE, HF_HOME and HOME are unset)".into());
        return None;
    };
    let root = cache.join(folder);
    let commit = std::fs::read_to_string(root.join("refs").join(revision))
        .map_or_else(|_| revision.to_owned(), |text| text.trim().to_owned());
    let snapshot = root.join("snapshots").join(&commit);
    if snapshot.is_dir() {
        return Some(snapshot);
    }
    looked.push(format!("{} (revision {revision})", root.display()));
    None
}

fn directory(wanted: ModelQuery<'_>, path: &Path, name: &str) -> Result<LocatedModel, LocateError> {
    let shown = || path.display().to_string();
    let has = |file: &str| path.join(file).is_file();
    if !has("config.json") {
        return match &files::ggufs(path)[..] {
            [] => Err(LocateError::NoConfig { path: shown() }),
            [file] => {
                files::check_parts(&shown(), file)?;
                Ok(gguf_file(file))
            }
            several => {
                let name = |file: &PathBuf| file.file_name().map(|n| n.to_string_lossy().into());
                Err(LocateError::SeveralGguf {
                    path: shown(),
                    files: several.iter().filter_map(name).collect(),
                })
            }
        };
    }
    for file in ["config.json", "tokenizer.json"] {
        files::check_pointer(&shown(), &path.join(file))?;
    }
    let short = Path::new(name).file_name().map_or_else(|| name.into(), |n| n.to_string_lossy());
    let name = if Path::new(name).is_dir() { short.into_owned() } else { name.to_owned() };
    let parsed = config_json::load_with_unknown(path, &name)
        .map_err(|source| LocateError::Config { name: name.clone(), source })?;
    let weights = if wanted.dummy_weights {
        WeightsLocation::Dummy
    } else if has("model.safetensors") || has("model.safetensors.index.json") {
        files::check_shards(&shown(), path)?;
        WeightsLocation::Safetensors(path.to_owned())
    } else if has("pytorch_model.bin") || has("pytorch_model.bin.index.json") {
        return Err(LocateError::OnlyBin { path: shown() });
    } else {
        return Err(LocateError::NoWeights { path: shown() });
    };
    Ok(LocatedModel {
        name,
        config: Some(parsed.model),
        weights,
        tokenizer_directory: Some(path.to_owned()),
        notice: unknown_field::notice(&parsed.unknown_fields),
    })
}

/// Returns the first names of a list, for an error message.
fn first(names: &[String]) -> String {
    let rest = if names.len() > FILES_NAMED_MAX { ", ..." } else { "" };
    names[..names.len().min(FILES_NAMED_MAX)].join(", ") + rest
}

#[cfg(test)]
mod tests;
