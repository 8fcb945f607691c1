//! The part of a value on which an instruction works: as attention is split, or by owner.

use model::config::ModelConfig;
use model::ops::Value;

use crate::deferred_rows::{kept, stream_after};
use crate::ir::{Append, Compute, Copy, Moved, ProgramShape, Region, Rows};
use crate::kv_owner::{DEVICE, HOST, StreamSide};
use crate::map::{Chunk, ComputeDevice};

use super::parts::{normal, operands};

/// # Errors
/// An operand that is another part than the instruction's, described in words.
pub(super) fn check_compute(
    program: &ProgramShape,
    config: &ModelConfig,
    compute: &Compute,
) -> Result<(), String> {
    let attends = compute.op.is_attention();
    let side = program.attention_side.side(compute.at.stream);
    if side != StreamSide::Mapped && attends && !side.attends(compute.chunk) {
        return Err("no attention is computed for that owner in its stream".to_owned());
    }
    // The parts of a linear in pieces are checked by `shape`.
    if side == StreamSide::Mapped && !attends && normal(compute.chunk).is_some() {
        return Ok(());
    }
    let layers = config.num_layers as u16;
    for (value, region) in operands(config, compute) {
        let expected = match side {
            StreamSide::Mapped => compute.chunk.filter(|_| attends && is_cut_with_attention(value)),
            side if !attends || !side.cuts(value) => None,
            // The host computes attention for deferred rows, from and to the buffers that keep
            // them.
            StreamSide::Deferred if compute.chunk == Some(HOST) => {
                Some(kept(compute.at.stream.saturating_sub(stream_after(0)), layers))
            }
            // The device computes attention for whole prompts of either owner.
            _ => match value {
                Value::Key | Value::Value => compute.chunk.filter(|chunk| *chunk == HOST),
                _ => compute.chunk,
            },
        };
        if normal(region.chunk) != normal(expected) {
            let found = region.chunk;
            return Err(format!("it works on {expected:?}, but its {value:?} is {found:?}"));
        }
    }
    Ok(())
}

fn is_cut_with_attention(value: Value) -> bool {
    matches!(value, Value::Scores | Value::Probabilities | Value::Attended)
}

/// # Errors
/// A part that no owner has, or a migration in a program without migrations.
pub(super) fn check_copy(
    program: &ProgramShape,
    config: &ModelConfig,
    copy: &Copy,
) -> Result<(), String> {
    let side = program.attention_side.side(copy.at.stream);
    match (copy.moved, program.rows) {
        (Moved::Sequences(_), Rows::Moves(to)) => {
            let part = if to == ComputeDevice::Gpu { DEVICE } else { HOST };
            match copy.chunk == Some(part) {
                true => Ok(()),
                false => Err("it moves caches to the other owner".to_owned()),
            }
        }
        (Moved::Sequences(_), _) | (_, Rows::Moves(_)) => {
            Err("caches move between owners in programs of their own".to_owned())
        }
        (Moved::Deferred(_), _) => check_deferred(side, config, copy),
        (Moved::Value(value), _) if side != StreamSide::Mapped => {
            let is_part = normal(copy.chunk).is_some();
            match is_part && !side.cuts(value) {
                true => Err(format!("{value:?} is not cut by owner in its stream")),
                false => Ok(()),
            }
        }
        _ => Ok(()),
    }
}

/// Checks the copies of deferred rows: they leave the device after the linears before a layer's
/// attention, and return after it.
fn check_deferred(side: StreamSide, config: &ModelConfig, copy: &Copy) -> Result<(), String> {
    let layers = config.num_layers as u16;
    let Some(layer) = copy.at.layer.filter(|_| side == StreamSide::Deferred) else {
        return Err("no rows lag there".to_owned());
    };
    let leaves = (stream_after(layer), Some(HOST), Some(kept(layer, layers)));
    let comes = (stream_after(layer + 1), Some(kept(layer + 1, layers)), Some(HOST));
    let route = (copy.at.stream, copy.from.chunk, copy.to.chunk);
    match copy.chunk == Some(HOST) && (route == leaves || route == comes) {
        true => Ok(()),
        false => Err("it moves other rows than those that lag there".to_owned()),
    }
}

/// Returns the end of a copy of deferred rows at which they are kept.
pub(super) fn kept_end(copy: &Copy) -> Region {
    if copy.to.chunk == Some(HOST) { copy.from } else { copy.to }
}

/// # Errors
/// Fresh rows of another part than the cache's.
pub(super) fn check_append(program: &ProgramShape, append: &Append) -> Result<(), String> {
    let Append { chunk, from: Region { chunk: rows, .. }, .. } = *append;
    let side = program.attention_side.side(append.at.stream);
    let is_for_all = normal(rows).is_none();
    match side {
        StreamSide::Mapped if is_for_all => Ok(()),
        StreamSide::Host if is_for_all && chunk == HOST => Ok(()),
        StreamSide::Device | StreamSide::Both | StreamSide::Deferred if rows == Some(chunk) => {
            Ok(())
        }
        _ => Err(format!("it appends {rows:?} of the fresh rows to {:?}", chunk_of(chunk))),
    }
}

fn chunk_of(chunk: Chunk) -> Option<Chunk> {
    normal(Some(chunk))
}
