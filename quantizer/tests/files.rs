//! Whole files: checkpoints and GGUF files to GGUF, read again.

use std::path::{Path, PathBuf};

use model::config::ModelConfig;
use model::config_json;
use model::source::gguf::GgufSource;
use model::source::gguf::export::matrix_names;
use model::source::safetensors::SafetensorsSource;
use model::source::{StoredType, TensorId, TensorPart, WeightSource};
use quantizer::checkpoint::CheckpointInput;
use quantizer::error::QuantizeError;
use quantizer::file_type::FileType;
use quantizer::importance::Importance;
use quantizer::input::GgufInput;
use quantizer::job::{QuantizeOptions, QuantizeProgress, QuantizedFile, quantize};

/// Families of which files are written, by their fixtures.
const WRITTEN: [&str; 25] = [
    "llama",
    "llama31",
    "llama_linear",
    "mistral_window",
    "mixtral",
    "qwen2",
    "qwen2_yarn",
    "qwen3",
    "qwen3_tied",
    "qwen3_moe",
    "gemma3",
    "olmo2",
    "olmo3",
    "phi3",
    "smollm3",
    "granite",
    "granite_moe",
    "olmoe",
    "seed_oss",
    "mistral_small",
    "qwen2_moe",
    "phi3_longrope",
    "gpt_oss",
    "ministral3",
    "minimax_m2",
];

/// Observer that does not end the job.
struct Unobserved;

impl QuantizeProgress for Unobserved {
    fn update(&self, _done_bytes: u64, _total_bytes: u64) {}

    fn is_interrupted(&self) -> bool {
        false
    }
}

fn fixture(name: &str) -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../tests/fixtures").join(name)
}

fn config(folder: &Path) -> ModelConfig {
    config_json::load(folder, "fixture").expect("a good configuration")
}

fn options<'a>(file_type: &str, importance: &'a Importance) -> QuantizeOptions<'a> {
    let file_type: FileType = file_type.parse().expect("known");
    QuantizeOptions { file_type, importance, threads: 3, overwrites: false }
}

fn from_checkpoint(
    name: &str,
    file_type: &str,
    output: &Path,
) -> Result<QuantizedFile, QuantizeError> {
    let folder = fixture(name);
    let config = config(&folder);
    let source = SafetensorsSource::open(&folder, &config)?;
    let input = CheckpointInput::new(&config, &source, &folder)?;
    quantize(&input, output, &options(file_type, &Importance::default()), &Unobserved)
}

fn ids(config: &ModelConfig) -> Vec<TensorId> {
    let parts = [TensorPart::Matrix, TensorPart::Gain, TensorPart::Bias];
    let layers = (0..config.num_layers).flat_map(|layer| {
        let ops = config.layer_ops(layer).iter();
        ops.flat_map(move |op| parts.map(|part| TensorId::Layer { layer, op: *op, part }))
    });
    let around =
        [TensorId::Embedding, TensorId::Head, TensorId::FinalNorm { part: TensorPart::Gain }];
    let all = around.into_iter().chain(layers);
    all.filter(|id| id.expected_shape(config).is_some()).collect()
}

fn read(source: &dyn WeightSource, id: TensorId) -> Vec<f32> {
    let (rows, columns) = source.shape(id).expect("a tensor of the model");
    let mut out = vec![f32::NAN; rows * columns];
    source.read_f32(id, 0, &mut out).expect("readable");
    out
}

#[test]
fn files_of_every_family_have_the_weights_of_the_checkpoint() {
    let work = tempfile::tempdir().expect("a temporary folder");
    for name in WRITTEN {
        let output = work.path().join(format!("{name}.gguf"));
        from_checkpoint(name, "f32", &output).unwrap_or_else(|error| panic!("{name}: {error}"));
        let config = config(&fixture(name));
        let checkpoint = SafetensorsSource::open(&fixture(name), &config).expect("a checkpoint");
        let file = GgufSource::open(&output).expect("a file");
        let ids = ids(&config);
        assert!(ids.len() > 10, "{name}");
        for id in ids {
            let (expected, found) = (read(&checkpoint, id), read(&file, id));
            assert_eq!(expected, found, "{name}: {id:?}");
        }
    }
}

