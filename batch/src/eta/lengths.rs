//! Estimate of answer lengths from answers that have ended and answers that are running: the
//! Kaplan-Meier estimator, shrunk towards a hazard that falls with length where observations are
//! few. A model that has not ended long after the others did may be repeating itself, and then
//! continues to its limit.

/// Number of answers with the falling hazard that are added to the observations at each length.
const PRIOR_WEIGHT: f64 = 1.0;
/// Iterations of the bisection that fits the hazard's scale.
const BISECTION_STEPS: u32 = 40;

/// Counts of answers by length.
#[derive(Debug)]
pub(super) struct LengthStats {
    /// Answers that continued after this number of tokens.
    continued: Vec<u32>,
    /// Answers that ended by themselves after this number of tokens.
    ended: Vec<u32>,
    ended_count: u64,
    /// Answers that ended at their limit.
    truncated_count: u64,
}

impl LengthStats {
    /// Creates counts for answers of up to `longest` tokens.
    pub(super) fn new(longest: u32) -> LengthStats {
        let places = longest as usize + 1;
        let (continued, ended) = (vec![0; places], vec![0; places]);
        LengthStats { continued, ended, ended_count: 0, truncated_count: 0 }
    }

    /// Counts an answer of `generated` tokens that got another one.
    pub(super) fn record_continued(&mut self, generated: u32) {
        if let Some(count) = self.continued.get_mut(generated as usize) {
            *count += 1;
        }
    }

    pub(super) fn record_ended(&mut self, generated: u32) {
        self.ended_count += 1;
        if let Some(count) = self.ended.get_mut(generated as usize) {
            *count += 1;
        }
    }

    pub(super) fn record_truncated(&mut self) {
        self.truncated_count += 1;
    }

    /// Returns true if no answer has ended yet.
    pub(super) fn has_no_ends(&self) -> bool {
        self.ended_count + self.truncated_count == 0
    }

    /// Estimates the fraction of answers that reach each length.
    pub(super) fn survival_curve(&self) -> SurvivalCurve {
        let scale = self.scale();
        let mut share = 1.0;
        let mut survival = vec![share];
        for (made, (continued, ended)) in self.continued.iter().zip(&self.ended).enumerate() {
            let (continued, ended) = (f64::from(*continued), f64::from(*ended));
            let hazard = scale.map_or(0.0, |scale| 1.0 / (scale + made as f64));
            share *= 1.0 - (ended + PRIOR_WEIGHT * hazard) / (ended + continued + PRIOR_WEIGHT);
            survival.push(share);
        }
        SurvivalCurve { survival }
    }

    /// Returns the `scale` at which a hazard of `1 / (scale + made)` predicts as many ends as were
    /// observed; `None` if there were none.
    fn scale(&self) -> Option<f64> {
        if self.ended_count == 0 {
            return None;
        }
        let expected = |scale: f64| -> f64 {
            let at = self.continued.iter().zip(&self.ended).enumerate();
            at.map(|(made, (a, b))| f64::from(a + b) / (scale + made as f64)).sum()
        };
        let (mut low, mut high) = (1.0, 1e9);
        for _ in 0..BISECTION_STEPS {
            let middle = f64::sqrt(low * high);
            if expected(middle) > self.ended_count as f64 { low = middle } else { high = middle }
        }
        Some(low)
    }
}

/// Survival function of lengths: `reach[t]` is the fraction of answers with at least `t` tokens if
/// none were cut.
#[derive(Debug)]
pub(super) struct SurvivalCurve {
    survival: Vec<f64>,
}

impl SurvivalCurve {
    /// Returns the number of decode steps, including the last, that an answer of `generated` tokens
    /// still takes in the `quantile` of comparable answers.
    pub(super) fn steps_left(&self, generated: u32, max_new: u32, quantile: f64) -> u64 {
        let from = (generated as usize).min(self.survival.len() - 1);
        let level = self.survival[from] * (1.0 - quantile);
        let length = self.survival.partition_point(|share| *share >= level).max(from + 1);
        (length - from).min((max_new.max(generated) - generated) as usize) as u64
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn nothing_known_means_the_most_there_can_be() {
        let lengths = LengthStats::new(100);
        assert!(lengths.has_no_ends());
        assert_eq!(lengths.survival_curve().steps_left(0, 100, 0.5), 100);
        assert_eq!(lengths.survival_curve().steps_left(90, 100, 0.9), 10);
    }

    #[test]
    fn equal_answers_are_expected_to_end_where_the_others_did() {
        let mut lengths = LengthStats::new(1000);
        for _ in 0..16 {
            (0..50).for_each(|made| lengths.record_continued(made));
            lengths.record_ended(50);
        }
        let curve = lengths.survival_curve();
        let middle = curve.steps_left(0, 1000, 0.5);
        assert!((40..=52).contains(&middle), "{middle}");
        let late = curve.steps_left(45, 1000, 0.5);
        assert!((1..=7).contains(&late), "{late}");
        // An answer longer than all that ended is expected to continue for about as long again: the
        // longer it is, the longer it continues.
        let (soon, late) = (curve.steps_left(60, 1000, 0.5), curve.steps_left(200, 1000, 0.5));
        assert!((30..=400).contains(&soon) && soon < late, "{soon} {late}");
    }
}
