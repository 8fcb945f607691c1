//! Service level objectives for answers.

use std::time::Duration;

use super::record::AnswerRecord;

/// Parses a number of milliseconds.
///
/// # Errors
/// The text is not a number, or is negative.
pub fn parse_ms(text: &str) -> Result<Duration, String> {
    let seconds = text.parse::<f64>().map(|ms| ms / 1000.0).unwrap_or(f64::NAN);
    Duration::try_from_secs_f64(seconds)
        .map_err(|_| "expected a number of milliseconds, such as 100 or 0.5".to_owned())
}

/// A service level objective.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Slo {
    /// Maximum time to the first token, apart from the allowance per prompt token.
    pub first_token: Duration,
    /// Additional time to the first token per prompt token.
    pub per_prompt_token: Duration,
    /// Maximum time per token after the first, averaged over an answer.
    pub per_token: Duration,
}

impl Default for Slo {
    fn default() -> Slo {
        Slo {
            first_token: Duration::from_secs(1),
            per_prompt_token: Duration::from_millis(3),
            per_token: Duration::from_millis(100),
        }
    }
}

impl Slo {
    /// Returns true if the answer meets the objective.
    pub fn is_met(&self, answer: &AnswerRecord) -> bool {
        let first = self.first_token + self.per_prompt_token * answer.prompt_tokens;
        answer.time_to_first_token() <= first
            && answer.time_per_output_token().is_none_or(|per_token| per_token <= self.per_token)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn times_are_milliseconds() {
        assert_eq!(parse_ms("0.5"), Ok(Duration::from_micros(500)));
        for wrong in ["-1", "1s", "nan", ""] {
            assert!(parse_ms(wrong).is_err(), "{wrong}");
        }
    }

    #[test]
    fn each_of_its_parts_counts() {
        let ms = Duration::from_millis;
        // Returns true for an answer that is scheduled at 1 s, has 10 prompt tokens, its first
        // token after `first` ms and three more by `last` ms.
        let met = |first: u64, last: u64| {
            Slo::default().is_met(&AnswerRecord {
                scheduled: ms(1000),
                sent: ms(1001),
                events: vec![ms(1000 + first), ms(1000 + last)],
                ended: ms(1000 + last),
                prompt_tokens: 10,
                answer_tokens: 4,
                requested_tokens: 4,
            })
        };
        assert!(met(1030, 1330));
        assert!(!met(1031, 1040), "1 s and 3 ms for each of 10 tokens");
        assert!(!met(20, 321), "100 ms for each of 3 tokens");
    }
}