#[test]
fn families_that_files_do_not_express_are_refused_before_anything_is_left() {
    let work = tempfile::tempdir().expect("a temporary folder");
    for name in ["opt", "llama_dynamic", "qwen3_next", "deepseek_v2"] {
        let output = work.path().join("refused.gguf");
        let error = from_checkpoint(name, "q8_0", &output).expect_err(name).to_string();
        assert!(error.contains("cannot be converted to GGUF"), "{name}: {error}");
    }
    assert_eq!(std::fs::read_dir(work.path()).expect("readable").count(), 0);
}

#[test]
fn every_type_is_written_and_read_with_small_errors() {
    let work = tempfile::tempdir().expect("a temporary folder");
    let config = config(&fixture("qwen3_moe"));
    let checkpoint = SafetensorsSource::open(&fixture("qwen3_moe"), &config).expect("a checkpoint");
    for file_type in FileType::ALL {
        let output = work.path().join(format!("{file_type}.gguf"));
        let written = from_checkpoint("qwen3_moe", file_type.name, &output).expect("written");
        assert_eq!(output.metadata().expect("there").len(), written.size_bytes);
        let file = GgufSource::open(&output).expect("a file");
        let code = file.metadata().integer("general.file_type").expect("an integer");
        assert_eq!(code, Some(file_type.code));
        for id in ids(&config) {
            let (expected, found) = (read(&checkpoint, id), read(&file, id));
            let is_router = matches!(id, TensorId::Layer { op: model::ops::Op::Router, .. });
            if id.is_vector() || is_router {
                assert_eq!(expected, found, "{file_type}: {id:?}");
                continue;
            }
            let squares = expected.iter().zip(&found).map(|(a, b)| f64::from(a - b).powi(2));
            let total: f64 = expected.iter().map(|value| f64::from(*value).powi(2)).sum();
            let error = squares.sum::<f64>() / total;
            assert!(error < 0.02, "{file_type}: {id:?} has {error:.2e} of its square");
        }
    }
}

#[test]
fn a_gguf_file_keeps_its_metadata_and_what_has_the_type_already() {
    let work = tempfile::tempdir().expect("a temporary folder");
    let original = GgufSource::open(&fixture("qwen3_moe/model.gguf")).expect("a fixture");
    let input = GgufInput::new(&original).expect("an input");
    assert!(!input.is_quantised());
    let small = work.path().join("small.gguf");
    let importance = Importance::default();
    quantize(&input, &small, &options("q8_0", &importance), &Unobserved).expect("written");
    let file = GgufSource::open(&small).expect("a file");
    let replaced = ["general.file_type", "general.quantization_version"];
    let entries = |source: &GgufSource| {
        let mut entries = source.metadata_entries().expect("readable");
        entries.retain(|(key, _)| !replaced.contains(&key.as_str()));
        entries
    };
    assert_eq!(entries(&original), entries(&file));
    assert!(entries(&file).len() > 10);

    // A second pass copies all blocks.
    let again = GgufInput::new(&file).expect("an input");
    assert!(again.is_quantised());
    let copy = work.path().join("copy.gguf");
    quantize(&again, &copy, &options("q8_0", &importance), &Unobserved).expect("written");
    assert_eq!(std::fs::read(small).expect("there"), std::fs::read(copy).expect("there"));
}

