//! Progress messages of a server while it computes long prompts, which may take hours.

use std::time::{Duration, Instant};

use batch::progress::format_duration;
use engine_api::serving::{EngineStatus, PromptProgress};

/// Minimum interval between two messages.
const MIN_LINE_INTERVAL: Duration = Duration::from_secs(10);
/// Minimum remaining time of prompts for which messages are printed, in milliseconds.
const MIN_REMAINING_MS: u64 = 5_000;

/// Decides when to print a progress message.
#[derive(Debug)]
pub(super) struct StatusLine {
    last: Instant,
    was_active: bool,
}

impl StatusLine {
    pub(super) fn new() -> StatusLine {
        StatusLine { last: Instant::now(), was_active: false }
    }

    /// Returns the message that is due, if any.
    pub(super) fn next_line(&mut self, status: &EngineStatus) -> Option<String> {
        let is_due = self.last.elapsed() >= MIN_LINE_INTERVAL;
        let prompts = status.prompt_progress;
        let is_long =
            prompts.remaining_ms >= MIN_REMAINING_MS || self.was_active && prompts.tokens > 0;
        if !is_due || !is_long {
            self.was_active &= prompts.tokens > 0;
            return None;
        }
        (self.last, self.was_active) = (Instant::now(), true);
        Some(format_progress(&prompts))
    }
}

/// Returns a message like `prompts: 23040 of 100000 tokens computed, about 3 min 20 s remaining`.
fn format_progress(prompts: &PromptProgress) -> String {
    let PromptProgress { tokens, computed_tokens, remaining_ms } = prompts;
    let remaining = format_duration(*remaining_ms as f64 / 1e3);
    format!("prompts: {computed_tokens} of {tokens} tokens computed, about {remaining} left")
}

#[cfg(test)]
mod tests {
    use super::*;
    use engine_api::serving::EngineState;

    #[test]
    fn long_prompts_are_told_of_now_and_then_and_short_ones_never() {
        let mut line = StatusLine::new();
        let due = |line: &mut StatusLine| {
            line.last = Instant::now().checked_sub(MIN_LINE_INTERVAL).expect("it has run so long");
        };
        let status = |remaining_ms| EngineStatus {
            prompt_progress: PromptProgress {
                tokens: 100_000,
                computed_tokens: 23_040,
                remaining_ms,
            },
            ..EngineStatus::new(EngineState::Ready)
        };
        due(&mut line);
        assert_eq!(line.next_line(&status(MIN_REMAINING_MS - 1)), None);
        let text = line.next_line(&status(200_000)).expect("it is due");
        assert_eq!(text, "prompts: 23040 of 100000 tokens computed, about 3 min 20 s left");
        assert_eq!(line.next_line(&status(200_000)), None, "not yet again");
        due(&mut line);
        assert!(line.next_line(&status(1_000)).is_some(), "to its end");
        due(&mut line);
        assert_eq!(line.next_line(&EngineStatus::new(EngineState::Ready)), None);
    }
}
