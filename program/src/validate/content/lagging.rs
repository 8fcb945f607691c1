//! Rows that lag: what the host keeps of them between steps, and values in which they stand behind
//! the rows that do not.
//!
//! A step begins with what rows left in the step before, when they had a layer less behind them,
//! and must leave the same of the next layer. Each has one step only: what it leaves as some rows'
//! is what the next finds as the rows' of the stream behind.

use model::ops::Value;

use crate::ir::{Copy, Region};
use crate::lagging::{kept, stream_behind};
use crate::map::Chunk;
use crate::owners::{DEVICE, HOST};

use super::super::error::ValidateError;
use super::held::{Content, Parts, Stream};
use super::kept::{Kept, lags, left};
use super::{Now, Walk};

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
            let now = &self.buffers[buffer.0 as usize];
            let is_left = |behind: u16| {
                let stream = stream_behind(behind);
                let expected = left(*value, behind + 1, stream, self.additions_before);
                let part = now.read(Some(kept(behind, layers))).first();
                part.and_then(Option::as_ref).is_some_and(|held| held.content == expected)
            };
            let is_right = match lags(&self.program.shape) {
                true => {
                    let first = (0..layers).find(|behind| !is_left(*behind));
                    first.map_or(Ok(()), |behind| Err(format!("of layer {behind}")))
                }
                false if now.same(&before[buffer.0 as usize]) => Ok(()),
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
