//! Tests with committed files of all architectures and the checkpoints from which they were
//! converted: the files written by llama.cpp's converter are read as the same model.

use super::*;
use crate::config::{ModelConfig, Rope, Scales};
use crate::config_json;
use crate::delta::DeltaNet;
use crate::layers::{LayerKind, Layers};
use crate::ops::Op;
use crate::rope::SequenceLength;
use crate::source::TensorPart;
use crate::source::safetensors::SafetensorsSource;

const FIXTURES: [&str; 36] = [
    "deepseek_v2",
    "gemma3",
    "gemma3_vision",
    "gemma4",
    "gemma4_moe",
    "gemma4_shared",
    "gpt_oss",
    "gpt_oss_mxfp4",
    "granite",
    "granite_hybrid",
    "granite_hybrid_dense",
    "granite_moe",
    "kimi_linear",
    "lfm2",
    "lfm2_moe",
    "llama31",
    "llama_linear",
    "ministral3",
    "mistral4",
    "mistral_small",
    "mixtral",
    "nemotron_h",
    "nemotron_h_latent",
    "nemotron_h_moe",
    "olmoe",
    "phi3",
    "phi3_longrope",
    "qwen2_yarn",
    "qwen3",
    "qwen35",
    "qwen35_moe",
    "qwen3_moe",
    "qwen3_next",
    "qwen3_tied",
    "smollm3",
    "step3p5",
];

/// Returns the model of a fixture's `config.json`, and its folder.
fn checkpoint(name: &str) -> (ModelConfig, PathBuf) {
    let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("../tests/fixtures").join(name);
    (config_json::load(&folder, name).unwrap_or_else(|error| panic!("{name}: {error}")), folder)
}

fn of_file(folder: &Path) -> GgufSource {
    GgufSource::open(&folder.join("model.gguf")).unwrap_or_else(|error| panic!("{error}"))
}

/// Returns the configuration without the properties that files express differently: the name,
/// Mistral's family, end tokens, and the rotary positions and Gemma's attention scale, which are
/// compared separately.
fn comparable(config: &ModelConfig) -> ModelConfig {
    let layers = (0..config.num_layers).map(|layer| config.layers.kind(layer).clone());
    let family = match config.family {
        Family::Mistral => Family::Llama,
        family => family,
    };
    ModelConfig {
        name: String::new(),
        family,
        layers: Layers::from_kinds(layers.map(|kind| LayerKind { rope: None, ..kind })),
        scales: Scales { attention: Some(0.0), ..config.scales },
        eos_token_ids: Vec::new(),
        delta: config.delta.map(|delta| DeltaNet { takes_turns: false, ..delta }),
        ..config.clone()
    }
    .with_kind_models()
}

fn assert_same_rope(what: &str, head_dim: usize, ours: Option<&Rope>, theirs: Option<&Rope>) {
    let (Some(ours), Some(theirs)) = (ours, theirs) else {
        assert_eq!(ours, theirs, "{what}");
        return;
    };
    assert_eq!(ours.temperature, theirs.temperature, "{what}");
    // Files contain f32 where checkpoints contain f64.
    let close = |ours: f32, theirs: f32| (ours - theirs).abs() <= 1e-6 * theirs;
    assert!(close(ours.attention_factor(), theirs.attention_factor()), "{what}");
    for length in [0, 40, 49, 1000] {
        let of = |rope: &Rope| rope.inverse_frequencies_for(head_dim, SequenceLength(length));
        let (ours, theirs) = (of(ours), of(theirs));
        assert_eq!(ours.len(), theirs.len(), "{what}");
        let same = ours.iter().zip(&theirs).all(|(ours, theirs)| close(*ours, *theirs));
        assert!(same, "{what}, length {length}: {ours:?}, not {theirs:?}");
    }
}

#[test]
fn keys_describe_the_model_of_the_checkpoint() {
    for name in FIXTURES {
        let (theirs, folder) = checkpoint(name);
        let source = of_file(&folder);
        let ours = source.config();
        assert_eq!(comparable(ours), comparable(&theirs), "{name}");
        for layer in 0..ours.num_layers {
            let rope = |config: &ModelConfig| config.layers.kind(layer).rope.clone();
            let what = format!("{name}, layer {layer}");
            let (ours, theirs) = (rope(ours), rope(&theirs));
            let head_dim = source.config().of_layer(layer).head_dim;
            assert_same_rope(&what, head_dim, ours.as_ref(), theirs.as_ref());
        }
        if ours.family != Family::Gemma3 {
            let scale = |config: &ModelConfig| config.attention_scale();
            assert!((scale(ours) / scale(&theirs) - 1.0).abs() < 1e-6, "{name}");
        }
    }
}

