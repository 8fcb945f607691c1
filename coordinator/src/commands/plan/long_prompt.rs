//! Times of prompts that are too long to be measured on this machine, extrapolated from
//! measurements at two lengths.

use batch::progress::format_duration;
use planner::search::PredictedTimes;

use crate::commands::run;
use session::interrupt::Interrupt;
use session::placement::MeasurePolicy;
use session::session::Session;

/// Lengths of the measured prompts; one is four times the other.
const MEASURED_LENGTHS: [u32; 2] = [1024, 4096];
/// New tokens after them.
const MEASURED_STEPS: u32 = 8;

/// Predicted times of a longer prompt.
#[derive(Debug, Clone, Copy, PartialEq)]
pub(super) struct LongPrompt {
    pub(super) prefill_ns: f64,
    /// Time of a decode step after the prompt.
    pub(super) step_ns: f64,
}

impl LongPrompt {
    /// Measures at both lengths; returns `None` if one of them cannot be predicted.
    ///
    /// # Errors
    /// A machine that could not be profiled, or an interrupt.
    pub(super) fn measure(
        session: &Session<'_>,
        prompt_len: u32,
        interrupt: &Interrupt,
    ) -> anyhow::Result<Option<LongPrompt>> {
        let mut found = Vec::new();
        // The longer one is first, because its profile also covers the shorter one.
        for measured in MEASURED_LENGTHS.into_iter().rev().filter(|measured| *measured < prompt_len)
        {
            let decision = run::plan_benchmark(
                session,
                measured,
                MEASURED_STEPS,
                MeasurePolicy::Always,
                interrupt,
            )?;
            found.extend(decision.search_result.map(|chosen| chosen.predicted));
        }
        let [long, short] = found[..] else { return Ok(None) };
        Ok(Some(LongPrompt::extrapolate([short, long], prompt_len.into())))
    }

    /// Extrapolates from two lengths. Linears take a time for each row, and attention takes one for
    /// each pair of a row and a preceding position; a decode step reads all weights and the keys
    /// and values of each position.
    fn extrapolate([short, long]: [PredictedTimes; 2], prompt_len: f64) -> LongPrompt {
        let [near, far] = MEASURED_LENGTHS.map(f64::from);
        let pairs = (long.prefill_ns / far - short.prefill_ns / near) / (far - near);
        let pairs = pairs.max(0.0);
        let rows = short.prefill_ns / near - pairs * near;
        let step = |times: PredictedTimes| times.decode_ns / f64::from(MEASURED_STEPS - 1);
        let position = ((step(long) - step(short)) / (far - near)).max(0.0);
        LongPrompt {
            prefill_ns: rows * prompt_len + pairs * prompt_len * prompt_len,
            step_ns: step(short) + position * (prompt_len - near),
        }
    }

    /// Returns a sentence like `Prompts take about 2 h 3 min, and a decode step 0.410 s, ...`.
    pub(super) fn describe(self) -> String {
        let [near, far] = MEASURED_LENGTHS;
        format!(
            "Prompts take about {}, and a decode step {:.3} s, extrapolated from prompts of \
             {near} and {far} tokens.",
            format_duration(self.prefill_ns / 1e9),
            self.step_ns / 1e9
        )
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_grows_with_the_square_is_told_from_what_grows_with_the_length() {
        let predicted = |length: f64| PredictedTimes {
            prefill_ns: 1e6 * length + 40.0 * length * length,
            decode_ns: f64::from(MEASURED_STEPS - 1) * (3e7 + 500.0 * length),
        };
        let measured = MEASURED_LENGTHS.map(|length| predicted(length.into()));
        let found = LongPrompt::extrapolate(measured, 1e6);
        let expected = predicted(1e6);
        assert!((found.prefill_ns / expected.prefill_ns - 1.0).abs() < 1e-9, "{found:?}");
        let step_ns = expected.decode_ns / f64::from(MEASURED_STEPS - 1);
        assert!((found.step_ns / step_ns - 1.0).abs() < 1e-9, "{found:?}");
        assert!(found.describe().contains("11 h 23 min"), "{}", found.describe());
        // Noise never makes longer prompts cheaper.
        let flat = LongPrompt::extrapolate([measured[1], measured[0]], 1e6);
        assert!(flat.prefill_ns >= 0.0 && flat.step_ns >= 0.0, "{flat:?}");
    }
}
