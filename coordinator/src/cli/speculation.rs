//! Arguments of speculative decoding.

use clap::{Args, ValueEnum};
use scheduler::DRAFTS_MAX;
use session::request::{ModelChoice, PlannedDrafter, PlannedSpeculation};

use super::usage_error::UsageError;

/// Default maximum number of drafted tokens of a sequence in a step.
const DEFAULT_DRAFT_MAX: u32 = 16;

/// Arguments of speculative decoding.
#[derive(Debug, Default, Args)]
pub struct SpeculationArgs {
    /// Draft tokens and verify several of them in a step, which changes no answer. Drafts:
    /// prediction (the `prediction` of a request), ngram (also what followed the last tokens where
    /// they occurred before, in the prompt or the answer), mtp (also what the layer for multi-token
    /// prediction in the model's files predicts) or off [default: prediction for a server, off for
    /// a job]
    #[arg(long, value_name = "DRAFTS", help_heading = "Placement", hide_possible_values = true)]
    #[arg(group = "drafts")]
    pub speculate: Option<Drafts>,
    /// Draft tokens with a smaller model that has the same tokenizer: a directory, GGUF file or
    /// org/name. It is computed on the CPU
    #[arg(long, value_name = "MODEL", help_heading = "Placement", group = "drafts")]
    pub draft_model: Option<String>,
    /// Maximum number of drafted tokens of a sequence in a step; fewer are verified where that is
    /// faster [default: 16]
    #[arg(long, value_name = "N", requires = "drafts", help_heading = "Placement")]
    #[arg(value_parser = clap::value_parser!(u32).range(1..=i64::from(DRAFTS_MAX)))]
    pub draft_max: Option<u32>,
    /// True if the source of drafts is a server's default.
    #[arg(skip)]
    is_default: bool,
}

/// Arguments of predictions for speculative decoding.
#[derive(Debug, Clone, Copy, Default, Args)]
pub struct AcceptanceArgs {
    /// Probability that a draft is accepted if those before it are, from 0 to 1, with which
    /// speculative decoding is predicted for --machine
    #[arg(long, value_name = "RATE", requires = "drafts", requires = "machine")]
    #[arg(value_parser = parse_acceptance, help_heading = "Placement")]
    pub acceptance: Option<f64>,
}

fn parse_acceptance(text: &str) -> Result<f64, String> {
    let rate = text.parse().ok().filter(|rate| (0.0..=1.0).contains(rate));
    rate.ok_or_else(|| format!("{text:?} is not a number from 0 to 1, such as 0.7"))
}

/// Source of drafted tokens.
#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
pub enum Drafts {
    Off,
    Prediction,
    Ngram,
    Mtp,
}

impl SpeculationArgs {
    /// Returns the speculative decoding to predict with drafts of a given acceptance, if tokens
    /// are drafted.
    ///
    /// # Errors
    /// Drafts without an acceptance.
    pub(super) fn planned(
        self,
        AcceptanceArgs { acceptance }: AcceptanceArgs,
    ) -> Result<Option<PlannedSpeculation>, UsageError> {
        let max_drafts = self.max_drafts();
        if max_drafts == 0 {
            return Ok(None);
        }
        let acceptance = acceptance.ok_or(UsageError::DraftsWithoutAcceptance)?;
        let drafter = match self.draft_model {
            Some(name) => PlannedDrafter::Model(ModelChoice::config_only(name, None)),
            None if self.uses_prediction_layer() => PlannedDrafter::PredictionLayer,
            None => PlannedDrafter::Free,
        };
        Ok(Some(PlannedSpeculation { drafter, max_drafts, acceptance }))
    }

    /// Returns the flag that asks for drafts, if one does.
    pub(super) fn flag(&self) -> Option<&'static str> {
        match self.speculate {
            None | Some(Drafts::Off) => self.draft_model.as_ref().map(|_| "draft-model"),
            Some(_) => Some("speculate"),
        }
    }

    /// Returns the arguments with the defaults of a server.
    pub(super) fn for_server(self) -> SpeculationArgs {
        let is_default = self.draft_model.is_none() && self.speculate.is_none();
        let default = is_default.then_some(Drafts::Prediction);
        SpeculationArgs { speculate: self.speculate.or(default), is_default, ..self }
    }

    /// Returns the maximum number of drafted tokens of a sequence in a step; 0 if none are drafted.
    pub(super) fn max_drafts(&self) -> u32 {
        match self.speculate {
            Some(Drafts::Prediction) => self.draft_max.unwrap_or(DEFAULT_DRAFT_MAX),
            _ if self.drafts_all() => self.draft_max.unwrap_or(DEFAULT_DRAFT_MAX),
            _ => 0,
        }
    }

    /// Returns true if slots of recurrent states have space for drafts, which a server's default
    /// does not spend.
    pub(super) fn drafts_over_states(&self) -> bool {
        self.max_drafts() > 0 && !self.is_default
    }

    /// Returns true if tokens of all sequences are drafted, not only those of predicted answers.
    pub(super) fn drafts_all(&self) -> bool {
        let is_of_all = matches!(self.speculate, Some(Drafts::Ngram | Drafts::Mtp));
        self.draft_model.is_some() || is_of_all
    }

    /// Returns true if the model's layer for multi-token prediction drafts.
    pub(super) fn uses_prediction_layer(&self) -> bool {
        matches!(self.speculate, Some(Drafts::Mtp))
    }
}
