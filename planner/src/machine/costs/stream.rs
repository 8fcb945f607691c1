//! How much a stream of a program has: rows, sequences, and the positions that its rows look at.

use program::ir::{At, Program, Rows};
use program::plan::RunShape;

use super::line::Line;

/// A stream's amounts.
#[derive(Debug, Clone, Copy)]
pub(super) struct Stream {
    pub(super) rows: Line,
    /// Rows that are sampled.
    pub(super) sequences: Line,
    /// (row, position) pairs of attention, a row and its own position among them.
    pub(super) pairs: Line,
    /// Cached positions that are read, over all sequences.
    pub(super) cached: Line,
}

impl Stream {
    /// Of full batches of prompts of `prompt_len` tokens.
    pub(super) fn of(shape: &RunShape, program: &Program, at: At, prompt_len: u32) -> Stream {
        match program.shape.rows {
            Rows::Single => Stream::single(shape),
            Rows::WholePrompts => Stream::whole(shape, at.stream, prompt_len),
            Rows::Chunks => Stream::chunk(shape, at.stream, prompt_len),
        }
    }

    fn single(shape: &RunShape) -> Stream {
        let sequences = f64::from(shape.batch_size);
        Stream {
            rows: Line::fixed(sequences),
            sequences: Line::fixed(sequences),
            pairs: Line::fixed(sequences).plus(Line::per_position(sequences)),
            cached: Line::per_position(sequences),
        }
    }

    /// Some whole prompts; what all share is computed with the first.
    fn whole(shape: &RunShape, stream: u16, prompt_len: u32) -> Stream {
        let left = shape.batch_size.saturating_sub(stream * shape.micro_sequences);
        let sequences = f64::from(shape.micro_sequences.min(left));
        let prompt = f64::from(prompt_len);
        let shared = f64::from(shape.shared_prompt.min(prompt_len.saturating_sub(1)));
        let triangle = |positions: f64| positions * (positions + 1.0) / 2.0;
        let others = (sequences - 1.0).max(0.0);
        let pairs = triangle(prompt) + others * (triangle(prompt) - triangle(shared));
        Stream {
            rows: Line::fixed(prompt + others * (prompt - shared)),
            sequences: Line::fixed(sequences),
            pairs: Line::fixed(pairs),
            cached: Line::ZERO,
        }
    }

    /// The rows of a batch's prompts, one behind the other, cut at equal numbers.
    fn chunk(shape: &RunShape, stream: u16, prompt_len: u32) -> Stream {
        let (most, length) = (u64::from(shape.prefill_chunk), u64::from(prompt_len.max(1)));
        let all = u64::from(shape.batch_size) * length;
        let first = all.min(u64::from(stream) * most);
        let end = all.min(first + most);
        let (mut pairs, mut cached, mut row) = (0.0, 0.0, first);
        while row < end {
            let from = row % length;
            let to = length.min(from + end - row);
            pairs += (from + 1 + to) as f64 * (to - from) as f64 / 2.0;
            cached += from as f64;
            row += to - from;
        }
        Stream {
            rows: Line::fixed((end - first) as f64),
            sequences: Line::fixed((end / length - first / length) as f64),
            pairs: Line::fixed(pairs),
            cached: Line::fixed(cached),
        }
    }
}
