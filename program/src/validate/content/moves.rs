//! Caches of sequences that have owners.

use model::ops::Kv;

use crate::ir::{Copy, Rows};
use crate::kv_owner::{DEVICE, HOST};
use crate::map::{Chunk, ComputeDevice};

use super::super::error::ValidateError;
use super::{Cache, Now, Walk};

impl Walk<'_> {
    /// Returns the number of streams with rows for a part of a cache.
    pub(super) fn streams_of(&self, part: Chunk) -> u16 {
        let shape = self.program.shape;
        let fills = |stream: &u16| shape.attention_side.side(*stream).fills(part);
        (0..shape.joint_streams()).filter(fills).count() as u16
    }

    /// Returns the part of each cache that is the destination, in a program of migrations.
    pub(super) fn moves_to(&self) -> Option<Chunk> {
        match self.program.shape.rows {
            Rows::Moves(ComputeDevice::Gpu) => Some(DEVICE),
            Rows::Moves(ComputeDevice::Cpu) => Some(HOST),
            _ => None,
        }
    }

    /// Moves some sequences' rows from one part of a cache to the other. Both parts then hold the
    /// rows of all sequences of their owner, as before.
    pub(super) fn move_cache(
        &mut self,
        now: &Now<'_>,
        kv: Kv,
        copy: &Copy,
    ) -> Result<(), ValidateError> {
        let to = copy.chunk.unwrap_or(Chunk::WHOLE);
        let other = if to == HOST { DEVICE } else { HOST };
        // No program with migrations appends, so in each of its steps the caches are as before the
        // step.
        let cache =
            |chunk| Cache { kv, layer: copy.at.layer, batch: copy.at.batch, chunk }.with(0, 0);
        self.need(now, copy.from, cache(other))?;
        self.need(now, copy.to, cache(to))?;
        *self.moved.entry(copy.to.buffer).or_insert(0) += 1;
        self.write(now, copy.to, cache(to));
        Ok(())
    }
}
