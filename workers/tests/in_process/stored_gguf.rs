//! A typical GGUF file, with Q4_K and Q6_K among other types: run from the file's own blocks, it
//! computes what its expanded weights do, with the same bits wherever its operations are placed.

use std::path::Path;

use crate::common::placed::{cpu_only, group, options, shape, two_split};
use half::f16;
use model::config::{Dtype, ModelConfig};
use model::quantized_format::{ActivationFormat, WeightFormat};
use model::source::gguf::GgufSource;
use model::source::{StoredType, TensorId, TensorPart, WeightSource};
use planner::split::Split;
use program::compile::compile;
use program::formats::WeightFormats;
use program::ir::ProgramId;
use program::map::{DeviceMap, layer_list};
use workers::testing::InProcess;

const HIDDEN: usize = 256;
const HEADS: usize = 4;
const KV_HEADS: usize = 2;
const FFN: usize = 512;
const VOCAB: usize = 48;
const LAYERS: usize = 2;

/// Writer of a GGUF file: its header and its tensors' data.
#[derive(Default)]
struct Writer {
    metadata: Vec<u8>,
    keys: u64,
    tensors: Vec<(String, Vec<usize>, u32, Vec<u8>)>,
    state: u64,
}

impl Writer {
    fn text(out: &mut Vec<u8>, text: &str) {
        out.extend((text.len() as u64).to_le_bytes());
        out.extend(text.as_bytes());
    }

    fn key(&mut self, key: &str, code: u32) {
        Writer::text(&mut self.metadata, key);
        self.metadata.extend(code.to_le_bytes());
        self.keys += 1;
    }

    fn integer(&mut self, key: &str, value: usize) {
        self.key(&format!("llama.{key}"), 10);
        self.metadata.extend((value as u64).to_le_bytes());
    }

    fn bytes(&mut self, count: usize) -> Vec<u8> {
        let step = |_| {
            self.state = self.state.wrapping_mul(0x5851_f42d_4c95_7f2d).wrapping_add(99);
            (self.state >> 56) as u8
        };
        (0..count).map(step).collect()
    }

    fn norm(&mut self, name: &str) {
        let gains = (0..HIDDEN).flat_map(|i| (0.8 + (i % 5) as f32 / 10.0).to_le_bytes());
        self.tensors.push((name.to_owned(), vec![HIDDEN], 0, gains.collect()));
    }

    /// Adds a matrix of random blocks, whose scales lead to values of about `0.5 / sqrt(k)`.
    fn matrix(&mut self, name: &str, n: usize, k: usize, stored: StoredType) {
        let (code, at, halves, size) = match stored {
            StoredType::Q4K => (12, 0, 2, 256.0),
            StoredType::Q5K => (13, 0, 2, 512.0),
            StoredType::Q6K => (14, 208, 1, 1600.0),
            StoredType::Iq4Xs => (23, 0, 1, 1000.0),
            StoredType::Q2K => (10, 80, 2, 12.0),
            StoredType::Q3K => (11, 108, 1, 40.0),
            StoredType::Iq2S => (22, 0, 1, 50.0),
            StoredType::Iq3Xxs => (18, 0, 1, 120.0),
            other => panic!("{other:?} is none of the file's"),
        };
        let mut data = self.bytes(n * stored.row_bytes(k));
        let scale = f16::from_f32(0.5 / (k as f32).sqrt() / size);
        for block in data.chunks_exact_mut(stored.block().1) {
            for half in 0..halves {
                block[at + 2 * half..][..2].copy_from_slice(&scale.to_le_bytes());
            }
        }
        self.tensors.push((name.to_owned(), vec![n, k], code, data));
    }

    fn write(&self, path: &Path) {
        let mut out = b"GGUF".to_vec();
        out.extend(3u32.to_le_bytes());
        out.extend((self.tensors.len() as u64).to_le_bytes());
        out.extend(self.keys.to_le_bytes());
        out.extend(&self.metadata);
        let mut offset = 0;
        for (name, shape, code, data) in &self.tensors {
            Writer::text(&mut out, name);
            out.extend((shape.len() as u32).to_le_bytes());
            shape.iter().rev().for_each(|size| out.extend((*size as u64).to_le_bytes()));
            out.extend(code.to_le_bytes());
            out.extend((offset as u64).to_le_bytes());
            offset += data.len().next_multiple_of(32);
        }
        for (.., data) in &self.tensors {
            out.resize(out.len().next_multiple_of(32), 0);
            out.extend(data);
        }
        std::fs::write(path, out).expect("the file is written");
    }
}

