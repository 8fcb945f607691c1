//! Rows that lag: what the host keeps of them between steps, and values in which they stand behind
//! the rows that do not.
//!
//! A step begins with what rows left in the step before, when they had a layer less behind them,
//! and must leave the same of the next layer. Each has one step only: what it leaves as some rows'
//! is what the next finds as the rows' of the stream behind.

use model::config::ModelConfig;
use model::ops::Value;

use crate::ir::{At, BufferId, Copy, Instruction, Moved, ProgramShape, Region};
use crate::lagging::{KEPT, kept, stream_behind};
use crate::map::Chunk;
use crate::owners::{Attending, DEVICE, HOST};
use crate::plan::Plan;

use super::super::error::{NamedProgram, ValidateError};
use super::super::owners::kept_end;
use super::held::{Content, Held, Parts, Stream};
use super::{Now, Walk};

/// The kept values of a plan, with their buffers.
pub(super) type Kept = Vec<(Value, BufferId)>;

/// Whether rows of a program lag.
pub(super) fn lags(shape: &ProgramShape) -> bool {
    shape.attending == Attending::Lagging
}

/// The stream of an instruction in whose place it is among those of its program. Rows that lag are
/// among the first's.
pub(super) fn own_stream(shape: &ProgramShape, at: At) -> u16 {
    if lags(shape) { 0 } else { at.stream }
}

/// # Errors
/// A value that is kept in two buffers, or two in one.
pub(super) fn kept_values(plan: &Plan) -> Result<Kept, ValidateError> {
    let mut found = Kept::new();
    for program in plan.programs.iter().filter(|program| lags(&program.shape)) {
        let all = program.lanes.iter().flat_map(|list| &list.instructions);
        for instruction in all {
            let Instruction::Copy(copy) = instruction else { continue };
            let Moved::Lagging(value) = copy.moved else { continue };
            let buffer = kept_end(copy).buffer;
            let known = |one: &(Value, BufferId)| one.0 == value || one.1 == buffer;
            match found.iter().find(|one| known(one)) {
                Some(one) if *one == (value, buffer) => {}
                Some(_) => {
                    let name = &plan.buffer(buffer).name;
                    let problem = format!("{value:?} of rows that lag is not only in {name}");
                    let program = NamedProgram::new(program);
                    return Err(ValidateError::Incomplete { program, problem: problem.into() });
                }
                None => found.push((value, buffer)),
            }
        }
    }
    found.retain(|(value, _)| KEPT.contains(value));
    Ok(found)
}

/// What rows leave of a value for their next step, in which they have `behind` layers behind them;
/// `stream` is the one that they are in.
fn left(value: Value, behind: u16, stream: u16, additions_before: &[u32]) -> Content {
    let at = Stream { batch: 0, stream };
    let layer = behind - 1;
    match value {
        Value::Hidden => {
            Content::Hidden { at, updates: additions_before[usize::from(layer)], step: 0 }
        }
        _ => Content::Value { value, layer: Some(layer), at, step: 0 },
    }
}

/// Writes what a step begins with.
pub(super) fn begin(
    buffers: &mut [Parts],
    kept_values: &Kept,
    config: &ModelConfig,
    additions_before: &[u32],
) {
    let layers = config.num_layers as u16;
    for (value, buffer) in kept_values {
        for behind in 1..=layers {
            let content = left(*value, behind, stream_behind(behind), additions_before);
            let held = Held { content, writer: None };
            buffers[buffer.0 as usize].write(Some(kept(behind, layers)), held);
        }
    }
}

impl Walk<'_> {
    /// The rows of a value from the device to where they are kept, or from there.
    pub(super) fn move_lagging(
        &mut self,
        now: &Now<'_>,
        value: Value,
        copy: &Copy,
    ) -> Result<(), ValidateError> {
        let layer = copy.at.layer.map_or(0, usize::from);
        let content = now.value(value, copy.at, self.additions_before[layer]);
        self.need(now, copy.from, content)?;
        self.write(now, copy.to, content);
        Ok(())
    }

    /// What a value's region must hold or gets, part by part: where rows lag, the first part are
    /// those that do not.
    pub(super) fn by_rows(&self, region: Region, content: Content) -> Vec<(Region, Content)> {
        if !lags(&self.program.shape) {
            return vec![(region, content)];
        }
        let part = |chunk: Chunk| Region { chunk: Some(chunk), ..region };
        match region.chunk {
            None => vec![(part(DEVICE), of_all_layers(content)), (part(HOST), content)],
            Some(chunk) if chunk == DEVICE => vec![(region, of_all_layers(content))],
            Some(_) => vec![(region, content)],
        }
    }

    /// # Errors
    /// Values that a step has not left as the next needs them, or has written where no rows lag.
    pub(super) fn check_kept(&self, kept_values: &Kept, before: &[Parts]) -> Result<(), String> {
        let config = &self.plan.config;
        let layers = config.num_layers as u16;
        for (value, buffer) in kept_values {
            let found = &self.buffers[buffer.0 as usize];
            let parts = 0..layers;
            let is_left = |behind: u16| {
                let stream = stream_behind(behind);
                let expected = left(*value, behind + 1, stream, self.additions_before);
                let part = found.read(Some(kept(behind, layers))).first();
                part.and_then(Option::as_ref).is_some_and(|held| held.content == expected)
            };
            let is_right = match lags(&self.program.shape) {
                true => {
                    let first = parts.into_iter().find(|behind| !is_left(*behind));
                    first.map_or(Ok(()), |behind| Err(format!("of layer {behind}")))
                }
                false if found.same(&before[buffer.0 as usize]) => Ok(()),
                false => Err("for rows that do not lag".to_owned()),
            };
            if let Err(which) = is_right {
                return Err(format!("{value:?} is not left {which} for rows that lag"));
            }
        }
        Ok(())
    }
}

/// The same of the rows that pass all layers.
fn of_all_layers(content: Content) -> Content {
    let first = |at: Stream| Stream { stream: 0, ..at };
    match content {
        Content::Hidden { at, updates, step } => Content::Hidden { at: first(at), updates, step },
        Content::Value { value, layer, at, step } => {
            Content::Value { value, layer, at: first(at), step }
        }
        other => other,
    }
}
