//! Tests the models that are found, and the messages for those that are not.

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

fn find(
    name: &str,
    cache: Option<&Path>,
    dummy_weights: bool,
) -> Result<LocatedModel, LocateError> {
    let places = SearchPaths { hub_cache: cache.map(Path::to_owned) };
    locate(ModelQuery { name, revision: None, dummy_weights }, &places)
}

#[test]
fn directories_and_files() {
    let folder = tempfile::tempdir().expect("folder");
    let at = |name: &str| folder.path().join(name).to_string_lossy().into_owned();
    model(&folder.path().join("good"), &["model.safetensors"]);
    let found = find(&at("good"), None, false).expect("found");
    assert_eq!(found.name, "good");
    assert!(matches!(found.weights, WeightsLocation::Safetensors(_)));
    model(&folder.path().join("bin"), &["pytorch_model.bin"]);
    let error = find(&at("bin"), None, false).expect_err("only bin").to_string();
    assert!(error.contains("save_pretrained") && error.contains(&at("bin")), "{error}");
    assert!(matches!(find(&at("bin"), None, true).expect("dummy").weights, WeightsLocation::Dummy));
    std::fs::create_dir(folder.path().join("empty")).expect("folder");
    assert!(matches!(find(&at("empty"), None, false), Err(LocateError::NoConfig { .. })));
    std::fs::write(folder.path().join("m.gguf"), "").expect("file");
    let found = find(&at("m.gguf"), None, false).expect("found");
    assert!(matches!(found.weights, WeightsLocation::Gguf(_)));
    assert!(matches!(find(&at("none"), None, false), Err(LocateError::NoPath { .. })));
}

/// Pointer that Git LFS leaves if a file was not fetched.
const POINTER: &str =
    "version https://git-lfs.github.com/spec/v1\noid sha256:4d7a\nsize 98362432\n";

#[test]
fn pointers_of_git_lfs_are_named_as_that() {
    let folder = tempfile::tempdir().expect("folder");
    let at = |name: &str| folder.path().join(name).to_string_lossy().into_owned();
    let pointed = |name: &str, file: &str| {
        std::fs::write(folder.path().join(name).join(file), POINTER).expect("file");
        let error = find(&at(name), None, false).expect_err("a pointer").to_string();
        assert!(error.contains("Git LFS") && error.contains(file), "{error}");
        assert!(error.contains("git lfs pull"), "{error}");
    };
    for file in ["model.safetensors", "tokenizer.json", "config.json"] {
        model(&folder.path().join(file), &["model.safetensors", "tokenizer.json"]);
        pointed(file, file);
    }
    model(&folder.path().join("shards"), &[]);
    let index = r#"{"weight_map": {"a": "part-1.safetensors", "b": "part-1.safetensors"}}"#;
    let shards = folder.path().join("shards");
    std::fs::write(shards.join("model.safetensors.index.json"), index).expect("file");
    pointed("shards", "part-1.safetensors");
    std::fs::write(folder.path().join("m.gguf"), POINTER).expect("file");
    let error = find(&at("m.gguf"), None, false).expect_err("a pointer").to_string();
    assert!(error.contains("Git LFS"), "{error}");
    // Random weights need no files.
    assert!(find(&at("model.safetensors"), None, true).is_ok());
}

#[test]
fn shards_that_are_not_there_are_named() {
    let folder = tempfile::tempdir().expect("folder");
    let path = folder.path().join("m");
    model(&path, &["model-2.safetensors"]);
    let index = r#"{"weight_map": {"a": "model-1.safetensors", "b": "model-2.safetensors", "c": "model-3.safetensors"}}"#;
    std::fs::write(path.join("model.safetensors.index.json"), index).expect("file");
    let name = path.to_string_lossy().into_owned();
    let error = find(&name, None, false).expect_err("two are missing").to_string();
    assert!(error.contains("2 of its 3 weight files"), "{error}");
    assert!(error.contains("model-1.safetensors, model-3.safetensors"), "{error}");
    model(&path, &["model-1.safetensors", "model-3.safetensors"]);
    assert!(find(&name, None, false).is_ok());
}

