//! Size of a program's stream: rows, sequences, and the positions to which its rows attend, at most
//! the window of the layer.

use model::config::ModelConfig;
use program::ir::{At, Program, Rows};
use program::plan::RunShape;

use super::line::Line;

/// Quantities of a stream.
#[derive(Debug, Clone, Copy)]
pub(super) struct Stream {
    pub(super) rows: Line,
    /// Number of sampled rows.
    pub(super) sequences: Line,
    /// (row, position) pairs of attention, including each row's own position.
    pub(super) pairs: Line,
    /// Number of cached positions read, over all sequences.
    pub(super) cached: Line,
}

/// Number of positions before its own to which a row attends.
#[derive(Debug, Clone, Copy)]
struct Reach(Option<u32>);

impl Reach {
    /// Returns the reach in a layer; operations outside the layers attend to nothing.
    fn of(config: &ModelConfig, layer: Option<u16>) -> Reach {
        let window = layer.and_then(|layer| config.layers.of(layer.into()).window);
        Reach(window.map(|window| u32::try_from(window).unwrap_or(u32::MAX).saturating_sub(1)))
    }

    fn most(self) -> u32 {
        self.0.unwrap_or(u32::MAX)
    }

    /// Returns the pairs of the first `positions` rows of a sequence, each with itself and the rows
    /// it attends to.
    fn pairs(self, positions: f64) -> f64 {
        let triangle = |positions: f64| positions * (positions + 1.0) / 2.0;
        let window = f64::from(self.most()) + 1.0;
        let whole = positions.min(window);
        triangle(whole) + (positions - whole) * window
    }
}

impl Stream {
    /// Returns a stream of full batches of prompts of `prompt_len` tokens, in the layer of `at`.
    pub(super) fn of(
        config: &ModelConfig,
        shape: &RunShape,
        program: &Program,
        at: At,
        prompt_len: u32,
    ) -> Stream {
        let reach = Reach::of(config, at.layer);
        match program.shape.rows {
            Rows::Single => Stream::single(shape, reach),
            Rows::WholePrompts => Stream::whole(shape, reach, at.stream, prompt_len),
            Rows::Chunks | Rows::Moves(_) => Stream::chunk(shape, reach, at.stream, prompt_len),
        }
    }

    fn single(shape: &RunShape, reach: Reach) -> Stream {
        let sequences = f64::from(shape.batch_size);
        let cached = Line::per_position(sequences, reach.most());
        Stream {
            rows: Line::fixed(sequences),
            sequences: Line::fixed(sequences),
            pairs: Line::fixed(sequences).plus(cached),
            cached,
        }
    }

    /// Returns a stream of whole prompts; a shared prefix is computed with the first.
    fn whole(shape: &RunShape, reach: Reach, stream: u16, prompt_len: u32) -> Stream {
        let left = shape.batch_size.saturating_sub(stream * shape.micro_sequences);
        let sequences = f64::from(shape.micro_sequences.min(left));
        let prompt = f64::from(prompt_len);
        let shared = f64::from(shape.shared_prompt.min(prompt_len.saturating_sub(1)));
        let others = (sequences - 1.0).max(0.0);
        let one = reach.pairs(prompt);
        let pairs = one + others * (one - reach.pairs(shared));
        Stream {
            rows: Line::fixed(prompt + others * (prompt - shared)),
            sequences: Line::fixed(sequences),
            pairs: Line::fixed(pairs),
            cached: Line::ZERO,
        }
    }

    /// Returns a stream with a chunk of a batch's prompts, concatenated and split at equal numbers
    /// of rows.
    fn chunk(shape: &RunShape, reach: Reach, stream: u16, prompt_len: u32) -> Stream {
        let (most, length) = (u64::from(shape.prefill_chunk), u64::from(prompt_len.max(1)));
        let all = u64::from(shape.batch_size) * length;
        let first = all.min(u64::from(stream) * most);
        let end = all.min(first + most);
        let (mut pairs, mut cached, mut row) = (0.0, 0.0, first);
        while row < end {
            let from = row % length;
            let to = length.min(from + end - row);
            pairs += reach.pairs(to as f64) - reach.pairs(from as f64);
            cached += from.min(reach.most().into()) as f64;
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
