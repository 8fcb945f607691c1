//! Maps the rows of a table to the operations of a decoder layer.

use std::ops::Range;

use model::config::Family;
use model::ops::{GATED_LAYER, Op, PLAIN_LAYER};
use program::map::{ChunkOrder, Chunking};

use super::bounds::{LLAMA, OPT};
use super::error::TimedError;
use crate::layer::table::{OpCost, OperationTable};

/// Maximum number of chunks, as in `--split-chunks`.
const CHUNKS_MAX: usize = 64;

/// A table's rows as entries of a layer's list. Operations that the table leaves out take no time
/// and are placed like the preceding one.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct TableLayer {
    pub(super) family: Family,
    pub(super) chunking: Option<Chunking>,
    /// The layer's list: operation and number of the chunk.
    pub(super) entries: Vec<(Op, Option<u16>)>,
    /// For each row of the table its index in the list; ascending.
    pub(super) entry_indices: Vec<usize>,
}

impl TableLayer {
    /// Parses the names.
    ///
    /// # Errors
    /// Names that no layer has, another order, chunks of anything but scores.
    pub(super) fn parse(table: &OperationTable) -> Result<TableLayer, TimedError> {
        let named: Vec<(Op, Option<u16>)> =
            table.ops.iter().map(named).collect::<Result<_, _>>()?;
        let llama = named.iter().any(|(op, _)| matches!(op, Op::Gate | Op::Up | Op::Down));
        let (family, ops, order) = if llama {
            (Family::Llama, GATED_LAYER, LLAMA)
        } else {
            (Family::Opt, PLAIN_LAYER, OPT)
        };
        let chunks = named.iter().filter(|(_, chunk)| chunk.is_some()).count();
        if chunks > CHUNKS_MAX {
            return Err(TimedError::Chunks { name: "scores".to_owned() });
        }
        let chunking =
            (chunks > 0).then_some(Chunking { order: ChunkOrder::Scores, chunks: chunks as u16 });
        let mut entries = Vec::new();
        for op in ops {
            match (op, chunks) {
                (Op::Scores, 1..) => {
                    entries.extend((0..chunks as u16).map(|index| (Op::Scores, Some(index))));
                }
                _ => entries.push((*op, None)),
            }
        }
        let mut entry_indices: Vec<usize> = Vec::with_capacity(named.len());
        for (row, entry) in table.ops.iter().zip(&named) {
            let name = || row.name.clone();
            let place = entries.iter().position(|other| other == entry);
            let place = place.ok_or_else(|| match entry.1 {
                // A whole operation in addition to its chunks, or a gap in their numbers.
                _ if entry.0 == Op::Scores => TimedError::Chunks { name: name() },
                _ => TimedError::Unknown { name: name() },
            })?;
            if entry_indices.contains(&place) {
                return Err(TimedError::DuplicateTime { name: name() });
            }
            if entry_indices.last().is_some_and(|last| *last > place) {
                return Err(TimedError::Order { name: name(), order });
            }
            entry_indices.push(place);
        }
        Ok(TableLayer { family, chunking, entries, entry_indices })
    }

    /// Returns an interval of the table's rows as an interval of the layer's list.
    pub(super) fn interval(&self, start: usize, end: usize) -> (usize, usize) {
        if start == end {
            return (0, 0);
        }
        let edge = |row: usize| match row {
            0 => 0,
            row => self.entry_indices.get(row).copied().unwrap_or(self.entries.len()),
        };
        (edge(start), edge(end))
    }

    /// Returns the number of parts of scores in a range of the list; at least 1.
    pub(super) fn score_parts(&self, range: Range<usize>) -> u16 {
        self.entries[range].iter().filter(|(op, _)| *op == Op::Scores).count().max(1) as u16
    }
}

/// Returns the operation of a row, and checks that the row transfers what the operation has.
fn named(row: &OpCost) -> Result<(Op, Option<u16>), TimedError> {
    let name = || row.name.clone();
    let base = match row.chunk {
        Some(_) => row.name.rsplit_once('.').map_or(row.name.as_str(), |(base, _)| base),
        None => row.name.as_str(),
    };
    let op = operation(base).ok_or_else(|| TimedError::Unknown { name: name() })?;
    let reads_kv = matches!(op, Op::Scores | Op::Wv);
    let moves = row.h2d_ms > 0.0 || row.h2d_compressed_ms > 0.0 || row.decompress_ms > 0.0;
    match (op, row.chunk) {
        (Op::Scores, _) | (_, None) => {}
        _ => return Err(TimedError::Chunked { name: name() }),
    }
    if row.kv != reads_kv && (row.kv || moves) {
        return Err(TimedError::Kv { name: name() });
    }
    if op == Op::Softmax && moves {
        return Err(TimedError::NothingToMove { name: name() });
    }
    Ok((op, row.chunk))
}

/// Parses names as this project writes them and as in Park-Egger's figures, ignoring case, dots and
/// separators.
fn operation(name: &str) -> Option<Op> {
    let plain: String = name.chars().filter(char::is_ascii_alphanumeric).collect();
    Some(match plain.to_ascii_lowercase().as_str() {
        "ln0" | "norm0" => Op::Norm0,
        "q" => Op::Q,
        "k" => Op::K,
        "v" => Op::V,
        "scores" => Op::Scores,
        "softmax" => Op::Softmax,
        "wv" => Op::Wv,
        "out" | "output" => Op::Out,
        "ln1" | "norm1" => Op::Norm1,
        "gate" => Op::Gate,
        "up" => Op::Up,
        "down" => Op::Down,
        "fc0" => Op::Fc0,
        "fc1" => Op::Fc1,
        _ => return None,
    })
}
