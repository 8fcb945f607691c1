//! What all scores say together.

use serde::{Deserialize, Serialize};

use super::output::Score;
use super::windows::Windows;
use crate::exit::Exit;

/// What the scores of an item add to the whole.
#[derive(Debug, Clone, Copy, Default, PartialEq)]
pub struct Tally {
    pub continuations: u64,
    /// Of these, those that are the most likely tokens throughout.
    pub greedy: u64,
    /// Of all continuations.
    pub tokens: u64,
    /// The sum over all tokens.
    pub logprob: f64,
}

impl Tally {
    /// Of the scores of an item.
    pub fn of(scores: &[Score]) -> Tally {
        let tokens: usize = scores.iter().map(|score| score.token_logprobs.len()).sum();
        Tally {
            continuations: scores.len() as u64,
            greedy: scores.iter().filter(|score| score.greedy).count() as u64,
            tokens: tokens as u64,
            logprob: scores.iter().map(|score| score.logprob).sum(),
        }
    }

    fn with(self, other: Tally) -> Tally {
        Tally {
            continuations: self.continuations + other.continuations,
            greedy: self.greedy + other.greedy,
            tokens: self.tokens + other.tokens,
            logprob: self.logprob + other.logprob,
        }
    }
}

/// How scoring ended: `--summary` writes it.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct Summary {
    /// Questions, or windows of a text.
    pub items: usize,
    /// Of these, those with an error line.
    pub failed: usize,
    /// Of these, those that were not reached.
    pub not_run: usize,
    pub continuations: u64,
    pub greedy: u64,
    /// Scored ones.
    pub tokens: u64,
    /// The sum over all tokens; 0 where there are none.
    pub logprob: f64,
    /// e to the mean negative log-probability of a token; null where there are none.
    pub perplexity: Option<f64>,
    /// Of a text: the same where each window counts by its tokens less one, but for the first, as
    /// in the loop of transformers' documentation.
    pub perplexity_of_windows: Option<f64>,
    /// Rows of prompts and continuations that this run computed, and those found in caches.
    pub computed_tokens: u64,
    pub cached_tokens: u64,
    /// That this run took to score, without loading.
    pub seconds: f64,
    #[serde(skip)]
    pub interrupted: bool,
    /// The scores are in a file, which another run can go on with.
    #[serde(skip)]
    pub resumable: bool,
}

impl Summary {
    /// Of the items that have scores, which may be the windows of a text.
    pub(super) fn sums(tallies: &[Tally], windows: Option<Windows>) -> Summary {
        let all = tallies.iter().fold(Tally::default(), |all, tally| all.with(*tally));
        let perplexity = |logprob: f64, tokens: f64| (-logprob / tokens).exp();
        let mut of_windows = (0.0, 0.0);
        for (index, tally) in tallies.iter().enumerate().filter(|(_, tally)| tally.tokens > 0) {
            let weight = windows.map_or(0.0, |windows| windows.weight(index, tally.tokens));
            of_windows.0 += tally.logprob / tally.tokens as f64 * weight;
            of_windows.1 += weight;
        }
        let perplexity_of_windows =
            (of_windows.1 > 0.0).then(|| perplexity(of_windows.0, of_windows.1));
        Summary {
            items: tallies.len(),
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

    /// The exit code that says this.
    pub fn exit(&self) -> Exit {
        match () {
            () if self.interrupted => Exit::Interrupted,
            () if self.failed == 0 => Exit::Done,
            () => Exit::SomeFailed,
        }
    }
}
