//! Estimate of a job's remaining time: simulates the rest of the job with the observed costs of
//! prefill and decode steps and the observed lengths of answers. It reads no clock: callers pass
//! the current time.

mod lengths;
mod pace;

use std::cmp::Reverse;
use std::collections::BinaryHeap;

use lengths::{LengthStats, SurvivalCurve};
pub use pace::CostPrior;
use pace::{CostEstimate, ObservedStepCosts, PollStats};

/// Maximum time, in seconds, between events that belong to one poll of the workers.
const MAX_POLL_GAP_S: f64 = 1e-3;
/// Sequences that begin later than this fraction of a prefill's duration after it belong to another
/// prefill.
const NEW_PREFILL_FRACTION: f64 = 0.25;
/// Maximum number of waiting sequences that are simulated; the rest is extrapolated.
const MAX_SIMULATED: usize = 2048;
/// Simulations that are averaged.
const SIMULATIONS: u32 = 16;
/// Fractional part of the golden ratio: its multiples spread quantiles evenly, whatever their
/// number.
const GOLDEN_RATIO_FRACTION: f64 = 0.618_033_988_749_894_9;

/// A sequence before it runs.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct PlannedSequence {
    pub prompt_tokens: u32,
    /// Maximum number of new tokens, at least 1.
    pub max_new: u32,
}

/// Estimated remaining time.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Eta {
    pub seconds: f64,
    /// True if no answer has ended yet, so that each may run to its limit.
    pub is_upper_bound: bool,
}

/// Follows a job from its first prefill to its last token. Sequences begin in their order.
#[derive(Debug)]
pub struct EtaEstimator {
    planned: Vec<PlannedSequence>,
    /// Number of sequences that run concurrently.
    slots: usize,
    states: Vec<SequenceState>,
    /// First sequence that has not begun; all after it are waiting, too.
    next_waiting: usize,
    lengths: LengthStats,
    step_costs: ObservedStepCosts,
    /// The current poll, and the ends of it and of the one before, in seconds.
    poll: PollStats,
    poll_end_s: f64,
    previous_end_s: f64,
    /// Number of decode steps so far, derived from the tokens.
    step: u64,
    /// Number of times that sequences began together, and number of sequences that began after the
    /// first time.
    batches_begun: usize,
    later_sequences: usize,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum SequenceState {
    Waiting,
    /// Number of tokens, and the step of the last one.
    Running {
        generated: u32,
        step: u64,
    },
    Finished,
}

impl EtaEstimator {
    /// Creates an estimate for a job that begins at second 0, with predicted costs if there are
    /// any.
    pub fn new(
        planned: Vec<PlannedSequence>,
        slots: usize,
        prior: Option<CostPrior>,
    ) -> EtaEstimator {
        let longest = planned.iter().map(|sequence| sequence.max_new).max().unwrap_or(0);
        EtaEstimator {
            slots: slots.max(1),
            states: vec![SequenceState::Waiting; planned.len()],
            next_waiting: 0,
            lengths: LengthStats::new(longest),
            step_costs: ObservedStepCosts::new(prior),
            poll: PollStats::default(),
            poll_end_s: 0.0,
            previous_end_s: 0.0,
            step: 0,
            batches_begun: 0,
            later_sequences: 0,
            planned,
        }
    }

    /// Records a token of `sequence`.
    pub fn token(&mut self, sequence: usize, now_s: f64) {
        let (generated, step) = match self.states[sequence] {
            SequenceState::Running { generated, step } => {
                self.advance_poll(now_s, step >= self.step);
                self.poll.rows += 1.0;
                (generated, step + 1)
            }
            _ => {
                self.begin(sequence, now_s);
                (0, self.step)
            }
        };
        if step > self.step {
            self.poll.steps += (step - self.step) as f64;
            self.step = step;
        }
        self.lengths.record_continued(generated);
        self.states[sequence] = SequenceState::Running { generated: generated + 1, step };
    }

    /// Records that `sequence` has ended after `generated` tokens.
    pub fn finished(&mut self, sequence: usize, generated: u32, now_s: f64) {
        if self.states[sequence] == SequenceState::Waiting {
            self.begin(sequence, now_s);
        }
        self.advance_poll(now_s, false);
        if generated < self.planned[sequence].max_new {
            self.lengths.record_ended(generated);
        } else {
            self.lengths.record_truncated();
        }
        self.states[sequence] = SequenceState::Finished;
    }

    /// Returns the number of prompt tokens of sequences that have begun.
    pub fn prompt_tokens(&self) -> u64 {
        let started = self.planned.iter().zip(&self.states);
        let started = started.filter(|(_, state)| **state != SequenceState::Waiting);
        started.map(|(planned, _)| u64::from(planned.prompt_tokens)).sum()
    }

