//! Deferred rows: what the host keeps of them between steps, and values in which they follow the
//! other rows.
//!
//! A step begins with what rows left in the previous step, when they had completed one layer less,
//! and must leave the same values of the next layer. Only one step is checked: what it leaves for
//! the rows of one stream is what the next step reads for the rows of the following stream.

use model::ops::Value;

use crate::deferred_rows::{kept, stream_after};
use crate::ir::{Copy, Region};
use crate::kv_owner::{DEVICE, HOST};
use crate::map::Chunk;

use super::super::error::ValidateError;
use super::held::{Content, Parts, Stream};
use super::kept::{Kept, after_layer, has_deferred_rows};
use super::{Now, Walk};

impl Walk<'_> {
    /// Moves the deferred rows of a value from the device to the buffer that keeps them, or back.
    pub(super) fn move_deferred(
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

    /// Returns the content that a value's region must hold or receives, part by part: with deferred
    /// rows, the first part contains the rows that are not deferred.
    pub(super) fn by_rows(&self, region: Region, content: Content) -> Vec<(Region, Content)> {
        if !has_deferred_rows(&self.program.shape) {
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
    /// Values that a step does not leave as the next one needs them, or that it wrote without
    /// deferred rows.
    pub(super) fn check_kept(&self, kept_values: &Kept, before: &[Parts]) -> Result<(), String> {
        let config = &self.plan.config;
        let layers = config.num_layers as u16;
        for (value, buffer) in kept_values {
            let now = &self.buffers[buffer.0 as usize];
            let is_left = |completed_layers: u16| {
                let stream = stream_after(completed_layers);
                let expected =
                    after_layer(*value, completed_layers + 1, stream, self.additions_before);
                let chunk = kept(completed_layers, layers);
                let part = now.read(Region::of_chunk(*buffer, Some(chunk))).first();
                part.and_then(Option::as_ref).is_some_and(|held| held.content == expected)
            };
            let is_right = match has_deferred_rows(&self.program.shape) {
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

/// Returns the content of the rows that pass all layers.
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