/// Writes a small LLaMA whose types are mixed as in Q4_K_M files, or in files of fewer bits after
/// the first layer, and opens it.
fn model(path: &Path) -> GgufSource {
    let mut file = Writer { state: 7, ..Writer::default() };
    file.key("general.architecture", 8);
    Writer::text(&mut file.metadata, "llama");
    file.key("tokenizer.ggml.tokens", 9);
    file.metadata.extend(8u32.to_le_bytes());
    file.metadata.extend((VOCAB as u64).to_le_bytes());
    (0..VOCAB).for_each(|id| Writer::text(&mut file.metadata, &format!("t{id}")));
    file.integer("embedding_length", HIDDEN);
    file.integer("block_count", LAYERS);
    file.integer("attention.head_count", HEADS);
    file.integer("attention.head_count_kv", KV_HEADS);
    file.integer("feed_forward_length", FFN);
    file.integer("context_length", 64);
    file.key("llama.attention.layer_norm_rms_epsilon", 12);
    file.metadata.extend(1e-5f64.to_le_bytes());
    file.matrix("token_embd.weight", VOCAB, HIDDEN, StoredType::Q6K);
    file.matrix("output.weight", VOCAB, HIDDEN, StoredType::Q6K);
    file.norm("output_norm.weight");
    let kv = HIDDEN / HEADS * KV_HEADS;
    for layer in 0..LAYERS {
        let name = |part: &str| format!("blk.{layer}.{part}.weight");
        file.norm(&name("attn_norm"));
        file.norm(&name("ffn_norm"));
        let [q, k, v, output] = match layer {
            0 => [StoredType::Q4K, StoredType::Q4K, StoredType::Q6K, StoredType::Q5K],
            _ => [StoredType::Q2K, StoredType::Iq2S, StoredType::Q3K, StoredType::Iq3Xxs],
        };
        file.matrix(&name("attn_q"), HIDDEN, HIDDEN, q);
        file.matrix(&name("attn_k"), kv, HIDDEN, k);
        file.matrix(&name("attn_v"), kv, HIDDEN, v);
        file.matrix(&name("attn_output"), HIDDEN, HIDDEN, output);
        file.matrix(&name("ffn_gate"), FFN, HIDDEN, StoredType::Q4K);
        file.matrix(&name("ffn_up"), FFN, HIDDEN, StoredType::Iq4Xs);
        file.matrix(&name("ffn_down"), HIDDEN, FFN, StoredType::Q6K);
    }
    file.write(path);
    GgufSource::open(path).expect("a good file")
}

/// Returns the formats in which the file stores its matrices.
fn stored(source: &GgufSource, config: &ModelConfig) -> WeightFormats {
    let form = |id| {
        let stored = source.stored_type(id).expect("it is there");
        WeightFormat::Grouped(stored.grouped().expect("every type of the file has a form"))
    };
    let mut formats = WeightFormats::plain(config);
    (formats.embedding, formats.head) = (form(TensorId::Embedding), form(TensorId::Head));
    for (layer, formats) in formats.layers.iter_mut().enumerate() {
        for (op, format) in config.layer_ops(layer).iter().zip(formats) {
            if op.has_matrix(config) {
                *format = form(TensorId::Layer { layer, op: *op, part: TensorPart::Matrix });
            }
        }
    }
    formats
}

/// Returns the tokens of a group, and the logits of a batch's prefill.
fn run(source: &GgufSource, dtype: Dtype, map: DeviceMap) -> (Vec<Vec<u32>>, Vec<f32>) {
    let config = source.config();
    let shape = shape(2, 3, 3, dtype);
    let plan = compile(config, &shape, &map).expect("the map compiles");
    let mut lanes = InProcess::start(plan, source, options(2)).expect("the lanes start");
    let mut group = group(&shape, VOCAB);
    let tokens = lanes.run_group(&group).into_iter().map(|outcome| outcome.tokens).collect();
    group.iter_mut().for_each(|placed| placed.request.max_new = 1);
    lanes.run_group(&group);
    let rows = group.iter().filter(|placed| placed.batch == 0).count();
    let logits = lanes.logits(ProgramId::PREFILL, 0, 0, rows);
    assert!(lanes.finish().iter().all(Result::is_ok));
    (tokens, logits)
}

#[test]
fn a_file_of_k_types_runs_from_its_blocks() {
    let folder = tempfile::tempdir().expect("a folder");
    let source = model(&folder.path().join("small.gguf"));
    let config = source.config();
    let formats = stored(&source, config);
    let of_blocks = |map: DeviceMap| DeviceMap { weight_formats: formats.clone(), ..map };

    // In f32 the blocks have the values to which they expand, but sums are computed in another
    // order.
    let (_, expanded) = run(&source, Dtype::F32, cpu_only(config));
    let (_, exact) = run(&source, Dtype::F32, of_blocks(cpu_only(config)));
    let largest = expanded.iter().fold(0.0f32, |largest, logit| largest.max(logit.abs()));
    assert!(largest > 0.1 && largest < 100.0, "ordinary logits: {largest}");
    for (a, b) in expanded.iter().zip(&exact) {
        assert!((a - b).abs() <= 2e-5 * largest, "{a} and {b} of {largest}");
    }
    // In bf16 the weights of blocks are not rounded, whereas expanded ones are; activations are
    // rounded to 8 bits, or hardly.
    let mut closer = of_blocks(cpu_only(config));
    closer.weight_formats.activations = ActivationFormat::Int12;
    let closer = run(&source, Dtype::Bf16, closer);
    let expected = run(&source, Dtype::Bf16, of_blocks(cpu_only(config)));
    assert!(closer != expected, "activations are rounded otherwise");
    for (found, allowed) in [(&closer, 0.03), (&expected, 0.1)] {
        for (a, b) in expanded.iter().zip(&found.1) {
            assert!((a - b).abs() <= allowed * largest, "{a} and {b} of {largest}");
        }
    }
    let ops = layer_list(config, 0, None).len();
    for (start, end) in [(0, ops), (0, 4), (3, ops - 2), (ops - 3, ops)] {
        let map = of_blocks(two_split(config, Split { start, end }, None));
        assert!(run(&source, Dtype::Bf16, map) == expected, "[{start}, {end})");
    }
}