    /// Estimates the time that remains at `now_s`; returns `None` while the costs of steps are
    /// unknown.
    pub fn estimate(&self, now_s: f64) -> Option<Eta> {
        let costs = self
            .step_costs
            .with_observation(self.poll_s(), &self.poll)
            .estimate(self.slots as f64)?;
        let waiting = self.planned.len() - self.next_waiting;
        let whole_s = if waiting <= MAX_SIMULATED {
            self.simulate(&costs, waiting)
        } else {
            let (half_s, full_s) =
                (self.simulate(&costs, MAX_SIMULATED / 2), self.simulate(&costs, MAX_SIMULATED));
            let more = (waiting - MAX_SIMULATED) as f64 / (MAX_SIMULATED / 2) as f64;
            full_s + more * (full_s - half_s)
        };
        // The current step began with the last poll.
        let seconds = (whole_s - (now_s - self.poll_end_s)).max(0.0);
        Some(Eta {
            seconds,
            is_upper_bound: self.lengths.has_no_ends() && waiting + self.running() > 0,
        })
    }

    fn running(&self) -> usize {
        let is_running = |state: &&SequenceState| matches!(state, SequenceState::Running { .. });
        self.states[..self.next_waiting].iter().filter(is_running).count()
    }

    fn poll_s(&self) -> f64 {
        self.poll_end_s - self.previous_end_s
    }

    /// Closes the current poll if it is over and the new event belongs to another step or prefill:
    /// reporting the tokens of one step may take a while.
    fn advance_poll(&mut self, now_s: f64, is_other_step: bool) {
        if is_other_step && now_s - self.poll_end_s > MAX_POLL_GAP_S {
            self.step_costs = self.step_costs.with_observation(self.poll_s(), &self.poll);
            self.poll = PollStats::default();
            self.previous_end_s = self.poll_end_s;
        }
        self.poll_end_s = now_s.max(self.poll_end_s);
    }

    fn begin(&mut self, sequence: usize, now_s: f64) {
        // Prefills without a step between them are distinguished by the time between them.
        let is_later = now_s - self.poll_end_s > self.poll_s() * NEW_PREFILL_FRACTION;
        self.advance_poll(now_s, self.poll.prefilled == 0 || self.poll.steps > 0.0 || is_later);
        self.next_waiting = self.next_waiting.max(sequence + 1);
        if self.poll.prefilled == 0 {
            self.batches_begun += 1;
        }
        if self.batches_begun > 1 {
            self.later_sequences += 1;
        }
        self.poll.prefilled += 1;
        self.poll.prompt_tokens += f64::from(self.planned[sequence].prompt_tokens);
    }

    /// Simulates the rest of the job from the last poll on, with `waiting` waiting sequences;
    /// returns the seconds that it takes.
    fn simulate(&self, costs: &CostEstimate, waiting: usize) -> f64 {
        let curve = self.lengths.survival_curve();
        let chances = (0..SIMULATIONS).map(|chance| f64::from(chance) / f64::from(SIMULATIONS));
        let sum: f64 =
            chances.map(|chance| self.simulate_once(costs, waiting, &curve, chance)).sum();
        sum / f64::from(SIMULATIONS)
    }

    /// Simulates once, with the answer lengths that `phase`, from 0 to 1, determines.
    fn simulate_once(
        &self,
        costs: &CostEstimate,
        waiting: usize,
        curve: &SurvivalCurve,
        phase: f64,
    ) -> f64 {
        let (mut step, mut s, mut taken) = (0u64, 0.0, phase);
        let mut quantile = || {
            taken = (taken + GOLDEN_RATIO_FRACTION).fract();
            taken
        };
        let mut ends = BinaryHeap::new();
        for (planned, state) in self.planned.iter().zip(&self.states[..self.next_waiting]) {
            if let SequenceState::Running { generated, .. } = state {
                ends.push(Reverse(curve.steps_left(*generated, planned.max_new, quantile())));
            }
        }
        // If not all waiting sequences are simulated, those that are, are spaced evenly.
        let all = self.planned.len() - self.next_waiting;
        let places = (0..waiting).map(|place| self.next_waiting + place * all / waiting.max(1));
        let mut waiting: Vec<usize> = places.rev().collect();
        loop {
            let free = self.slots.saturating_sub(ends.len());
            let fresh = free.min(waiting.len());
            if fresh > 0 && fresh >= self.admission_batch().min(waiting.len()) {
                let mut tokens = 0.0;
                for sequence in waiting.split_off(waiting.len() - fresh) {
                    let planned = self.planned[sequence];
                    tokens += f64::from(planned.prompt_tokens);
                    // Prefill makes the first token.
                    let steps = curve.steps_left(0, planned.max_new, quantile()).max(1) - 1;
                    ends.push(Reverse(step + steps));
                }
                s += costs.fixed_s + costs.prompt_token_s * tokens;
            }
            let rows = ends.len() as f64;
            let Some(Reverse(end)) = ends.pop() else { return s };
            s += (end - step) as f64 * (costs.fixed_s + costs.row_s * rows);
            step = end;
        }
    }

    /// Returns the number of sequences that begin together once others have ended.
    fn admission_batch(&self) -> usize {
        match self.batches_begun {
            0 | 1 => self.slots.div_ceil(4),
            times => (self.later_sequences / (times - 1)).max(1),
        }
    }
}
