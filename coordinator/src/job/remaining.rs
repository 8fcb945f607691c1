//! Estimate of a job's remaining time: simulates the rest of the job with the observed costs of
//! prefill and decode steps and the observed lengths of answers. It reads no clock: callers pass
//! the current time.

mod lengths;
mod pace;

use std::cmp::Reverse;
use std::collections::BinaryHeap;

use lengths::{Curve, Lengths};
pub use pace::Prior;
use pace::{Burst, Costs, Pace};

/// Maximum time, in seconds, between events that belong to one look at the workers.
const ONE_LOOK_S: f64 = 1e-3;
/// Sequences that begin later than this fraction of a prefill's duration after it belong to another
/// prefill.
const LATER_SHARE: f64 = 0.25;
/// Maximum number of waiting sequences that are simulated; the rest is extrapolated.
const PLAYED_MAX: usize = 2048;
/// Simulations that are averaged.
const CHANCES: u32 = 16;
/// Fractional part of the golden ratio: its multiples spread quantiles evenly, whatever their
/// number.
const GOLDEN: f64 = 0.618_033_988_749_894_9;

/// A sequence before it runs.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Planned {
    pub prompt_tokens: u32,
    /// Maximum number of new tokens, at least 1.
    pub max_new: u32,
}

/// Estimated remaining time.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct TimeLeft {
    pub s: f64,
    /// True if no answer has ended yet, so that each may run to its limit.
    pub at_most: bool,
}

/// Follows a job from its first prefill to its last token. Sequences begin in their order.
#[derive(Debug)]
pub struct Remaining {
    planned: Vec<Planned>,
    /// Number of sequences that run concurrently.
    slots: usize,
    states: Vec<State>,
    /// First sequence that has not begun; all after it are waiting, too.
    waiting: usize,
    lengths: Lengths,
    pace: Pace,
    /// The current look, and the ends of it and of the one before, in seconds.
    burst: Burst,
    burst_end_s: f64,
    last_end_s: f64,
    /// Number of decode steps so far, derived from the tokens.
    step: u64,
    /// Number of times that sequences began together, and number of sequences that began after the
    /// first time.
    begun_times: usize,
    followers: usize,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum State {
    Waiting,
    /// Number of tokens, and the step of the last one.
    Running {
        made: u32,
        step: u64,
    },
    Completion,
}

impl Remaining {
    /// Creates an estimate for a job that begins at second 0, with predicted costs if there are
    /// any.
    pub fn new(planned: Vec<Planned>, slots: usize, prior: Option<Prior>) -> Remaining {
        let longest = planned.iter().map(|sequence| sequence.max_new).max().unwrap_or(0);
        Remaining {
            slots: slots.max(1),
            states: vec![State::Waiting; planned.len()],
            waiting: 0,
            lengths: Lengths::new(longest),
            pace: Pace::new(prior),
            burst: Burst::default(),
            burst_end_s: 0.0,
            last_end_s: 0.0,
            step: 0,
            begun_times: 0,
            followers: 0,
            planned,
        }
    }

    /// Records a token of `sequence`.
    pub fn token(&mut self, sequence: usize, now_s: f64) {
        let (made, step) = match self.states[sequence] {
            State::Running { made, step } => {
                self.look(now_s, step >= self.step);
                self.burst.rows += 1.0;
                (made, step + 1)
            }
            _ => {
                self.begin(sequence, now_s);
                (0, self.step)
            }
        };
        if step > self.step {
            self.burst.steps += (step - self.step) as f64;
            self.step = step;
        }
        self.lengths.went_on(made);
        self.states[sequence] = State::Running { made: made + 1, step };
    }

    /// Records that `sequence` has ended after `made` tokens.
    pub fn finished(&mut self, sequence: usize, made: u32, now_s: f64) {
        if self.states[sequence] == State::Waiting {
            self.begin(sequence, now_s);
        }
        self.look(now_s, false);
        if made < self.planned[sequence].max_new {
            self.lengths.ended(made);
        } else {
            self.lengths.cut();
        }
        self.states[sequence] = State::Completion;
    }

    /// Returns the number of prompt tokens of sequences that have begun.
    pub fn prompt_tokens(&self) -> u64 {
        let begun = self.planned.iter().zip(&self.states);
        let begun = begun.filter(|(_, state)| **state != State::Waiting);
        begun.map(|(planned, _)| u64::from(planned.prompt_tokens)).sum()
    }