#[test]
fn tensors_hold_what_the_checkpoint_holds() {
    for name in FIXTURES {
        let (theirs, folder) = checkpoint(name);
        let source = of_file(&folder);
        let checkpoint = SafetensorsSource::open(&folder, &theirs).expect(name);
        let mut count = 0;
        for id in layout::tensor_ids(source.config()) {
            let (rows, elements) = source.shape(id).expect("the tensor is there");
            assert_eq!(checkpoint.shape(id).expect("there"), (rows, elements), "{name}, {id:?}");
            let mut expected = vec![f32::NAN; rows * elements];
            checkpoint.read_f32(id, 0, &mut expected).expect("readable");
            expected = in_turn(source.config(), id, expected);
            let is_of_rates = matches!(
                id,
                TensorId::Layer { op: Op::Delta | Op::Mamba, part: TensorPart::Bias, .. }
            );
            if is_of_rates {
                // Files contain the exponentials of the logarithms, in f32.
                let close = |(a, b): (&f32, &f32)| (a - b).abs() <= 1e-6 * b.abs().max(1.0);
                assert!(read_f32(&source, id).iter().zip(&expected).all(close), "{name}, {id:?}");
                continue;
            }
            // Gemma's gains of queries in files include the scale of scores that llama.cpp does not
            // apply.
            if source.config().family == Family::Gemma3
                && matches!(id, TensorId::Layer { op: Op::Q, part: TensorPart::Gain, .. })
            {
                let own = theirs.attention_scale() / source.config().attention_scale();
                expected.iter_mut().for_each(|gain| *gain *= own);
                let close = |(a, b): (&f32, &f32)| (a - b).abs() <= 1e-6 * b.abs();
                assert!(read_f32(&source, id).iter().zip(&expected).all(close), "{name}");
                continue;
            }
            assert!(read_f32(&source, id) == expected, "{name}, {id:?}");
            assert_ranges(&source, id, &expected, rows, elements);
            count += 1;
        }
        assert!(count > 10, "{name}");
    }
}

/// Returns a checkpoint's tensor in the order of a file whose value heads are assigned in turn to
/// the heads of q and k.
fn in_turn(config: &ModelConfig, id: TensorId, mut values: Vec<f32>) -> Vec<f32> {
    let (Some(delta), TensorId::Layer { op, part, .. }) = (config.delta, id) else {
        return values;
    };
    let (hidden, width) = (config.hidden_size, delta.value_dim);
    // Number of elements before the heads in each part, number of elements in a head, and number of
    // equal parts.
    let (before, of_head, parts) = match (op, part) {
        (Op::DeltaQkv, _) => (2 * delta.key_size() * hidden, width * hidden, 1),
        (Op::DeltaGate, _) => (0, width * hidden, 1),
        (Op::DeltaBa, _) => (0, hidden, 2),
        (Op::DeltaConv, _) => (2 * delta.key_size(), width, delta.taps),
        (Op::Delta, TensorPart::Bias) => (0, 1, 2),
        (Op::DeltaOut, _) => (0, width, hidden),
        _ => return values,
    };
    let stored = values.clone();
    let size = values.len() / parts;
    for (value, index) in values.iter_mut().zip(0..) {
        let (part, within) = (index / size, index % size);
        let Some(within) = within.checked_sub(before).filter(|_| delta.takes_turns) else {
            continue;
        };
        let (head, rest) = (within / of_head, within % of_head);
        let theirs = delta.key_head(head) * delta.group() + head / delta.key_heads;
        *value = stored[part * size + before + theirs * of_head + rest];
    }
    values
}

/// Asserts that row ranges that cross heads, experts or fused tensors are equal to those of the
/// whole tensor.
fn assert_ranges(source: &GgufSource, id: TensorId, whole: &[f32], rows: usize, elements: usize) {
    for (first, last) in [(rows / 3, rows), (1.min(rows - 1), rows.div_ceil(2).max(1))] {
        let expected = &whole[first * elements..last * elements];
        let mut out = vec![f32::NAN; expected.len()];
        source.read_f32(id, first, &mut out).expect("readable");
        assert!(out == expected, "{id:?}, rows {first}..{last}");
    }
}
