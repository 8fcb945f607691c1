//! Predictions of a model in windows of a text, and the divergence of two predictions, for the
//! examples that compare two ways to compute the same model.

use std::error::Error;
use std::time::Duration;

use kernels::{PoolOptions, Variant};
use model::config::{Dtype, ModelConfig};
use model::source::gguf::GgufSource;
use planner::policy::{DefaultTiers, Policy, device_map};
use program::compile::compile;
use program::map::DeviceMap;
use program::plan::RunShape;
use program::step_table::List;
use program::topology::MemoryId;
use protocol::table::WorkItem;
use text::gguf_tokenizer::GgufTokenizer;
use workers::setup::LaneOptions;
use workers::testing::{GenerationRequest, Interleaved, PlacedRequest, SampledLogits};

/// Division of a text into windows.
#[derive(Debug, Clone, Copy)]
pub struct Windows {
    pub count: usize,
    /// Number of tokens of each window.
    pub tokens: usize,
    /// Number of tokens that prefill reads; its only prediction is the first that is compared.
    pub prompt: usize,
}

/// Predictions, and the positions that new tokens attended to if they select: the number read, and
/// the number of all.
#[allow(dead_code, reason = "each example uses its part")]
pub struct Predicted {
    pub rows: Vec<SampledLogits>,
    pub selected: (u64, u64),
}

/// Returns the tokens of some text files, enough for all windows.
pub fn tokens(
    source: &GgufSource,
    texts: &[String],
    windows: Windows,
) -> Result<Vec<u32>, Box<dyn Error>> {
    let mut text = String::new();
    for path in texts {
        text.push_str(&std::fs::read_to_string(path)?);
        text.push('\n');
    }
    let Some(tokenizer) = GgufTokenizer::from_metadata(source.metadata(), source.path())? else {
        return Err(format!("{} holds no tokenizer.", source.path()).into());
    };
    let tokens = tokenizer.text.encode(&text, true)?;
    let (found, needed) = (tokens.len(), windows.count * windows.tokens);
    if found < needed {
        return Err(format!("The text has {found} tokens; {needed} are needed.").into());
    }
    Ok(tokens)
}

/// Returns the map of a run on the CPU alone, entirely in the run's dtype.
pub fn on_cpu(config: &ModelConfig) -> DeviceMap {
    let homes = DefaultTiers { kv: MemoryId::DRAM, prefill_hidden: MemoryId::DRAM };
    device_map(&Policy::CpuOnly, config, true, homes)
}

/// Returns the logits of every compared position of every window, in bf16. All windows advance step
/// by step, and the text's own tokens replace the sampled ones.
pub fn predictions(
    source: &GgufSource,
    map: &DeviceMap,
    windows: Windows,
    tokens: &[u32],
    select_text: &[u32],
) -> Result<Predicted, Box<dyn Error>> {
    let judged = windows.tokens - windows.prompt;
    let shape = RunShape {
        batches: 1,
        batch_size: windows.count as u16,
        max_prompt: windows.prompt as u32,
        shared_prompt: 0,
        max_context: windows.tokens as u32,
        max_new: judged as u32,
        logprobs: 0,
        micro_sequences: 1,
        prefill_chunk: 0,
        serves: false,
        page_positions: 0,
        kv_pages: 0,
        checkpoints: 0,
        logits_rows: 0,
        device_slots: 0,
        dtype: Dtype::Bf16,
    };
    let options = LaneOptions {
        variant: Variant::from_env()?,
        pool: PoolOptions::unpinned(std::thread::available_parallelism()?.get()),
        link_bytes_per_s: None,
        wait_timeout: Duration::from_secs(60),
        grammars: None,
        routes_randomly: false,
        select_text: select_text.to_vec(),
        drafter: None,
    };
    let mut lanes = Interleaved::start(compile(source.config(), &shape, map)?, source, options)?;
    let window = |slot: usize| &tokens[slot * windows.tokens..][..windows.tokens];
    let group: Vec<PlacedRequest> = (0..windows.count)
        .map(|slot| {
            let prompt = window(slot)[..windows.prompt].to_vec();
            PlacedRequest {
                batch: 0,
                slot,
                request: GenerationRequest::greedy(prompt, judged as u32),
            }
        })
        .collect();
    let table = lanes.table();
    let (_, rows) = lanes.run_group(&group, &mut |_| {
        for index in 0..table.item_count(0, List::DECODE) {
            let WorkItem { slot, first, .. } = table.item(0, List::DECODE, index);
            if (windows.prompt..windows.tokens).contains(&first) {
                table.set_output(0, slot, first - windows.prompt, window(slot)[first]);
            }
        }
        0
    })?;
    Ok(Predicted { rows, selected: table.selected_positions() })
}

/// Statistics of the divergences of all compared predictions.
pub struct Comparison {
    pub count: usize,
    /// Mean divergence, in nats.
    pub mean: f64,
    /// Standard error of the mean.
    pub error: f64,
    /// Share of predictions with the same most likely token.
    pub same_choice: f64,
}

impl Comparison {
    /// Compares predictions with the expected ones.
    pub fn between(expected: &[SampledLogits], found: &[SampledLogits]) -> Comparison {
        let mut divergences = Vec::new();
        let mut same_choice = 0;
        for (expected, found) in expected.iter().zip(found) {
            assert_eq!((expected.slot, expected.step), (found.slot, found.step), "one order");
            divergences.push(divergence(&expected.logits, &found.logits));
            let chosen = [expected, found].map(|row| kernels::argmax(&row.logits));
            same_choice += usize::from(chosen[0] == chosen[1]);
        }
        let count = divergences.len() as f64;
        let mean = divergences.iter().sum::<f64>() / count;
        let squares: f64 = divergences.iter().map(|value| (value - mean).powi(2)).sum();
        Comparison {
            count: divergences.len(),
            mean,
            error: (squares / (count - 1.0) / count).sqrt(),
            same_choice: same_choice as f64 / count,
        }
    }
}

/// Returns `sum(p * (log p - log q))` for the distributions given by two rows of logits, in nats.
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
