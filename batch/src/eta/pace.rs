//! Cost model of steps and prompts: a step has a fixed cost and a cost per row; prefill has the
//! fixed cost of a step and a cost per prompt token.

/// Fraction of a step's cost that is assumed proportional to its rows until steps of other sizes
/// are observed.
const ROWS_SHARE: f64 = 0.5;
/// Weight of [`ROWS_SHARE`], in steps.
const ROWS_WEIGHT: f64 = 4.0;
/// Time constant of the average, in steps: caches grow, and other processes' use of the machine
/// varies.
const DECAY_STEPS: f64 = 64.0;
/// Weight of the prediction, in steps.
const PRIOR_WEIGHT_STEPS: f64 = 2.0;

/// Costs predicted before the workers started.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct CostPrior {
    /// Seconds of prefill per prompt token.
    pub prompt_token_s: f64,
    /// Seconds of a decode step with all slots in use.
    pub step_s: f64,
}

/// Observations of one poll of the workers.
#[derive(Debug, Clone, Copy, Default)]
pub(super) struct PollStats {
    pub(super) steps: f64,
    /// Tokens computed in these steps.
    pub(super) rows: f64,
    /// Number of sequences that were prefilled, and their prompt tokens.
    pub(super) prefilled: usize,
    pub(super) prompt_tokens: f64,
}

/// Costs in seconds.
#[derive(Debug, Clone, Copy, PartialEq)]
pub(super) struct CostEstimate {
    /// Fixed cost of each step and each prefill.
    pub(super) fixed_s: f64,
    /// Additional cost per sequence in a step.
    pub(super) row_s: f64,
    /// Additional cost per prompt token in prefill.
    pub(super) prompt_token_s: f64,
}

/// Sums over all observations.
#[derive(Debug, Clone, Copy, Default)]
pub(super) struct ObservedStepCosts {
    prior: Option<CostPrior>,
    /// Sums over observations without prefill, weighted by steps: seconds and rows per step.
    steps: f64,
    s: f64,
    rows: f64,
    rows_rows: f64,
    rows_s: f64,
    /// Sums over observations with prefill.
    prefills: f64,
    prefill_s: f64,
    prefill_steps: f64,
    prompt_tokens: f64,
    min_prefill_s: f64,
}

impl ObservedStepCosts {
    pub(super) fn new(prior: Option<CostPrior>) -> ObservedStepCosts {
        ObservedStepCosts { prior, ..ObservedStepCosts::default() }
    }

    /// Adds an observation that took `s` seconds.
    pub(super) fn with_observation(mut self, s: f64, poll: &PollStats) -> ObservedStepCosts {
        if poll.prefilled > 0 {
            let first = self.prefills == 0.0;
            self.min_prefill_s = if first { s } else { self.min_prefill_s.min(s) };
            self.prefills += 1.0;
            self.prefill_s += s;
            self.prefill_steps += poll.steps;
            self.prompt_tokens += poll.prompt_tokens;
        } else if poll.steps > 0.0 {
            let rows = poll.rows / poll.steps;
            let decay = (-poll.steps / DECAY_STEPS).exp();
            let sums = [&mut self.steps, &mut self.s, &mut self.rows];
            let squares = [&mut self.rows_rows, &mut self.rows_s];
            sums.into_iter().chain(squares).for_each(|sum| *sum *= decay);
            self.steps += poll.steps;
            self.s += s;
            self.rows += poll.rows;
            self.rows_rows += poll.rows * rows;
            self.rows_s += s * rows;
        }
        self
    }

    /// Estimates the costs of steps of up to `slots` rows; returns `None` without observations or
    /// prediction.
    pub(super) fn estimate(&self, slots: f64) -> Option<CostEstimate> {
        let (mut steps, mut s, mut rows) = (self.steps, self.s, self.rows);
        let (mut rows_rows, mut rows_s) = (self.rows_rows, self.rows_s);
        if let Some(prior) = self.prior {
            steps += PRIOR_WEIGHT_STEPS;
            s += PRIOR_WEIGHT_STEPS * prior.step_s;
            rows += PRIOR_WEIGHT_STEPS * slots;
            rows_rows += PRIOR_WEIGHT_STEPS * slots * slots;
            rows_s += PRIOR_WEIGHT_STEPS * slots * prior.step_s;
        } else if steps == 0.0 {
            // All answers end at once: a prefill of few tokens reads all weights, as a step does.
            if self.prefills < 2.0 {
                return None;
            }
            (steps, s, rows) = (1.0, self.min_prefill_s, slots);
            (rows_rows, rows_s) = (slots * slots, slots * s);
        }
        let (mean_s, mean_rows) = (s / steps, rows / steps);
        // Linear regression over all steps, shrunk towards the assumed fraction of rows.
        let variance = rows_rows - steps * mean_rows * mean_rows;
        let covariance = rows_s - steps * mean_rows * mean_s;
        let weight = ROWS_WEIGHT * mean_rows * mean_rows;
        let assumed = ROWS_SHARE * mean_s / mean_rows;
        let row_s = (covariance + weight * assumed) / (variance + weight);
        let row_s = row_s.clamp(0.0, mean_s / mean_rows);
        let fixed_s = mean_s - row_s * mean_rows;
        let prompt_token_s = match self.prior {
            Some(prior) if self.prefills == 0.0 => prior.prompt_token_s,
            _ => {
                let other_s = self.prefill_steps * mean_s + self.prefills * fixed_s;
                (self.prefill_s - other_s).max(0.0) / self.prompt_tokens.max(1.0)
            }
        };
        Some(CostEstimate { fixed_s, row_s, prompt_token_s })
    }
}
