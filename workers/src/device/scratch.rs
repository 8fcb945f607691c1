//! Device scratch in addition to the plan's buffers, stored after them in the arena: rope
//! frequencies, scratch of attention, and a slot for each list of rows or units that changes from
//! step to step.

use std::collections::BTreeMap;

use cuda_kernels::{DeviceAttentionShape, DeviceAttentionUnit, attention_decode_scratch_bytes};
use model::config::ModelConfig;
use model::ops::Op;
use model::quantized_format::kv4_position_bytes;
use program::formats::KvFormat;
use program::ir::{At, Instruction, ProgramId, ProgramShape, ProgramWork, Rows};
use program::map::Chunk;
use program::plan::{DeviceScratch, DeviceWork};

use super::expert_sizes::ExpertSizes;
use super::products;
use super::row_lists::{RowList, frequencies_bytes};

/// Alignment of ranges. Kernels require 16 bytes; a cache line of the device has 128.
const ALIGN_BYTES: u64 = 256;

/// Key of a list that the device reads and that changes in each step.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub(super) struct Key {
    program: ProgramId,
    batch: u16,
    stream: u16,
    /// Kind of the layer: units of layers with different windows are at different cache offsets.
    kind: usize,
    list: List,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
enum List {
    /// Positions, last rows and rotary tables ([`RowList`]).
    Rows,
    /// Units of a chunk.
    Units(Option<Chunk>),
    /// Units whose rows an append of chunks takes, including those of sequences with a shared
    /// prefix.
    Appended(Chunk),
}

impl Key {
    /// Returns the key of the rows of a stream.
    pub(super) fn rows(program: ProgramId, at: At) -> Key {
        Key { program, batch: at.batch, stream: at.stream, kind: 0, list: List::Rows }
    }

    /// Returns the key of the units of a chunk of a stream, in a kind of layer.
    pub(super) fn units(program: ProgramId, at: At, kind: usize, chunk: Option<Chunk>) -> Key {
        Key { program, batch: at.batch, stream: at.stream, kind, list: List::Units(chunk) }
    }

    /// Returns the key of the units of an append; if sequences have single rows, the append uses
    /// the units of attention.
    pub(super) fn appended(
        program: ProgramId,
        rows: Rows,
        at: At,
        kind: usize,
        chunk: Chunk,
    ) -> Key {
        let list = match rows {
            Rows::WholePrompts | Rows::Chunks | Rows::Moves(_) => List::Appended(chunk),
            Rows::Single => List::Units(Some(chunk)),
        };
        Key { program, batch: at.batch, stream: at.stream, kind, list }
    }
}

/// A range of the scratch, in bytes.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Range {
    pub(super) offset_bytes: u64,
    pub(super) size_bytes: u64,
}

/// Ranges of mixtures of experts ([`ExpertSizes`]).
#[derive(Debug, Clone, Copy)]
pub(super) struct ExpertRanges {
    pub(super) logits: Range,
    pub(super) starts: Range,
    pub(super) slots: Range,
    pub(super) parts: Range,
}

/// Layout of the scratch; offsets count from the first byte of the arena.
#[derive(Debug)]
pub(super) struct Scratch {
    /// Rotary tables that are created once ([`frequencies_bytes`]).
    pub(super) frequencies: Range,
    /// Partial results of decode attention.
    pub(super) attention: Range,
    /// Fresh K and V as 4-bit records.
    pub(super) fresh: [Range; 2],
    /// Scratch of mixtures of experts; empty for what the device does not run.
    pub(super) experts: ExpertRanges,
    /// Sums, workspace and expanded matrix of cuBLASLt; empty if it is not used.
    pub(super) blas: [Range; 3],
    /// Tokens of the rows whose logits are computed, u32.
    pub(super) tokens: Range,
    /// Range of all slots together.
    pub(super) slots: Range,
    slot_of: BTreeMap<Key, Range>,
    /// End of the arena.
    pub(super) end_bytes: u64,
}

struct Layout {
    end_bytes: u64,
}

impl Layout {
    fn take(&mut self, size_bytes: u64) -> Range {
        let range = Range { offset_bytes: self.end_bytes, size_bytes };
        self.end_bytes = (self.end_bytes + size_bytes).next_multiple_of(ALIGN_BYTES);
        range
    }
}

/// Returns the kind of an instruction's layer.
pub(super) fn kind_of(config: &ModelConfig, at: At) -> usize {
    config.layers.kind_index(at.layer.map_or(0, usize::from))
}

/// Returns the shape of attention in a kind of layer, as the kernels expect it.
pub(super) fn attention_shape(config: &ModelConfig, kind: usize) -> DeviceAttentionShape {
    let window = config.layers.kinds()[kind].window;
    DeviceAttentionShape {
        heads: config.num_heads as u32,
        kv_heads: config.num_kv_heads as u32,
        head_dim: config.head_dim as u32,
        scale: config.attention_scale(),
        window: window.and_then(|window| u32::try_from(window).ok()),
    }
}

