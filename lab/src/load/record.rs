//! Records of requests. All times are relative to the start of the measurement.

use std::time::Duration;

/// An answer, with the times at which its parts arrived.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct AnswerRecord {
    /// Scheduled time of sending.
    pub scheduled: Duration,
    /// Actual time of sending.
    pub sent: Duration,
    /// Arrival time of each event with tokens, at least one.
    pub events: Vec<Duration>,
    pub ended: Duration,
    pub prompt_tokens: u32,
    pub answer_tokens: u32,
    /// Number of requested tokens.
    pub requested_tokens: u32,
}

impl AnswerRecord {
    /// Returns the time to the first token from the scheduled arrival, so that delays of this
    /// program count too.
    pub fn time_to_first_token(&self) -> Duration {
        self.events[0].saturating_sub(self.scheduled)
    }

    /// Returns the average time per token after the first; `None` if there is only one token.
    pub fn time_per_output_token(&self) -> Option<Duration> {
        let last = self.events[self.events.len() - 1];
        (self.answer_tokens > 1).then(|| (last - self.events[0]) / (self.answer_tokens - 1))
    }

    /// Returns the times between consecutive events.
    pub fn gaps(&self) -> impl Iterator<Item = Duration> {
        self.events.windows(2).map(|pair| pair[1] - pair[0])
    }
}

/// Records of all requests.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct RequestRecords {
    pub answers: Vec<AnswerRecord>,
    /// Error message of each request without a complete answer.
    pub failures: Vec<String>,
    /// Time until the last request ended.
    pub duration: Duration,
}