#[test]
fn an_existing_file_is_kept_unless_it_may_be_overwritten() {
    let work = tempfile::tempdir().expect("a temporary folder");
    let output = work.path().join("out.gguf");
    std::fs::write(&output, "mine").expect("writable");
    let error = from_checkpoint("qwen3", "q4_0", &output).expect_err("it exists");
    assert!(matches!(error, QuantizeError::Exists { .. }), "{error}");
    assert_eq!(std::fs::read(&output).expect("there"), b"mine");

    let source = GgufSource::open(&fixture("qwen3/model.gguf")).expect("a fixture");
    let input = GgufInput::new(&source).expect("an input");
    let importance = Importance::default();
    let forced = QuantizeOptions { overwrites: true, ..options("q4_0", &importance) };
    quantize(&input, &output, &forced, &Unobserved).expect("overwritten");
    GgufSource::open(&output).expect("a file");
    assert_eq!(std::fs::read_dir(work.path()).expect("readable").count(), 1);
}

/// Observer that ends the job after the first piece.
struct Ended;

impl QuantizeProgress for Ended {
    fn update(&self, _done_bytes: u64, _total_bytes: u64) {}

    fn is_interrupted(&self) -> bool {
        true
    }
}

#[test]
fn an_interrupted_job_leaves_nothing() {
    let work = tempfile::tempdir().expect("a temporary folder");
    let source = GgufSource::open(&fixture("qwen3/model.gguf")).expect("a fixture");
    let input = GgufInput::new(&source).expect("an input");
    let importance = Importance::default();
    let output = work.path().join("out.gguf");
    let error = quantize(&input, &output, &options("q8_0", &importance), &Ended);
    assert!(matches!(error, Err(QuantizeError::Interrupted)), "{error:?}");
    assert_eq!(std::fs::read_dir(work.path()).expect("readable").count(), 0);
}

#[test]
fn the_number_of_threads_does_not_change_a_byte() {
    let work = tempfile::tempdir().expect("a temporary folder");
    let source = GgufSource::open(&fixture("qwen3_moe/model.gguf")).expect("a fixture");
    let input = GgufInput::new(&source).expect("an input");
    let importance = Importance::default();
    let written = [1, 4].map(|threads| {
        let output = work.path().join(format!("{threads}.gguf"));
        let options = QuantizeOptions { threads, ..options("q4_k_m", &importance) };
        quantize(&input, &output, &options, &Unobserved).expect("written");
        std::fs::read(output).expect("there")
    });
    assert_eq!(written[0], written[1]);
}

#[test]
fn importance_applies_to_each_expert_by_itself() {
    let work = tempfile::tempdir().expect("a temporary folder");
    let source = GgufSource::open(&fixture("qwen3_moe/model.gguf")).expect("a fixture");
    let config = source.config();
    let experts = config.experts.expect("experts");
    let id = TensorId::Layer { layer: 0, op: model::ops::Op::ExpertUp, part: TensorPart::Matrix };
    assert!(matrix_names(config).iter().any(|(known, _)| *known == id));
    let columns = config.hidden_size;
    // The first expert has inputs in every other column; the others were not routed to.
    let uneven: Vec<f64> =
        (0..columns).map(|column| f64::from(u8::from(column % 2 == 0))).collect();
    let mut sums = vec![vec![0.0; columns]; experts.count];
    sums[0] = uneven;
    let importance = Importance::from_sums(config, &[(id, sums)].into());
    assert_eq!(importance.unrouted_experts(), experts.count - 1);
    let input = GgufInput::new(&source).expect("an input");
    let rows = |importance: &Importance, name: &str| {
        let output = work.path().join(name);
        quantize(&input, &output, &options("q4_0", importance), &Unobserved).expect("written");
        let file = GgufSource::open(&output).expect("a file");
        let down =
            TensorId::Layer { layer: 0, op: model::ops::Op::ExpertGate, part: TensorPart::Matrix };
        assert_eq!(file.stored_type(id).expect("there"), StoredType::Q4_0);
        (read(&file, id), read(&file, down))
    };
    let (plain, plain_gate) = rows(&Importance::default(), "plain.gguf");
    let (weighted, weighted_gate) = rows(&importance, "weighted.gguf");
    let of_expert = experts.ffn_size * columns;
    assert_ne!(plain[..of_expert], weighted[..of_expert]);
    assert_eq!(plain[of_expert..], weighted[of_expert..]);
    assert_eq!(plain_gate, weighted_gate);
}
