//! Size of a program's stream: rows, sequences, and the positions to which its rows attend, at most
//! the window of the layer.

use model::config::ModelConfig;
use program::ir::{At, Program, Rows};
use program::plan::RunShape;

use super::line::CappedLinear;

/// Lengths of the sequences of a stream.
#[derive(Debug, Clone, Copy)]
pub(super) struct StreamLength {
    /// Number of tokens of a prompt.
    pub(super) prompt: u32,
    /// Number of drafted tokens after the newest one, in decode steps.
    pub(super) drafts: u32,
}

/// Quantities of a stream.
#[derive(Debug, Clone, Copy)]
pub(super) struct StreamSize {
    pub(super) rows: CappedLinear,
    pub(super) sequences: CappedLinear,
    /// Number of rows from which a token is drawn.
    pub(super) sampled: CappedLinear,
    /// (row, position) pairs of attention, including each row's own position.
    pub(super) pairs: CappedLinear,
    /// Number of cached positions read, over all sequences.
    pub(super) cached: CappedLinear,
}

/// Number of positions before its own to which a row attends.
#[derive(Debug, Clone, Copy)]
struct AttentionReach(Option<u32>);

impl AttentionReach {
    /// Returns the reach in a layer; operations outside the layers attend to nothing.
    fn in_layer(config: &ModelConfig, layer: Option<u16>) -> AttentionReach {
        let window = layer.and_then(|layer| config.layers.kind(layer.into()).window);
        AttentionReach(
            window.map(|window| u32::try_from(window).unwrap_or(u32::MAX).saturating_sub(1)),
        )
    }

    fn max_positions(self) -> u32 {
        self.0.unwrap_or(u32::MAX)
    }

    /// Returns the pairs of the first `positions` rows of a sequence, each with itself and the rows
    /// it attends to.
    fn pairs(self, positions: f64) -> f64 {
        let triangle = |positions: f64| positions * (positions + 1.0) / 2.0;
        let window = f64::from(self.max_positions()) + 1.0;
        let whole = positions.min(window);
        triangle(whole) + (positions - whole) * window
    }
}

impl StreamSize {
    /// Returns a stream of full batches of prompts of `length.prompt` tokens, in the layer of `at`.
    pub(super) fn new(
        config: &ModelConfig,
        shape: &RunShape,
        program: &Program,
        at: At,
        length: StreamLength,
    ) -> StreamSize {
        let reach = AttentionReach::in_layer(config, at.layer);
        let prompt_len = length.prompt;
        match program.shape.rows {
            Rows::Single => StreamSize::newest(shape, reach, length.drafts),
            Rows::WholePrompts => StreamSize::whole(shape, reach, at.stream, prompt_len),
            Rows::Chunks | Rows::Moves(_) => StreamSize::chunk(shape, reach, at.stream, prompt_len),
        }
    }

    /// Returns a stream of each sequence's newest token and `drafts` drafted ones, which attend to
    /// those before them, also beyond a window.
    fn newest(shape: &RunShape, reach: AttentionReach, drafts: u32) -> StreamSize {
        let sequences = f64::from(shape.batch_size);
        let of_each = f64::from(1 + drafts);
        let rows = CappedLinear::fixed(sequences * of_each);
        let cached = CappedLinear::per_position(sequences, reach.max_positions());
        let among_new = CappedLinear::fixed(sequences * of_each * (of_each + 1.0) / 2.0);
        StreamSize {
            rows,
            sequences: CappedLinear::fixed(sequences),
            sampled: rows,
            pairs: cached.times(of_each).plus(among_new),
            cached,
        }
    }

    /// Returns a stream of whole prompts; a shared prefix is computed with the first.
    fn whole(shape: &RunShape, reach: AttentionReach, stream: u16, prompt_len: u32) -> StreamSize {
        let left = shape.batch_size.saturating_sub(stream * shape.micro_sequences);
        let sequences = f64::from(shape.micro_sequences.min(left));
        let prompt = f64::from(prompt_len);
        let shared = f64::from(shape.shared_prompt.min(prompt_len.saturating_sub(1)));
        let others = (sequences - 1.0).max(0.0);
        let one = reach.pairs(prompt);
        let pairs = one + others * (one - reach.pairs(shared));
        StreamSize {
            rows: CappedLinear::fixed(prompt + others * (prompt - shared)),
            sequences: CappedLinear::fixed(sequences),
            sampled: CappedLinear::fixed(sequences),
            pairs: CappedLinear::fixed(pairs),
            cached: CappedLinear::ZERO,
        }
    }

    /// Returns a stream with a chunk of a batch's prompts, concatenated and split at equal numbers
    /// of rows.
    fn chunk(shape: &RunShape, reach: AttentionReach, stream: u16, prompt_len: u32) -> StreamSize {
        let (chunk_rows, length) = (u64::from(shape.prefill_chunk), u64::from(prompt_len.max(1)));
        let all = u64::from(shape.batch_size) * length;
        let first = all.min(u64::from(stream) * chunk_rows);
        let end = all.min(first + chunk_rows);
        let (mut pairs, mut cached, mut row) = (0.0, 0.0, first);
        while row < end {
            let from = row % length;
            let to = length.min(from + end - row);
            pairs += reach.pairs(to as f64) - reach.pairs(from as f64);
            cached += from.min(reach.max_positions().into()) as f64;
            row += to - from;
        }
        let sequences = CappedLinear::fixed((end / length - first / length) as f64);
        StreamSize {
            rows: CappedLinear::fixed((end - first) as f64),
            sequences,
            sampled: sequences,
            pairs: CappedLinear::fixed(pairs),
            cached: CappedLinear::fixed(cached),
        }
    }
}
