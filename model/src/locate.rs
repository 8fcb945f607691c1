//! `--model M`: a path, a repository in the Hugging Face cache, or a known name.
//!
//! Environment comes in as [`Places`], so that everything here can be tested in a folder.

use std::path::{Path, PathBuf};

use crate::config::ModelConfig;
use crate::config_fields::ConfigError;
use crate::config_json;
use crate::known::{self, Known};

/// Where models may be found.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Places {
    /// The Hugging Face hub cache, which holds `models--org--name` folders.
    pub hub_cache: Option<PathBuf>,
}

impl Places {
    /// `$HF_HUB_CACHE`, else `$HF_HOME/hub`, else `$XDG_CACHE_HOME/huggingface/hub`, else
    /// `~/.cache/huggingface/hub`. `variable` looks up an environment variable.
    pub fn from_environment(variable: impl Fn(&str) -> Option<String>) -> Places {
        let path = |name: &str| variable(name).filter(|value| !value.is_empty()).map(PathBuf::from);
        let hub_cache = path("HF_HUB_CACHE")
            .or_else(|| path("HF_HOME").map(|home| home.join("hub")))
            .or_else(|| path("XDG_CACHE_HOME").map(|cache| cache.join("huggingface/hub")))
            .or_else(|| path("HOME").map(|home| home.join(".cache/huggingface/hub")));
        Places { hub_cache }
    }
}

/// Where a model's weights are.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum WeightsAt {
    /// A directory with `model.safetensors` or its index.
    Safetensors(PathBuf),
    /// One file with everything; its configuration and tokenizer too.
    Gguf(PathBuf),
    /// None: random ones are made.
    Dummy,
}

/// A model that was found.
#[derive(Debug, Clone, PartialEq)]
pub struct Located {
    /// For reports.
    pub name: String,
    /// `None` for a GGUF file, which holds it.
    pub config: Option<ModelConfig>,
    pub weights: WeightsAt,
    /// The directory that may hold a tokenizer; `None` for an architecture alone and for GGUF.
    pub tokenizer_directory: Option<PathBuf>,
}

/// Why no model was found.
#[derive(Debug, thiserror::Error)]
pub enum LocateError {
    #[error("--model {path}: there is no such file or directory")]
    NoPath { path: String },
    #[error(
        "--model {path}: this file is no .gguf file; give the model's directory, or a .gguf file"
    )]
    NotGguf { path: String },
    #[error(
        "--model {path}: the directory has no config.json; give the directory that config.json and the weights are in"
    )]
    NoConfig { path: String },
    #[error(
        "--model {path}: the directory has no model.safetensors and no model.safetensors.index.json; download the weights, or add --dummy-weights for random ones"
    )]
    NoWeights { path: String },
    #[error(
        "--model {path}: the weights are only there as PyTorch .bin files; convert them once with: python3 scripts/to_safetensors.py {path}"
    )]
    OnlyBin { path: String },
    #[error(
        "--model {name}: opt-350m is not supported: it normalises after its layers and projects its embeddings, unlike every other OPT"
    )]
    Opt350m { name: String },
    #[error("--model {name} was not found. Looked for {}. Download it with: hf download {repository}{}", .looked.join("; "), .hint)]
    NotFound { name: String, looked: Vec<String>, repository: String, hint: &'static str },
    #[error("--model {name} is neither a path, nor org/name in the Hugging Face cache, nor a known name ({}). Looked for {}. Models can be downloaded with: hf download org/name", known::names().collect::<Vec<_>>().join(", "), .looked.join("; "))]
    Unknown { name: String, looked: Vec<String> },
    #[error("--model {name}: {source}")]
    Config { name: String, source: ConfigError },
}

/// What to look for.
#[derive(Debug, Clone, Copy)]
pub struct Wanted<'a> {
    pub name: &'a str,
    /// Branch, tag or commit of `org/name`; `main` when `None`.
    pub revision: Option<&'a str>,
    pub dummy_weights: bool,
}

