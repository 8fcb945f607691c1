//! Pooling of a model's embeddings: as the command line specifies it, as the files of
//! sentence-transformers next to the checkpoint or the metadata of a GGUF file do, or else the last
//! token's hidden state, as in decoder models that were trained for embeddings.

use std::fs::File;
use std::io::Read;
use std::path::{Component, Path};

use engine_api::request::Pooling;
use model::source::gguf::GgufSource;
use model::source::gguf::metadata::Metadata;
use openai::embeddings::model::EmbeddingModel;
use serde_json::Value;
use tokenizer_host::message::TextSource;

use super::model::ModelHandle;

/// Maximum size of a file, far above that of any real one.
const MAX_FILE_BYTES: u64 = 1 << 20;

/// Models that are published as Matryoshka embeddings without a field that tells so, by a part of
/// their names in lower case.
const MATRYOSHKA_NAMES: [&str; 1] = ["qwen3-embedding"];

/// Ways of pooling in sentence-transformers' files.
const POOLING_MODES: [(&str, Option<Pooling>); 7] = [
    ("pooling_mode_lasttoken", Some(Pooling::LastToken)),
    ("pooling_mode_mean_tokens", Some(Pooling::Mean)),
    ("pooling_mode_cls_token", None),
    ("pooling_mode_max_tokens", None),
    ("pooling_mode_mean_sqrt_len_tokens", None),
    ("pooling_mode_weightedmean_tokens", None),
    ("pooling_mode_weighted_mean_tokens", None),
];

/// Returns the properties of a model's embeddings. `choice` is the pooling of the command line.
pub fn embedding_model(model: &ModelHandle, choice: Option<Pooling>) -> EmbeddingModel {
    let (pooling, is_matryoshka) = match model.tokenizer_source() {
        Some(TextSource::Directory { path, .. }) => {
            (directory_pooling(path), has_matryoshka_field(path))
        }
        Some(TextSource::Gguf { path }) => (gguf_pooling(path), false),
        None => (Ok(Pooling::LastToken), false),
    };
    let name = model.config.name.to_lowercase();
    EmbeddingModel {
        pooling: choice.map_or(pooling, Ok),
        hidden_size: model.config.hidden_size,
        is_matryoshka: is_matryoshka || MATRYOSHKA_NAMES.iter().any(|part| name.contains(part)),
    }
}

/// Returns the pooling that a directory specifies, or the sentence that refuses it.
fn directory_pooling(directory: &Path) -> Result<Pooling, String> {
    let Some(modules) = read_json(&directory.join("modules.json"))? else {
        return Ok(Pooling::LastToken);
    };
    let mut pooling = Pooling::LastToken;
    for module in modules.as_array().into_iter().flatten() {
        let text = |name: &str| module.get(name).and_then(Value::as_str).unwrap_or("");
        match text("type").rsplit('.').next().unwrap_or("") {
            "Transformer" | "Normalize" => {}
            "Pooling" => pooling = module_pooling(directory, text("path"))?,
            other => {
                return Err(format!(
                    "Embeddings of this model are not supported: modules.json has a module of \
                     type '{}', but only Transformer, Pooling and Normalize are supported.",
                    other.chars().take(100).collect::<String>()
                ));
            }
        }
    }
    Ok(pooling)
}

/// Returns the pooling of a module in a folder of the model's directory.
fn module_pooling(directory: &Path, folder: &str) -> Result<Pooling, String> {
    let is_inside = Path::new(folder).components().all(|part| matches!(part, Component::Normal(_)));
    if !is_inside {
        return Err("Embeddings of this model are not supported: modules.json names a folder \
                    outside of the model's directory."
            .to_owned());
    }
    let config = read_json(&directory.join(folder).join("config.json"))?.unwrap_or(Value::Null);
    let is_set = |name: &str| config.get(name).and_then(Value::as_bool).unwrap_or(false);
    let modes: Vec<(&str, Option<Pooling>)> =
        POOLING_MODES.into_iter().filter(|(name, _)| is_set(name)).collect();
    match modes[..] {
        [(_, Some(pooling))] => Ok(pooling),
        [] => Err(format!(
            "Embeddings of this model are not supported: {folder}/config.json sets no pooling \
             mode. Specify --pooling last or --pooling mean."
        )),
        [(mode, _), ..] => Err(format!(
            "Embeddings of this model are not supported: {folder}/config.json sets {mode}, but \
             only pooling_mode_lasttoken or pooling_mode_mean_tokens alone is supported. Specify \
             --pooling last or --pooling mean to pool differently."
        )),
    }
}

/// Returns true if the model's configuration calls its embeddings Matryoshka.
fn has_matryoshka_field(directory: &Path) -> bool {
    let Ok(Some(config)) = read_json(&directory.join("config.json")) else { return false };
    let dimensions = config.get("matryoshka_dimensions").and_then(Value::as_array);
    let has_dimensions = dimensions.is_some_and(|list| !list.is_empty());
    has_dimensions || config.get("is_matryoshka").and_then(Value::as_bool) == Some(true)
}