#[test]
fn a_folder_of_several_gguf_files_is_none_of_them() {
    let folder = tempfile::tempdir().expect("folder");
    let name = folder.path().to_string_lossy().into_owned();
    for file in ["b.gguf", "a.gguf"] {
        std::fs::write(folder.path().join(file), "").expect("file");
    }
    let error = find(&name, None, false).expect_err("which one").to_string();
    assert!(error.contains("a.gguf, b.gguf") && error.contains("one of them"), "{error}");
    std::fs::remove_file(folder.path().join("b.gguf")).expect("removed");
    assert!(find(&name, None, false).is_ok());
}

#[test]
fn parts_of_one_gguf_file_are_one_model() {
    let folder = tempfile::tempdir().expect("folder");
    let name = folder.path().to_string_lossy().into_owned();
    let part = |number: usize| folder.path().join(format!("m-0000{number}-of-00003.gguf"));
    for number in 1..=3 {
        std::fs::write(part(number), "").expect("file");
    }
    let located = find(&name, None, false).expect("one model");
    assert_eq!((located.name.as_str(), located.weights), ("m", WeightsLocation::Gguf(part(1))));
    let second = part(2).to_string_lossy().into_owned();
    let located = find(&second, None, false).expect("any part will do");
    assert_eq!((located.name.as_str(), located.weights), ("m", WeightsLocation::Gguf(part(2))));
    std::fs::write(part(3), "version https://git-lfs.github.com/spec/v1\n").expect("file");
    for name in [&name, &second] {
        let error = find(name, None, false).expect_err("a pointer").to_string();
        assert!(error.contains("m-00003-of-00003.gguf"), "{error}");
    }
    std::fs::write(folder.path().join("other.gguf"), "").expect("file");
    let error = find(&name, None, false).expect_err("two models").to_string();
    assert!(error.contains("m-00001-of-00003.gguf, other.gguf"), "{error}");
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
        ModelQuery { name: "facebook/opt-125m", revision: Some("abc"), dummy_weights: false };
    let places = SearchPaths { hub_cache: Some(cache.path().to_owned()) };
    assert!(locate(wanted, &places).is_ok());
    let error = locate(ModelQuery { revision: Some("v9"), ..wanted }, &places)
        .expect_err("no such revision")
        .to_string();
    assert!(
        error.contains("v9") && error.contains("coordinator pull facebook/opt-125m"),
        "{error}"
    );
}

#[test]
fn names() {
    let found = find("opt-30b", None, true).expect("known");
    assert_eq!(found.config.map(|config| config.num_layers), Some(48));
    let error = find("opt-30b", None, false).expect_err("not there").to_string();
    assert!(error.contains("coordinator pull facebook/opt-30b"), "{error}");
    assert!(error.contains("--dummy-weights"), "{error}");
    assert!(find("nonsense", None, true).expect_err("unknown").to_string().contains("opt-125m"));
    assert!(matches!(find("facebook/opt-350m", None, true), Err(LocateError::Opt350m { .. })));
}

#[test]
fn the_cache_is_where_the_hub_says() {
    let places = |set: &[(&str, &str)]| {
        let set: Vec<(String, String)> =
            set.iter().map(|(k, v)| ((*k).to_owned(), (*v).to_owned())).collect();
        SearchPaths::from_environment(move |name| {
            set.iter().find(|(key, _)| key == name).map(|(_, value)| value.clone())
        })
        .hub_cache
    };
    assert_eq!(places(&[("HF_HUB_CACHE", "/a"), ("HF_HOME", "/b")]), Some("/a".into()));
    assert_eq!(places(&[("HF_HOME", "/b"), ("HOME", "/c")]), Some("/b/hub".into()));
    assert_eq!(places(&[("HOME", "/c")]), Some("/c/.cache/huggingface/hub".into()));
    assert_eq!(places(&[]), None);
}
