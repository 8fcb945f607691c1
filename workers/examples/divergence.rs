//! How far the next-token distributions of a GGUF file, computed straight from its low-bit weights,
//! lie from those of another file, usually the same weights in bf16: the mean Kullback-Leibler
//! divergence in nats over the second half of each window of text, as llama.cpp's perplexity tool
//! judges it.
//!
//!     cargo run --release -p workers --example divergence -- BASE.gguf FILE.gguf TEXT...
//!
//! Both run in bf16. Used by `scripts/peers/divergence.py`.

use std::error::Error;
use std::path::Path;
use std::time::Duration;

use kernels::{PoolOptions, Variant};
use model::compressed::WeightFormat;
use model::config::{Dtype, ModelConfig};
use model::gguf_tokenizer::GgufTokenizer;
use model::source::gguf::GgufSource;
use model::source::{Part, TensorId, WeightSource};
use planner::policy::{Homes, Policy, device_map};
use program::compile::compile;
use program::formats::WeightFormats;
use program::plan::RunShape;
use program::step_table::List;
use program::topology::MemoryId;
use workers::setup::LaneOptions;
use workers::shared::table::Item;
use workers::testing::{Interleaved, Placed, Request, Sampled};

/// Tokens of a window; the predictions from its middle on are judged.
const CONTEXT: usize = 512;
const WINDOWS: usize = 8;
/// Tokens that prefill reads: its one prediction is the first that is judged.
const PROMPT: usize = CONTEXT / 2 + 1;
const JUDGED: usize = CONTEXT - PROMPT;

fn main() -> Result<(), Box<dyn Error>> {
    let arguments: Vec<String> = std::env::args().skip(1).collect();
    let [base, file, texts @ ..] = arguments.as_slice() else {
        return Err("usage: divergence BASE.gguf FILE.gguf TEXT...".into());
    };
    let (base, file) = (GgufSource::open(Path::new(base))?, GgufSource::open(Path::new(file))?);
    let mut text = String::new();
    for path in texts {
        text.push_str(&std::fs::read_to_string(path)?);
        text.push('\n');
    }
    let Some(tokenizer) = GgufTokenizer::from_metadata(base.metadata(), base.path())? else {
        return Err(format!("{} holds no tokenizer.", base.path()).into());
    };
    let tokens = tokenizer.text.encode(&text, true)?;
    if tokens.len() < WINDOWS * CONTEXT {
        let (found, needed) = (tokens.len(), WINDOWS * CONTEXT);
        return Err(format!("The text has {found} tokens; {needed} are needed.").into());
    }
    let (expected, found) = (predictions(&base, &tokens)?, predictions(&file, &tokens)?);
    let mut divergences = Vec::new();
    let mut same_choice = 0;
    for (expected, found) in expected.iter().zip(&found) {
        assert_eq!((expected.slot, expected.step), (found.slot, found.step), "one order of rows");
        divergences.push(divergence(&expected.logits, &found.logits));
        let chosen = [expected, found].map(|row| kernels::argmax(&row.logits));
        same_choice += usize::from(chosen[0] == chosen[1]);
    }
    let count = divergences.len() as f64;
    let mean = divergences.iter().sum::<f64>() / count;
    let squares: f64 = divergences.iter().map(|value| (value - mean).powi(2)).sum();
    let error = (squares / (count - 1.0) / count).sqrt();
    println!(
        "tandem, {} tokens: mean KL divergence {mean:.5} +- {error:.5}, same most likely token \
         {:.1} %",
        divergences.len(),
        100.0 * same_choice as f64 / count,
    );
    Ok(())
}

/// The logits of every judged position of every window, all windows step by step: the text's own
/// tokens take the place of those that were sampled.
fn predictions(source: &GgufSource, tokens: &[u32]) -> Result<Vec<Sampled>, Box<dyn Error>> {
    let config = source.config();
    let homes = Homes { kv: MemoryId::DRAM, prefill_hidden: MemoryId::DRAM };
    let mut map = device_map(&Policy::CpuOnly, config, true, homes);
    map.weight_formats = stored(source, config)?;
    let shape = RunShape {
        batches: 1,
        batch_size: WINDOWS as u16,
        max_prompt: PROMPT as u32,
        shared_prompt: 0,
        max_context: CONTEXT as u32,
        max_new: JUDGED as u32,
        logprobs: 0,
        micro_sequences: 1,
        prefill_chunk: 0,
        serves: false,
        page_positions: 0,
        kv_pages: 0,
        logits_rows: 0,
        dtype: Dtype::Bf16,
    };
    let options = LaneOptions {
        variant: Variant::from_env()?,
        pool: PoolOptions::unpinned(std::thread::available_parallelism()?.get()),
        link_bytes_per_s: None,
        wait_timeout: Duration::from_secs(60),
        forms: None,
        routes_evenly: false,
        select_text: Vec::new(),
    };
    let mut lanes = Interleaved::start(compile(config, &shape, &map)?, source, options)?;
    let window = |slot: usize| &tokens[slot * CONTEXT..][..CONTEXT];
    let group: Vec<Placed> = (0..WINDOWS)
        .map(|slot| {
            let request = Request::greedy(window(slot)[..PROMPT].to_vec(), JUDGED as u32);
            Placed { batch: 0, slot, request }
        })
        .collect();
    let table = lanes.table();
    let (_, sampled) = lanes.run_group(&group, &mut |_| {
        for index in 0..table.items(0, List::DECODE) {
            let Item { slot, first, .. } = table.item(0, List::DECODE, index);
            if (PROMPT..CONTEXT).contains(&first) {
                table.set_output(0, slot, first - PROMPT, window(slot)[first]);
            }
        }
        0
    })?;
    Ok(sampled)
}

/// The form in which the file holds each matrix, where kernels have it.
fn stored(source: &GgufSource, config: &ModelConfig) -> Result<WeightFormats, Box<dyn Error>> {
    let of = |id| -> Result<WeightFormat, Box<dyn Error>> {
        let grouped = source.stored_type(id)?.grouped();
        Ok(grouped.map_or(WeightFormat::Plain, WeightFormat::Grouped))
    };
    let mut formats = WeightFormats::plain(config);
    formats.embedding = of(TensorId::Embedding)?;
    if !config.tied_embeddings {
        formats.head = of(TensorId::Head)?;
    }
    for (layer, formats) in formats.layers.iter_mut().enumerate() {
        for (op, format) in config.layer_ops(layer).iter().zip(formats) {
            if op.has_matrix(config) {
                *format = of(TensorId::Layer { layer, op: *op, part: Part::Matrix })?;
            }
        }
    }
    Ok(formats)
}

/// `sum(p * (log p - log q))` of the distributions that two rows of logits stand for, in nats.
fn divergence(p: &[f32], q: &[f32]) -> f64 {
    let log_sum = |logits: &[f32]| {
        let largest = logits.iter().fold(f32::NEG_INFINITY, |a, b| a.max(*b));
        let sum: f64 = logits.iter().map(|logit| f64::from(logit - largest).exp()).sum();
        f64::from(largest) + sum.ln()
    };
    let (log_sum_p, log_sum_q) = (log_sum(p), log_sum(q));
    p.iter()
        .zip(q)
        .map(|(p, q)| {
            let (p, q) = (f64::from(*p) - log_sum_p, f64::from(*q) - log_sum_q);
            p.exp() * (p - q)
        })
        .sum()
}
