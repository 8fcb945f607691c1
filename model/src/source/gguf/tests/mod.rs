//! Tests of the GGUF reader, on files that `writer` makes.

use std::path::{Path, PathBuf};

use super::writer::Writer;
use super::*;
use crate::config::Family;

mod config;
mod damage;
mod families;
mod fixtures;
mod parts;
mod quants;
mod real;
mod rope;
mod tensors;

/// Hidden size of the small models: a multiple of a block.
const HIDDEN: usize = 32;
const HEADS: usize = 4;
const KV_HEADS: usize = 2;
const HEAD_DIM: usize = 8;
const FFN: usize = 64;
const VOCAB: usize = 6;
const LAYERS: usize = 2;

/// A file in a folder that goes away with it.
struct TestFile {
    _folder: tempfile::TempDir,
    path: PathBuf,
}

impl TestFile {
    fn new(bytes: &[u8]) -> Self {
        let folder = tempfile::tempdir().expect("a temporary folder");
        let path = folder.path().join("small.gguf");
        std::fs::write(&path, bytes).expect("a test file can be written");
        Self { _folder: folder, path }
    }
}

fn open(writer: &Writer) -> Result<GgufSource, SourceError> {
    let file = TestFile::new(&writer.bytes());
    GgufSource::open(&file.path)
}

/// The message of a file that must be refused.
fn refusal(writer: &Writer) -> String {
    open(writer).expect_err("the file must be refused").to_string()
}

/// Values that differ by tensor and place and are exact in every type but the quantised.
fn values(name: &str, count: usize) -> Vec<f32> {
    let seed = name.bytes().fold(7u32, |seed, byte| seed.wrapping_mul(31) + u32::from(byte));
    (0..count as u32).map(|i| ((seed.wrapping_add(i * 37) % 509) as f32 - 254.0) / 64.0).collect()
}

/// A file of `small_model` with changes.
fn changed(architecture: &str, change: &dyn Fn(&mut Writer)) -> Writer {
    let mut writer = small_model(architecture);
    change(&mut writer);
    writer
}

/// A whole small model in F32. `values` says what is in each tensor, as stored.
fn small_model(architecture: &str) -> Writer {
    let mut writer = Writer::new();
    writer.text("general.architecture", architecture);
    let tokens: Vec<String> = (0..VOCAB).map(|id| format!("t{id}")).collect();
    let tokens: Vec<&str> = tokens.iter().map(String::as_str).collect();
    writer.texts("tokenizer.ggml.tokens", &tokens);
    for (key, size) in [
        ("embedding_length", HIDDEN),
        ("block_count", LAYERS),
        ("attention.head_count", HEADS),
        ("attention.head_count_kv", KV_HEADS),
        ("feed_forward_length", FFN),
        ("context_length", 128),
    ] {
        writer.integer(&format!("{architecture}.{key}"), size as u64);
    }
    let key = format!("{architecture}.attention.layer_norm_rms_epsilon");
    writer.set(&key, metadata::Value::Float(1e-5));

    let mut tensor = |name: &str, shape: &[usize]| {
        writer.tensor_f32(name, shape, &values(name, shape.iter().product()));
    };
    tensor("token_embd.weight", &[VOCAB, HIDDEN]);
    tensor("output_norm.weight", &[HIDDEN]);
    for layer in 0..LAYERS {
        let (q, kv) = (HEADS * HEAD_DIM, KV_HEADS * HEAD_DIM);
        let mut part = |stem: &str, shape: &[usize]| {
            tensor(&format!("blk.{layer}.{stem}"), shape);
        };
        part("attn_norm.weight", &[HIDDEN]);
        part("ffn_norm.weight", &[HIDDEN]);
        part("attn_q.weight", &[q, HIDDEN]);
        part("attn_k.weight", &[kv, HIDDEN]);
        part("attn_v.weight", &[kv, HIDDEN]);
        part("attn_output.weight", &[HIDDEN, q]);
        part("ffn_gate.weight", &[FFN, HIDDEN]);
        part("ffn_up.weight", &[FFN, HIDDEN]);
        part("ffn_down.weight", &[HIDDEN, FFN]);
        if architecture == "qwen2" {
            part("attn_q.bias", &[q]);
            part("attn_k.bias", &[kv]);
            part("attn_v.bias", &[kv]);
        }
        if architecture == "gemma3" {
            part("attn_q_norm.weight", &[HEAD_DIM]);
            part("attn_k_norm.weight", &[HEAD_DIM]);
            part("post_attention_norm.weight", &[HIDDEN]);
            part("post_ffw_norm.weight", &[HIDDEN]);
        }
    }
    if architecture == "phi3" {
        fuse(&mut writer);
    }
    writer
}

/// q, k and v as one tensor, and gate and up, as Phi's files have them.
fn fuse(writer: &mut Writer) {
    for layer in 0..LAYERS {
        let at = |stem: &str| format!("blk.{layer}.{stem}.weight");
        let gone = ["attn_q", "attn_k", "attn_v", "ffn_gate", "ffn_up"].map(at);
        writer.tensors.retain(|(name, ..)| !gone.contains(name));
        for (stem, rows) in [("attn_qkv", (HEADS + 2 * KV_HEADS) * HEAD_DIM), ("ffn_up", 2 * FFN)] {
            let values = values(&at(stem), rows * HIDDEN);
            writer.tensor_f32(&at(stem), &[rows, HIDDEN], &values);
        }
    }
}

/// A small model whose feed-forward networks are 4 experts.
fn small_model_with_experts(architecture: &str) -> Writer {
    let mut writer = small_model(architecture);
    writer.integer(&format!("{architecture}.expert_count"), 4);
    writer.integer(&format!("{architecture}.expert_used_count"), 2);
    writer.tensors.retain(|(name, ..)| {
        !["ffn_gate", "ffn_up", "ffn_down"].iter().any(|stem| name.contains(stem))
    });
    for layer in 0..LAYERS {
        let mut part = |stem: &str, shape: &[usize]| {
            let name = format!("blk.{layer}.{stem}.weight");
            writer.tensor_f32(&name, shape, &values(&name, shape.iter().product()));
        };
        part("ffn_gate_inp", &[4, HIDDEN]);
        part("ffn_gate_exps", &[4, FFN, HIDDEN]);
        part("ffn_up_exps", &[4, FFN, HIDDEN]);
        part("ffn_down_exps", &[4, HIDDEN, FFN]);
    }
    writer
}

fn read_f32(source: &GgufSource, id: TensorId) -> Vec<f32> {
    let (rows, elements) = source.shape(id).expect("the tensor is there");
    let mut out = vec![f32::NAN; rows * elements];
    source.read_f32(id, 0, &mut out).expect("the tensor can be read");
    out
}
