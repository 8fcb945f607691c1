//! Progress messages of a server while it computes long prompts, which may take hours.

use std::time::{Duration, Instant};

use crate::boundary::serving::{PromptsGoing, Status};
use crate::job::progress::duration;

/// Minimum interval between two messages.
const LINE_EVERY: Duration = Duration::from_secs(10);
/// Minimum remaining time of prompts for which messages are printed, in milliseconds.
const LEFT_MIN_MS: u64 = 5_000;

/// Decides when to print a progress message.
#[derive(Debug)]
pub(super) struct StatusLine {
    last: Instant,
    was_going: bool,
}

impl StatusLine {
    pub(super) fn new() -> StatusLine {
        StatusLine { last: Instant::now(), was_going: false }
    }

    /// Returns the message that is due, if any.
    pub(super) fn line(&mut self, status: &Status) -> Option<String> {
        let is_due = self.last.elapsed() >= LINE_EVERY;
        let going = status.prompts_going;
        let is_long = going.left_ms >= LEFT_MIN_MS || self.was_going && going.tokens > 0;
        if !is_due || !is_long {
            self.was_going &= going.tokens > 0;
            return None;
        }
        (self.last, self.was_going) = (Instant::now(), true);
        Some(in_words(&going))
    }
}

/// Returns a message like `prompts: 23040 of 100000 tokens computed, about 3 min 20 s left`.
fn in_words(going: &PromptsGoing) -> String {
    let PromptsGoing { tokens, computed, left_ms } = going;
    let left = duration(*left_ms as f64 / 1e3);
    format!("prompts: {computed} of {tokens} tokens computed, about {left} left")
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::boundary::serving::State;

    #[test]
    fn long_prompts_are_told_of_now_and_then_and_short_ones_never() {
        let mut line = StatusLine::new();
        let due = |line: &mut StatusLine| {
            line.last = Instant::now().checked_sub(LINE_EVERY).expect("it has run so long");
        };
        let status = |left_ms| Status {
            prompts_going: PromptsGoing { tokens: 100_000, computed: 23_040, left_ms },
            ..Status::new(State::Ready)
        };
        due(&mut line);
        assert_eq!(line.line(&status(LEFT_MIN_MS - 1)), None);
        let said = line.line(&status(200_000)).expect("it is due");
        assert_eq!(said, "prompts: 23040 of 100000 tokens computed, about 3 min 20 s left");
        assert_eq!(line.line(&status(200_000)), None, "not yet again");
        due(&mut line);
        assert!(line.line(&status(1_000)).is_some(), "to its end");
        due(&mut line);
        assert_eq!(line.line(&Status::new(State::Ready)), None);
    }
}