/// Reads a JSON file; `None` if there is none.
fn read_json(path: &Path) -> Result<Option<Value>, String> {
    let refuse = |reason: String| {
        format!("Embeddings of this model are not supported: {} {reason}.", path.display())
    };
    let file = match File::open(path) {
        Ok(file) => file,
        Err(error) if error.kind() == std::io::ErrorKind::NotFound => return Ok(None),
        Err(error) => return Err(refuse(format!("cannot be read: {error}"))),
    };
    let mut text = String::new();
    file.take(MAX_FILE_BYTES + 1)
        .read_to_string(&mut text)
        .map_err(|error| refuse(format!("cannot be read: {error}")))?;
    if text.len() as u64 > MAX_FILE_BYTES {
        return Err(refuse(format!("exceeds {MAX_FILE_BYTES} bytes")));
    }
    serde_json::from_str(&text).map(Some).map_err(|error| refuse(format!("is invalid: {error}")))
}

/// Returns the pooling that a GGUF file specifies, or the sentence that refuses it.
fn gguf_pooling(path: &Path) -> Result<Pooling, String> {
    let refuse = |reason: String| format!("Embeddings of this model are not supported: {reason}.");
    let source = GgufSource::open(path).map_err(|error| refuse(error.to_string()))?;
    metadata_pooling(source.metadata()).map_err(refuse)
}

/// Returns the pooling in the metadata of a GGUF file, by llama.cpp's numbers.
fn metadata_pooling(metadata: &Metadata) -> Result<Pooling, String> {
    let text = metadata.text("general.architecture").map_err(|error| error.to_string())?;
    let key = format!("{}.pooling_type", text.unwrap_or(""));
    match metadata.integer(&key).map_err(|error| error.to_string())? {
        // Not specified, or no pooling.
        None | Some(0 | 3) => Ok(Pooling::LastToken),
        Some(1) => Ok(Pooling::Mean),
        Some(other) => Err(format!(
            "{key} is {other}, but only 1 (mean) and 3 (last token) are supported; specify \
             --pooling last or --pooling mean to pool differently"
        )),
    }
}

#[cfg(test)]
mod tests {
    use model::source::gguf::metadata::MetadataValue;
    use serde_json::json;

    use super::*;

    fn pooling_of(modules: &Value, config: &Value) -> Result<Pooling, String> {
        let folder = tempfile::tempdir().expect("a folder");
        let write = |name: &str, value: &Value| {
            std::fs::write(folder.path().join(name), value.to_string()).expect("writable");
        };
        std::fs::create_dir(folder.path().join("1_Pooling")).expect("writable");
        write("modules.json", modules);
        write("1_Pooling/config.json", config);
        directory_pooling(folder.path())
    }

    fn modules(types: &[&str]) -> Value {
        let module = |kind: &&str| {
            json!({"path": format!("1_{kind}"),
                "type": format!("sentence_transformers.models.{kind}")})
        };
        Value::Array(types.iter().map(module).collect())
    }

    #[test]
    fn files_of_sentence_transformers_decide() {
        let all = modules(&["Transformer", "Pooling", "Normalize"]);
        for (config, expected) in [
            (json!({"pooling_mode_lasttoken": true}), Some(Pooling::LastToken)),
            (
                json!({"pooling_mode_mean_tokens": true, "pooling_mode_lasttoken": false}),
                Some(Pooling::Mean),
            ),
            (json!({"pooling_mode_cls_token": true}), None),
            (json!({"pooling_mode_mean_tokens": true, "pooling_mode_max_tokens": true}), None),
            (json!({}), None),
            (json!([]), None),
        ] {
            assert_eq!(pooling_of(&all, &config).ok(), expected, "{config}");
        }
        let last = json!({"pooling_mode_lasttoken": true});
        assert!(pooling_of(&modules(&["Transformer", "Pooling", "Dense"]), &last).is_err());
        let outside =
            json!([{"type": "sentence_transformers.models.Pooling", "path": "../elsewhere"}]);
        assert!(pooling_of(&outside, &last).is_err_and(|text| text.contains("outside")));
        let folder = tempfile::tempdir().expect("a folder");
        assert_eq!(directory_pooling(folder.path()), Ok(Pooling::LastToken));
        std::fs::write(folder.path().join("modules.json"), "{").expect("writable");
        assert!(directory_pooling(folder.path()).is_err());
    }

    #[test]
    fn configurations_tell_if_vectors_may_be_cut() {
        let folder = tempfile::tempdir().expect("a folder");
        for (config, expected) in [
            (json!({"is_matryoshka": true}), true),
            (json!({"matryoshka_dimensions": [64, 128]}), true),
            (json!({"matryoshka_dimensions": []}), false),
            (json!({}), false),
        ] {
            let path = folder.path().join("config.json");
            std::fs::write(path, config.to_string()).expect("writable");
            assert_eq!(has_matryoshka_field(folder.path()), expected, "{config}");
        }
    }

    #[test]
    fn metadata_of_gguf_files_decide() {
        let with = |number: Option<u64>| {
            let mut metadata = Metadata::default();
            let text = |text: &str| MetadataValue::Text(text.to_owned());
            metadata.insert("general.architecture".to_owned(), text("qwen3"));
            if let Some(number) = number {
                let value = MetadataValue::Unsigned(number);
                metadata.insert("qwen3.pooling_type".to_owned(), value);
            }
            metadata_pooling(&metadata).ok()
        };
        assert_eq!([None, Some(0), Some(3)].map(with), [Some(Pooling::LastToken); 3]);
        assert_eq!([Some(1), Some(2), Some(4)].map(with), [Some(Pooling::Mean), None, None]);
    }
}