/// Returns the scratch of a CUDA device in addition to a plan's buffers, for the memory budget;
/// `blas` includes cuBLASLt's.
pub fn scratch(blas: bool) -> DeviceScratch {
    fn bytes(work: &DeviceWork<'_>, blas: bool) -> u64 {
        Scratch::new(work, blas).end_bytes.saturating_sub(work.buffers_bytes)
    }
    if blas { |work| bytes(work, true) } else { |work| bytes(work, false) }
}

impl Scratch {
    /// Returns the scratch of a plan's work, sized by its maxima; `blas` includes what cuBLASLt
    /// needs.
    pub(super) fn new(work: &DeviceWork<'_>, blas: bool) -> Scratch {
        let DeviceWork { config, shape, map, buffers_bytes, .. } = *work;
        let start = buffers_bytes.next_multiple_of(ALIGN_BYTES);
        let mut layout = Layout { end_bytes: start };
        let frequencies = layout.take(frequencies_bytes(config, config.layers.kinds().len()));
        let keys = keys(work);
        let heads = config.num_kv_heads as u64;
        let units_max = u64::from(shape.batch_size) * heads;
        let shape_of = |id: ProgramId| -> ProgramShape { work.programs[id.index()].shape };
        let attends =
            |key: &Key| shape_of(key.program).rows == Rows::Single && key.list != List::Rows;
        let attention = match keys.iter().any(attends) {
            true => (0..config.layers.kinds().len())
                .map(|kind| {
                    let of_kind = attention_shape(config, kind);
                    attention_decode_scratch_bytes(&of_kind, units_max as u32, shape.max_context)
                })
                .max()
                .unwrap_or(0),
            false => 0,
        };
        let attention = layout.take(attention);
        let record_bytes = match map.kv_format {
            // Caches of 8 bits are never the device's.
            KvFormat::Plain | KvFormat::Eight => 0,
            KvFormat::Four => kv4_position_bytes(config.head_dim).unwrap_or(0) as u64,
        };
        let rows = work.programs.iter().map(|program| u64::from(program.shape.stream_rows));
        let rows_max = rows.max().unwrap_or(0);
        let fresh = [(); 2].map(|()| layout.take(rows_max * heads * record_bytes));
        let sizes = ExpertSizes::new(work);
        let experts = ExpertRanges {
            logits: layout.take(sizes.logits_bytes),
            starts: layout.take(sizes.starts_bytes),
            slots: layout.take(sizes.slots_bytes),
            parts: layout.take(sizes.parts_bytes),
        };
        let blas = if blas { products::scratch_bytes(work) } else { [0; 3] };
        let blas = blas.map(|size_bytes| layout.take(size_bytes));
        let logits_rows = work.programs.iter().map(|program| u64::from(program.shape.logits_rows));
        let tokens = layout.take(logits_rows.max().unwrap_or(0) * size_of::<u32>() as u64);
        let slots_start = layout.end_bytes;
        let slot_of = keys
            .into_iter()
            .map(|key| {
                let program_shape = shape_of(key.program);
                let sequences = u64::from(program_shape.sequences);
                let size_bytes = match key.list {
                    List::Rows => RowList::new(&program_shape).size_bytes(config) as u64,
                    List::Units(_) => sequences * heads * size_of::<DeviceAttentionUnit>() as u64,
                    List::Appended(_) => {
                        let all = sequences + u64::from(shape.batch_size);
                        all * heads * size_of::<DeviceAttentionUnit>() as u64
                    }
                };
                (key, layout.take(size_bytes))
            })
            .collect();
        let slots = Range { offset_bytes: slots_start, size_bytes: layout.end_bytes - slots_start };
        let end_bytes = layout.end_bytes;
        Scratch { frequencies, attention, fresh, experts, blas, tokens, slots, slot_of, end_bytes }
    }

    /// Returns the slot of a list.
    ///
    /// # Panics
    /// Panics if no instruction of the plan has the list.
    pub(super) fn slot(&self, key: Key) -> Range {
        let Some(range) = self.slot_of.get(&key) else { panic!("no instruction has {key:?}") };
        *range
    }

    /// Returns all lists of the plan, in a fixed order.
    pub(super) fn keys(&self) -> impl Iterator<Item = Key> + '_ {
        self.slot_of.keys().copied()
    }
}

/// Returns the lists that the device's instructions read.
fn keys(work: &DeviceWork<'_>) -> Vec<Key> {
    let kind = |at| kind_of(work.config, at);
    let mut keys = Vec::new();
    for ProgramWork { id, shape, instructions } in &work.programs {
        let program = *id;
        for instruction in instructions {
            match instruction {
                Instruction::Compute(compute) if compute.op.is_attention() => {
                    keys.push(Key::units(program, compute.at, kind(compute.at), compute.chunk));
                }
                Instruction::Compute(compute) if needs_rows(compute.op) => {
                    keys.push(Key::rows(program, compute.at));
                }
                Instruction::Append(append) => {
                    keys.push(Key::appended(
                        program,
                        shape.rows,
                        append.at,
                        kind(append.at),
                        append.chunk,
                    ));
                }
                _ => {}
            }
        }
    }
    keys.sort_unstable();
    keys.dedup();
    keys
}

/// Returns true if an operation uses positions or selects rows.
fn needs_rows(op: Op) -> bool {
    matches!(op, Op::Q | Op::K | Op::FinalNorm)
}
