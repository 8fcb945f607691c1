//! Conditions that a program must satisfy at its end.

use crate::ir::{BufferId, Region};

use super::super::error::{NamedProgram, ValidateError};
use super::super::steps;
use super::Walk;
use super::held::{Content, Held, Parts};
use super::kept::Kept;

impl Walk<'_> {
    pub(super) fn end(&self, lasting: &[Parts], kept: &Kept) -> Result<(), ValidateError> {
        let program = NamedProgram::new(self.program);
        let incomplete = |problem: String| ValidateError::Incomplete {
            program,
            problem: problem.into_boxed_str(),
        };
        let streams = self.program.shape.samples();
        let steps = steps(&self.program.shape);
        let expected = streams * steps;
        for batch in 0..self.plan.shape.batches {
            let sampled = self.tables.values().find(|table| table.batch == batch);
            let samples = sampled.map_or(0, |table| table.samples);
            if samples != expected {
                return Err(incomplete(format!(
                    "batch {batch} is sampled {samples} times in {steps} steps of {streams} streams"
                )));
            }
        }
        // The steps in which caches grow, and in which a whole part is moved.
        let (grows, moves) = match self.moves_to() {
            Some(part) => (0, Some(part)),
            None => (steps, None),
        };
        self.check_kept(kept, lasting).map_err(incomplete)?;
        for (place, (before, after)) in lasting.iter().zip(&self.buffers).enumerate() {
            if kept.iter().any(|(_, buffer)| buffer.0 as usize == place) {
                continue;
            }
            let id = BufferId(place as u32);
            let whole = Region::whole(id);
            let Some(before) = before.read(whole).first().and_then(Option::as_ref) else {
                continue;
            };
            let after = after.read(whole);
            let expected = before.content.after_steps(grows);
            let is_moved =
                matches!(before.content, Content::Cache { chunk, .. } if moves == Some(chunk));
            let times = self.moved.get(&id).copied().unwrap_or(0);
            if is_moved && times != steps {
                let name = &self.plan.buffers[place].name;
                return Err(incomplete(format!("{name} gets what moves {times} times")));
            }
            let is_kept =
                |part: &Option<Held>| part.as_ref().is_some_and(|held| held.content == expected);
            if after.is_empty() || !after.iter().all(is_kept) {
                let found = match after.first().and_then(Option::as_ref) {
                    Some(held) => held.content.text(&self.plan.config),
                    None => "nothing".to_owned(),
                };
                let (name, expected) =
                    (&self.plan.buffers[place].name, expected.text(&self.plan.config));
                return Err(incomplete(format!("{name} must hold {expected}, but holds {found}")));
            }
        }
        Ok(())
    }
}
