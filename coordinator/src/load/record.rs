//! What became of a request. All times are from the measurement's start.

use std::time::Duration;

/// An answer, and when its parts came.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Answer {
    /// When it should have been sent.
    pub scheduled: Duration,
    /// When it was.
    pub sent: Duration,
    /// Of each event with tokens, at least one.
    pub events: Vec<Duration>,
    pub ended: Duration,
    pub prompt_tokens: u32,
    pub answer_tokens: u32,
    /// Tokens that were asked for.
    pub ordered_tokens: u32,
}

impl Answer {
    /// From the scheduled arrival, so that what keeps this program from sending counts too.
    pub fn first_token(&self) -> Duration {
        self.events[0].saturating_sub(self.scheduled)
    }

    /// Between two tokens behind the first, on average; `None` where there is one alone.
    pub fn per_token(&self) -> Option<Duration> {
        let last = self.events[self.events.len() - 1];
        (self.answer_tokens > 1).then(|| (last - self.events[0]) / (self.answer_tokens - 1))
    }

    /// From each event to the next.
    pub fn gaps(&self) -> impl Iterator<Item = Duration> {
        self.events.windows(2).map(|pair| pair[1] - pair[0])
    }
}

/// What became of all requests.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct Records {
    pub answers: Vec<Answer>,
    /// A sentence for each that has no whole answer.
    pub failures: Vec<String>,
    /// Until the last one ended.
    pub lasted: Duration,
}
