//! Running sequences, the rows of a step, and the limits of a step.

use crate::costs::StepCostCurve;

/// A running sequence.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Sequence {
    pub slot: u32,
    /// Arrival number, which may wrap around.
    pub arrival: u32,
    /// Number of tokens to compute, of prompt and answer; greater than `computed`.
    pub num_tokens: u32,
    /// Number of positions whose keys and values are cached.
    pub computed: u32,
    /// Number of positions for which caches are allocated.
    pub capacity: u32,
    /// First row whose logits are needed in addition to the last one's.
    pub logits_from: u32,
    /// True if a token is sampled from the last row.
    pub samples_token: bool,
    /// Number of drafted tokens after the newest one, whose positions have caches.
    pub drafts: u32,
    /// Estimated probability that a drafted token is accepted if those before it are.
    pub acceptance: f32,
    /// True if its rows yield to those of other sequences.
    pub is_background: bool,
}

impl Sequence {
    /// Returns the number of rows that can be computed now.
    pub(crate) fn rows(&self) -> u32 {
        self.num_tokens.min(self.capacity).saturating_sub(self.computed)
    }

    /// Returns the maximum number of rows if the logits of `logits` rows can be computed.
    pub(crate) fn max_rows(&self, logits: u32) -> u32 {
        let without = self.logits_from.saturating_sub(self.computed);
        match logits {
            0 => without.min(self.num_tokens - self.computed - u32::from(self.samples_token)),
            logits => without.saturating_add(logits),
        }
    }

    /// Returns the next `rows` rows.
    pub(crate) fn row_span(&self, rows: u32) -> RowSpan {
        let end = self.computed + rows;
        let is_sampled = self.samples_token && end == self.num_tokens;
        let logits_rows = end.saturating_sub(self.logits_from.max(self.computed));
        RowSpan {
            slot: self.slot,
            first: self.computed,
            rows,
            is_sampled,
            logits_rows: logits_rows.max(is_sampled.into()),
            drafts: 0,
        }
    }

    /// Returns the row of its newest token, followed by its drafts.
    pub(crate) fn decode_span(&self) -> RowSpan {
        let rows = 1 + self.drafts;
        RowSpan { rows, logits_rows: rows, drafts: self.drafts, ..self.row_span(1) }
    }

    /// Returns true if only its newest token remains: a decode row.
    pub(crate) fn is_decode(&self) -> bool {
        self.samples_token && self.num_tokens == self.computed + 1
    }

    /// Returns true if it has a decode row that can be computed now.
    pub(crate) fn can_decode(&self) -> bool {
        self.is_decode() && self.rows() > 0
    }
}

/// Rows of a sequence in a step.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct RowSpan {
    pub slot: u32,
    /// Position of the first row.
    pub first: u32,
    pub rows: u32,
    /// True if the next token is sampled from the last row that is no draft.
    pub is_sampled: bool,
    /// Number of rows whose logits are computed, the last ones.
    pub logits_rows: u32,
    /// Number of rows whose tokens are drafts, the last ones.
    pub drafts: u32,
}

impl RowSpan {
    /// Returns the number of rows whose logits are computed in addition to those of a sampled row.
    pub(crate) fn extra_logits_rows(&self) -> u32 {
        self.logits_rows - u32::from(self.is_sampled)
    }
}

/// Limits of a step.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct StepLimits {
    /// Maximum number of rows, at least the number of sequences.
    pub rows: u32,
    /// Maximum number of rows whose logits are computed, at least the number of sequences.
    pub logits_rows: u32,
    /// Target duration of a step with decode rows, in ns.
    pub target_ns: u64,
    pub costs: StepCostCurve,
}

/// Returns the number of positions to which the rows after `computed` ones attend, including their
/// own.
pub(crate) fn attended_positions(computed: u32, rows: u32) -> u64 {
    let rows = u64::from(rows);
    rows * u64::from(computed) + rows * (rows + 1) / 2
}
