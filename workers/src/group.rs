//! A group of sequences in the step table, before it is released.
//!
//! Used by the coordinator and by the in-process harness of the tests; from the release on only
//! `Sample` writes the table.

use program::plan::Plan;
use program::step_table::{Field, Finish, balance_units};

use crate::table::StepTable;

/// A sequence to generate.
#[derive(Debug, Clone, PartialEq)]
pub struct Request {
    pub prompt: Vec<u32>,
    pub max_new: u32,
    /// 0 is greedy.
    pub temperature: f32,
    pub top_p: f32,
    pub seed: u64,
    pub id_hash: u64,
    pub ignore_eos: bool,
}

impl Request {
    /// A greedy request that EOS does not end.
    pub fn greedy(prompt: Vec<u32>, max_new: u32) -> Request {
        Request {
            prompt,
            max_new,
            temperature: 0.0,
            top_p: 1.0,
            seed: 0,
            id_hash: 0,
            ignore_eos: true,
        }
    }
}

/// A request and its place in the group.
#[derive(Debug, Clone, PartialEq)]
pub struct Placed {
    pub batch: usize,
    pub slot: usize,
    pub request: Request,
}

/// The decode step after which all sequences have reached their length; 0 when prefill's token is
/// the last.
pub fn last_step(group: &[Placed]) -> u32 {
    let longest = group.iter().map(|placed| placed.request.max_new).max().unwrap_or(1);
    longest.saturating_sub(1)
}

/// Clears the table and writes a group into it: prompts, limits, sampling, KV extents one behind the
/// other, and the chunks of attention balanced by their bytes.
pub fn fill(table: &StepTable, plan: &Plan, group: &[Placed]) {
    table.clear();
    for Placed { batch, slot, request } in group {
        let store = |field, value| table.set_field(*batch, *slot, field, value);
        table.set_prompt(*batch, *slot, &request.prompt);
        let prompt_len = request.prompt.len() as u32;
        store(Field::PromptLen, prompt_len);
        store(Field::Remaining, request.max_new);
        store(Field::KvCapacity, prompt_len + request.max_new);
        store(Field::Temperature, request.temperature.to_bits());
        store(Field::TopP, request.top_p.to_bits());
        store(Field::SeedLow, request.seed as u32);
        store(Field::SeedHigh, (request.seed >> 32) as u32);
        store(Field::IdHashLow, request.id_hash as u32);
        store(Field::IdHashHigh, (request.id_hash >> 32) as u32);
        store(Field::IgnoreEos, u32::from(request.ignore_eos));
        store(Field::Finish, Finish::Running as u32);
    }
    for batch in 0..table.batches() {
        let capacities: Vec<u32> = (0..table.batch_size())
            .map(|slot| table.field(batch, slot, Field::KvCapacity))
            .collect();
        let mut start = 0;
        for (slot, capacity) in capacities.iter().enumerate() {
            table.set_field(batch, slot, Field::KvStart, start);
            start += capacity;
        }
        let kv_heads = table.kv_heads() as u32;
        table.set_chunk_bounds(batch, &balance_units(&capacities, kv_heads, plan.table.chunks));
    }
}