    /// Estimates the time that remains at `now_s`; returns `None` while the costs of steps are
    /// unknown.
    pub fn left(&self, now_s: f64) -> Option<TimeLeft> {
        let costs = self.pace.with(self.burst_s(), &self.burst).costs(self.slots as f64)?;
        let waiting = self.planned.len() - self.waiting;
        let whole_s = if waiting <= PLAYED_MAX {
            self.played(&costs, waiting)
        } else {
            let (half_s, full_s) =
                (self.played(&costs, PLAYED_MAX / 2), self.played(&costs, PLAYED_MAX));
            let more = (waiting - PLAYED_MAX) as f64 / (PLAYED_MAX / 2) as f64;
            full_s + more * (full_s - half_s)
        };
        // The current step began with the last look.
        let s = (whole_s - (now_s - self.burst_end_s)).max(0.0);
        Some(TimeLeft { s, at_most: self.lengths.tell_nothing() && waiting + self.running() > 0 })
    }

    fn running(&self) -> usize {
        let is_running = |state: &&State| matches!(state, State::Running { .. });
        self.states[..self.waiting].iter().filter(is_running).count()
    }

    fn burst_s(&self) -> f64 {
        self.burst_end_s - self.last_end_s
    }

    /// Closes the current look if it is over and the new event belongs to another step or prefill:
    /// reporting the tokens of one step may take a while.
    fn look(&mut self, now_s: f64, is_another: bool) {
        if is_another && now_s - self.burst_end_s > ONE_LOOK_S {
            self.pace = self.pace.with(self.burst_s(), &self.burst);
            self.burst = Burst::default();
            self.last_end_s = self.burst_end_s;
        }
        self.burst_end_s = now_s.max(self.burst_end_s);
    }

    fn begin(&mut self, sequence: usize, now_s: f64) {
        // Prefills without a step between them are distinguished by the time between them.
        let is_later = now_s - self.burst_end_s > self.burst_s() * LATER_SHARE;
        self.look(now_s, self.burst.fresh == 0 || self.burst.steps > 0.0 || is_later);
        self.waiting = self.waiting.max(sequence + 1);
        if self.burst.fresh == 0 {
            self.begun_times += 1;
        }
        if self.begun_times > 1 {
            self.followers += 1;
        }
        self.burst.fresh += 1;
        self.burst.prompt_tokens += f64::from(self.planned[sequence].prompt_tokens);
    }

    /// Simulates the rest of the job from the last look on, with `waiting` waiting sequences;
    /// returns the seconds that it takes.
    fn played(&self, costs: &Costs, waiting: usize) -> f64 {
        let curve = self.lengths.curve();
        let chances = (0..CHANCES).map(|chance| f64::from(chance) / f64::from(CHANCES));
        let sum: f64 = chances.map(|chance| self.played_once(costs, waiting, &curve, chance)).sum();
        sum / f64::from(CHANCES)
    }

    /// Simulates once, with the answer lengths that `chance`, from 0 to 1, determines.
    fn played_once(&self, costs: &Costs, waiting: usize, curve: &Curve, chance: f64) -> f64 {
        let (mut step, mut s, mut taken) = (0u64, 0.0, chance);
        let mut quantile = || {
            taken = (taken + GOLDEN).fract();
            taken
        };
        let mut ends = BinaryHeap::new();
        for (planned, state) in self.planned.iter().zip(&self.states[..self.waiting]) {
            if let State::Running { made, .. } = state {
                ends.push(Reverse(curve.steps_left(*made, planned.max_new, quantile())));
            }
        }
        // If not all waiting sequences are simulated, those that are, are spaced evenly.
        let all = self.planned.len() - self.waiting;
        let places = (0..waiting).map(|place| self.waiting + place * all / waiting.max(1));
        let mut waiting: Vec<usize> = places.rev().collect();
        loop {
            let free = self.slots.saturating_sub(ends.len());
            let fresh = free.min(waiting.len());
            if fresh > 0 && fresh >= self.together().min(waiting.len()) {
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
    fn together(&self) -> usize {
        match self.begun_times {
            0 | 1 => self.slots.div_ceil(4),
            times => (self.followers / (times - 1)).max(1),
        }
    }
}
