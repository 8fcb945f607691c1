//! Arguments of speculative decoding.

use clap::{Args, ValueEnum};

/// Default maximum number of drafted tokens of a sequence in a step.
const DEFAULT_DRAFT_MAX: u32 = 16;

/// Arguments of speculative decoding.
#[derive(Debug, Default, Args)]
pub struct SpeculationArgs {
    /// Draft tokens and verify several of them in a step, which changes no answer. Drafts: ngram
    /// (what followed the last tokens where they occurred before, in the prompt or the answer) or
    /// off [default: off]
    #[arg(long, value_name = "DRAFTS", help_heading = "Placement", hide_possible_values = true)]
    pub speculate: Option<Drafts>,
    /// Maximum number of drafted tokens of a sequence in a step; fewer are verified where that is
    /// faster [default: 16]
    #[arg(long, value_name = "N", requires = "speculate", help_heading = "Placement")]
    #[arg(value_parser = clap::value_parser!(u32).range(1..=64))]
    pub draft_max: Option<u32>,
}

/// Source of drafted tokens.
#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
pub enum Drafts {
    Off,
    Ngram,
}

impl SpeculationArgs {
    /// Returns the maximum number of drafted tokens of a sequence in a step; 0 if none are drafted.
    pub(super) fn max_drafts(&self) -> u32 {
        match self.speculate {
            Some(Drafts::Ngram) => self.draft_max.unwrap_or(DEFAULT_DRAFT_MAX),
            Some(Drafts::Off) | None => 0,
        }
    }
}
