//! Values of deferred rows that the host keeps between two steps of their program.

use model::config::ModelConfig;
use model::ops::Value;

use crate::deferred_rows::{KEPT, kept, stream_after};
use crate::ir::{At, BufferId, Instruction, Moved, ProgramShape, Region};
use crate::kv_owner::AttentionSide;
use crate::plan::Plan;

use super::super::error::{NamedProgram, ValidateError};
use super::super::kv_owner::kept_end;
use super::held::{Content, Held, Parts, Stream};

/// The kept values of a plan, with their buffers.
pub(super) type Kept = Vec<(Value, BufferId)>;

/// Returns true if a program has deferred rows.
pub(super) fn has_deferred_rows(shape: &ProgramShape) -> bool {
    shape.attention_side == AttentionSide::Deferred
}

/// Returns the stream to which an instruction's rows belong in its program. Deferred rows that have
/// joined belong to the first stream.
pub(super) fn own_stream(shape: &ProgramShape, at: At) -> u16 {
    if has_deferred_rows(shape) { 0 } else { at.stream }
}

/// # Errors
/// A value that is kept in two buffers, or two values in one buffer.
pub(super) fn kept_values(plan: &Plan) -> Result<Kept, ValidateError> {
    let mut values = Kept::new();
    for program in plan.programs.iter().filter(|program| has_deferred_rows(&program.shape)) {
        let all = program.lanes.iter().flat_map(|list| &list.instructions);
        for instruction in all {
            let Instruction::Copy(copy) = instruction else { continue };
            let Moved::Deferred(value) = copy.moved else { continue };
            let buffer = kept_end(copy).buffer;
            let known = |one: &(Value, BufferId)| one.0 == value || one.1 == buffer;
            match values.iter().find(|one| known(one)) {
                Some(one) if *one == (value, buffer) => {}
                Some(_) => {
                    let name = &plan.buffer(buffer).name;
                    let problem = format!("{value:?} of rows that lag is not only in {name}");
                    let program = NamedProgram::new(program);
                    return Err(ValidateError::Incomplete { program, problem: problem.into() });
                }
                None => values.push((value, buffer)),
            }
        }
    }
    values.retain(|(value, _)| KEPT.contains(value));
    Ok(values)
}

/// Returns the content that rows leave of a value for their next step, in which they have completed
/// `completed_layers` layers; `stream` is their present stream.
pub(super) fn after_layer(
    value: Value,
    completed_layers: u16,
    stream: u16,
    additions_before: &[u32],
) -> Content {
    let at = Stream { batch: 0, stream };
    let layer = completed_layers - 1;
    match value {
        Value::Hidden => {
            Content::Hidden { at, updates: additions_before[usize::from(layer)], step: 0 }
        }
        _ => Content::Value { value, layer: Some(layer), at, step: 0 },
    }
}

/// Writes the content with which a step begins.
pub(super) fn begin(
    buffers: &mut [Parts],
    kept_values: &Kept,
    config: &ModelConfig,
    additions_before: &[u32],
) {
    let layers = config.num_layers as u16;
    for (value, buffer) in kept_values {
        for completed_layers in 1..=layers {
            let content = after_layer(
                *value,
                completed_layers,
                stream_after(completed_layers),
                additions_before,
            );
            let held = Held { content, writer: None };
            let chunk = kept(completed_layers, layers);
            buffers[buffer.0 as usize].write(Region::of_chunk(*buffer, Some(chunk)), held);
        }
    }
}
