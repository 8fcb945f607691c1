//! Totals over all scores.

use serde::{Deserialize, Serialize};

use super::output::Score;
use super::windows::WindowSizes;
use crate::outcome::JobOutcome;

/// Totals of an item's scores.
#[derive(Debug, Clone, Copy, Default, PartialEq)]
pub struct ScoreTotals {
    pub continuations: u64,
    /// Continuations that consist of the most likely token at each position.
    pub greedy: u64,
    /// Tokens of all continuations.
    pub tokens: u64,
    /// Sum of the log-probabilities of all tokens.
    pub logprob: f64,
}

impl ScoreTotals {
    /// Sums up the scores of an item.
    pub fn from_scores(scores: &[Score]) -> ScoreTotals {
        let tokens: usize = scores.iter().map(|score| score.token_logprobs.len()).sum();
        ScoreTotals {
            continuations: scores.len() as u64,
            greedy: scores.iter().filter(|score| score.greedy).count() as u64,
            tokens: tokens as u64,
            logprob: scores.iter().map(|score| score.logprob).sum(),
        }
    }

    fn merge(self, other: ScoreTotals) -> ScoreTotals {
        ScoreTotals {
            continuations: self.continuations + other.continuations,
            greedy: self.greedy + other.greedy,
            tokens: self.tokens + other.tokens,
            logprob: self.logprob + other.logprob,
        }
    }
}

/// Outcome of a scoring job, written by `--summary`.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct ScoreSummary {
    /// Number of questions, or of windows of a text.
    pub items: usize,
    /// Items with an error line.
    pub failed: usize,
    /// Items that were not reached.
    pub not_run: usize,
    pub continuations: u64,
    pub greedy: u64,
    /// Number of scored tokens.
    pub tokens: u64,
    /// Sum of the log-probabilities of all tokens; 0 if there are none.
    pub logprob: f64,
    /// Exponential of the mean negative log-probability of a token; null if there are none.
    pub perplexity: Option<f64>,
    /// Perplexity of a text with each window weighted by its number of tokens less one (the first
    /// by all of them), as in the loop of the transformers documentation.
    pub perplexity_of_windows: Option<f64>,
    /// Rows of prompts and continuations that this run computed, and rows found in caches.
    pub computed_tokens: u64,
    pub cached_tokens: u64,
    /// Duration of scoring in this run, without loading.
    pub seconds: f64,
    #[serde(skip)]
    pub interrupted: bool,
    /// True if the scores are in a file, which another run can continue.
    #[serde(skip)]
    pub resumable: bool,
}

impl ScoreSummary {
    /// Sums up the items that have scores, which are the windows of a text if `windows` is given.
    pub(super) fn from_totals(
        totals: &[ScoreTotals],
        windows: Option<WindowSizes>,
    ) -> ScoreSummary {
        let all = totals.iter().fold(ScoreTotals::default(), |all, tally| all.merge(*tally));
        let perplexity = |logprob: f64, tokens: f64| (-logprob / tokens).exp();
        let mut of_windows = (0.0, 0.0);
        for (index, tally) in totals.iter().enumerate().filter(|(_, tally)| tally.tokens > 0) {
            let weight = windows.map_or(0.0, |windows| windows.weight(index, tally.tokens));
            of_windows.0 += tally.logprob / tally.tokens as f64 * weight;
            of_windows.1 += weight;
        }
        let perplexity_of_windows =
            (of_windows.1 > 0.0).then(|| perplexity(of_windows.0, of_windows.1));
        ScoreSummary {
            items: totals.len(),
            failed: 0,
            not_run: 0,
            continuations: all.continuations,
            greedy: all.greedy,
            tokens: all.tokens,
            logprob: all.logprob,
            perplexity: (all.tokens > 0).then(|| perplexity(all.logprob, all.tokens as f64)),
            perplexity_of_windows,
            computed_tokens: 0,
            cached_tokens: 0,
            seconds: 0.0,
            interrupted: false,
            resumable: false,
        }
    }

    /// Returns the outcome of the job.
    pub fn outcome(&self) -> JobOutcome {
        match () {
            () if self.interrupted => JobOutcome::Interrupted,
            () if self.failed == 0 => JobOutcome::Complete,
            () => JobOutcome::Partial,
        }
    }
}