/// Resolves `--model`.
///
/// # Errors
/// What was looked for, and how to get it.
pub fn locate(wanted: Wanted<'_>, places: &Places) -> Result<Located, LocateError> {
    let name = wanted.name;
    let path = Path::new(name);
    if path.is_dir() {
        return directory(wanted, path, name);
    }
    if path.is_file() {
        let gguf = path.extension().is_some_and(|extension| extension.eq_ignore_ascii_case("gguf"));
        return if gguf {
            Ok(gguf_file(path))
        } else {
            Err(LocateError::NotGguf { path: name.into() })
        };
    }
    if name.to_ascii_lowercase().ends_with("opt-350m") {
        return Err(LocateError::Opt350m { name: name.into() });
    }
    let mut looked = vec![format!("the path {name}")];
    let known = known::known(name);
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
        Some(Known { config, .. }) if wanted.dummy_weights => Ok(Located {
            name: name.to_owned(),
            config: Some(config),
            weights: WeightsAt::Dummy,
            tokenizer_directory: None,
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

fn gguf_file(path: &Path) -> Located {
    let stem = path.file_stem().map(|stem| stem.to_string_lossy().into_owned());
    Located {
        name: stem.unwrap_or_default(),
        config: None,
        weights: WeightsAt::Gguf(path.to_owned()),
        tokenizer_directory: None,
    }
}

/// The snapshot of a repository in the cache: `refs/<revision>` names a commit, or the revision is
/// one.
fn snapshot(
    repository: &str,
    revision: Option<&str>,
    places: &Places,
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

fn directory(wanted: Wanted<'_>, path: &Path, name: &str) -> Result<Located, LocateError> {
    let shown = || path.display().to_string();
    let has = |file: &str| path.join(file).is_file();
    if !has("config.json") {
        return match only_gguf(path) {
            Some(file) => Ok(gguf_file(&file)),
            None => Err(LocateError::NoConfig { path: shown() }),
        };
    }
    let short = Path::new(name).file_name().map_or_else(|| name.into(), |n| n.to_string_lossy());
    let name = if Path::new(name).is_dir() { short.into_owned() } else { name.to_owned() };
    let config = config_json::load(path, &name)
        .map_err(|source| LocateError::Config { name: name.clone(), source })?;
    let weights = if wanted.dummy_weights {
        WeightsAt::Dummy
    } else if has("model.safetensors") || has("model.safetensors.index.json") {
        WeightsAt::Safetensors(path.to_owned())
    } else if has("pytorch_model.bin") || has("pytorch_model.bin.index.json") {
        return Err(LocateError::OnlyBin { path: shown() });
    } else {
        return Err(LocateError::NoWeights { path: shown() });
    };
    Ok(Located { name, config: Some(config), weights, tokenizer_directory: Some(path.to_owned()) })
}

/// The GGUF file of a directory that holds exactly one.
fn only_gguf(path: &Path) -> Option<PathBuf> {
    let entries = std::fs::read_dir(path).ok()?.flatten().map(|entry| entry.path());
    let mut files = entries.filter(|file| file.extension().is_some_and(|e| e == "gguf"));
    let first = files.next()?;
    files.next().is_none().then_some(first)
}

#[cfg(test)]
mod tests {
    use super::*;

    const CONFIG: &str = r#"{"architectures": ["LlamaForCausalLM"], "hidden_size": 64,
        "num_hidden_layers": 2, "num_attention_heads": 4, "intermediate_size": 128,
        "vocab_size": 100, "max_position_embeddings": 64, "rms_norm_eps": 1e-5,
        "hidden_act": "silu", "tie_word_embeddings": true}"#;

    fn model(path: &Path, weights: &[&str]) {
        std::fs::create_dir_all(path).expect("folder");
        std::fs::write(path.join("config.json"), CONFIG).expect("file");
        for file in weights {
            std::fs::write(path.join(file), "").expect("file");
        }
    }

    fn find(name: &str, cache: Option<&Path>, dummy_weights: bool) -> Result<Located, LocateError> {
        let places = Places { hub_cache: cache.map(Path::to_owned) };
        locate(Wanted { name, revision: None, dummy_weights }, &places)
    }

    #[test]
    fn directories_and_files() {
        let folder = tempfile::tempdir().expect("folder");
        let at = |name: &str| folder.path().join(name).to_string_lossy().into_owned();
        model(&folder.path().join("good"), &["model.safetensors"]);
        let found = find(&at("good"), None, false).expect("found");
        assert_eq!(found.name, "good");
        assert!(matches!(found.weights, WeightsAt::Safetensors(_)));
        model(&folder.path().join("bin"), &["pytorch_model.bin"]);
        let error = find(&at("bin"), None, false).expect_err("only bin").to_string();
        assert!(error.contains("scripts/to_safetensors.py"), "{error}");
        assert!(matches!(find(&at("bin"), None, true).expect("dummy").weights, WeightsAt::Dummy));
        std::fs::create_dir(folder.path().join("empty")).expect("folder");
        assert!(matches!(find(&at("empty"), None, false), Err(LocateError::NoConfig { .. })));
        std::fs::write(folder.path().join("m.gguf"), "").expect("file");
        let found = find(&at("m.gguf"), None, false).expect("found");
        assert!(matches!(found.weights, WeightsAt::Gguf(_)));
        assert!(matches!(find(&at("none"), None, false), Err(LocateError::NoPath { .. })));
    }

    #[test]
    fn repositories_in_the_cache() {
        let cache = tempfile::tempdir().expect("folder");
        let root = cache.path().join("models--facebook--opt-125m");
        model(&root.join("snapshots/abc"), &["model.safetensors"]);
        std::fs::create_dir_all(root.join("refs")).expect("folder");
        std::fs::write(root.join("refs/main"), "abc").expect("file");
        for name in ["facebook/opt-125m", "opt-125m"] {
            let found = find(name, Some(cache.path()), false).expect("found");
            assert_eq!(found.name, name);
            assert_eq!(found.tokenizer_directory, Some(root.join("snapshots/abc")));
        }
        let wanted =
            Wanted { name: "facebook/opt-125m", revision: Some("abc"), dummy_weights: false };
        let places = Places { hub_cache: Some(cache.path().to_owned()) };
        assert!(locate(wanted, &places).is_ok());
        let error = locate(Wanted { revision: Some("v9"), ..wanted }, &places)
            .expect_err("no such revision")
            .to_string();
        assert!(error.contains("v9") && error.contains("hf download facebook/opt-125m"), "{error}");
    }

    #[test]
    fn names() {
        let found = find("opt-30b", None, true).expect("known");
        assert_eq!(found.config.map(|config| config.num_layers), Some(48));
        let error = find("opt-30b", None, false).expect_err("not there").to_string();
        assert!(error.contains("hf download facebook/opt-30b"), "{error}");
        assert!(error.contains("--dummy-weights"), "{error}");
        assert!(
            find("nonsense", None, true).expect_err("unknown").to_string().contains("opt-125m")
        );
        assert!(matches!(find("facebook/opt-350m", None, true), Err(LocateError::Opt350m { .. })));
    }

    #[test]
    fn the_cache_is_where_the_hub_says() {
        let places = |set: &[(&str, &str)]| {
            let set: Vec<(String, String)> =
                set.iter().map(|(k, v)| ((*k).to_owned(), (*v).to_owned())).collect();
            Places::from_environment(move |name| {
                set.iter().find(|(key, _)| key == name).map(|(_, value)| value.clone())
            })
            .hub_cache
        };
        assert_eq!(places(&[("HF_HUB_CACHE", "/a"), ("HF_HOME", "/b")]), Some("/a".into()));
        assert_eq!(places(&[("HF_HOME", "/b"), ("HOME", "/c")]), Some("/b/hub".into()));
        assert_eq!(places(&[("HOME", "/c")]), Some("/c/.cache/huggingface/hub".into()));
        assert_eq!(places(&[]), None);
    }
}
