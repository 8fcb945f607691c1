//! Cost of one instruction of a plan, from the surface of its kind of work.

use program::map::Phase;
use program::plan::RunShape;

use crate::key::{Extent, ProfiledWork, WorkKey};
use crate::surface::CostSurface;

/// The price of an instruction.
#[derive(Debug, Clone, Copy)]
pub(crate) struct InstructionPrice {
    /// Index of the surface.
    pub(crate) surface: usize,
    pub(crate) key: WorkKey,
    pub(crate) phase: Phase,
    pub(crate) sequences: u32,
    pub(crate) factor: f64,
    /// Number of positions to which a row of the layer attends, including itself; `None` for all.
    pub(crate) window: Option<u32>,
    /// Work of a stream of prefill, if prompts are split into chunks.
    pub(crate) chunk: Option<PrefillChunk>,
}

impl InstructionPrice {
    /// Returns the nanoseconds in a step after prompts of `prompt_len` tokens; `None` if the
    /// surface does not extend that far.
    pub(crate) fn ns(&self, surface: &CostSurface, prompt_len: u32, step: u32) -> Option<f64> {
        let ns = match self.chunk {
            Some(chunk) => self.chunk_ns(surface, chunk, prompt_len)?,
            None => self.windowed_ns(surface, self.extent(prompt_len, step))?,
        };
        Some(self.factor * ns)
    }

    /// Returns the extent of whole prompts, or of a decode step.
    pub(crate) fn extent(&self, prompt_len: u32, step: u32) -> Extent {
        let positions = match self.phase {
            Phase::Prefill => prompt_len,
            Phase::Decode => prompt_len + step,
        };
        Extent { sequences: self.sequences, positions }
    }

    fn at(&self, surface: &CostSurface, extent: Extent) -> Option<f64> {
        let point = self.key.point(self.phase, extent);
        surface.at(point.rows.into(), point.positions.into())
    }

    /// Returns the nanoseconds in a layer with a window: each row of a prompt after the window
    /// takes the time of the next row of a prompt with the window's length; all other work covers
    /// at most that number of positions.
    fn windowed_ns(&self, surface: &CostSurface, extent: Extent) -> Option<f64> {
        let window = self.window.filter(|window| *window < extent.positions);
        let Some(window) = window.filter(|_| self.key.depends_on_positions()) else {
            return self.at(surface, extent);
        };
        let within = self.at(surface, Extent { positions: window, ..extent })?;
        if !self.key.attends_to_prompt() {
            return Some(within);
        }
        let next = self.at(surface, Extent { positions: window + 1, ..extent })?;
        Some(within + f64::from(extent.positions - window) * (next - within).max(0.0))
    }

    /// Returns the nanoseconds of a stream of prefill that splits prompts. For work that depends on
    /// positions, a whole prompt's time is distributed: that of attention by the positions to which
    /// the rows attend.
    fn chunk_ns(&self, surface: &CostSurface, chunk: PrefillChunk, prompt_len: u32) -> Option<f64> {
        let PrefillChunk { begin, rows, ends } = chunk;
        let at = |sequences: u32, positions: u32| {
            self.windowed_ns(surface, Extent { sequences, positions })
        };
        if !self.key.depends_on_positions() {
            return if self.key.depends_on_rows() { at(1, rows) } else { at(ends, prompt_len) };
        }
        let (mut begin, end) = (begin, begin + u64::from(rows));
        let length = u64::from(prompt_len.max(1));
        let share = |positions: u64| positions as f64 / length as f64;
        let mut sum_ns = 0.0;
        while begin < end {
            let first = begin % length;
            let next = length.min(first + end - begin);
            sum_ns += match self.key.work {
                ProfiledWork::CopyCache { .. } => at(1, first as u32)?,
                ProfiledWork::Append { .. } => at(1, prompt_len)? * (share(next) - share(first)),
                ProfiledWork::Compute { op, .. } if op.updates_state() => {
                    at(1, prompt_len)? * (share(next) - share(first))
                }
                _ => {
                    let pairs = self.pairs(next) - self.pairs(first);
                    at(1, prompt_len)? * pairs / self.pairs(length)
                }
            };
            begin += next - first;
        }
        Some(sum_ns)
    }

    /// Returns approximately the number of (row, position) pairs of the first rows of a prompt.
    fn pairs(&self, rows: u64) -> f64 {
        let within = rows.min(self.window.map_or(u64::MAX, u64::from)) as f64;
        within * within / 2.0 + (rows as f64 - within) * within
    }
}

/// Work of a stream of prefill on a batch's prompts, which are concatenated.
#[derive(Debug, Clone, Copy)]
pub(crate) struct PrefillChunk {
    /// Number of rows before its first.
    begin: u64,
    rows: u32,
    /// Number of prompts that end in it.
    ends: u32,
}

impl PrefillChunk {
    /// Returns the chunk for full batches of prompts of `prompt_len` tokens.
    pub(crate) fn for_stream(shape: &RunShape, prompt_len: u32, stream: u16) -> PrefillChunk {
        let (chunk_rows, length) = (u64::from(shape.prefill_chunk), u64::from(prompt_len.max(1)));
        let all = u64::from(shape.batch_size) * length;
        let begin = all.min(u64::from(stream) * chunk_rows);
        let end = all.min(begin + chunk_rows);
        let ends = (end / length - begin / length) as u32;
        PrefillChunk { begin, rows: (end - begin) as u32, ends }
    }
}
