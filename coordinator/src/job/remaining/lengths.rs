//! Estimate of answer lengths from answers that have ended and answers that are running: the
//! Kaplan-Meier estimator, shrunk towards a hazard that falls with length where observations are
//! few. A model that has not ended long after the others did may be repeating itself, and then
//! continues to its limit.

/// Number of answers with the falling hazard that are added to the observations at each length.
const PSEUDO: f64 = 1.0;
/// Iterations of the bisection that fits the hazard's scale.
const HALVINGS: u32 = 40;

/// Counts of answers by length.
#[derive(Debug)]
pub(super) struct Lengths {
    /// Answers that continued after this number of tokens.
    went_on: Vec<u32>,
    /// Answers that ended by themselves after this number of tokens.
    ended: Vec<u32>,
    ends: u64,
    /// Answers that ended at their limit.
    cuts: u64,
}

impl Lengths {
    /// Creates counts for answers of up to `longest` tokens.
    pub(super) fn new(longest: u32) -> Lengths {
        let places = longest as usize + 1;
        let (went_on, ended) = (vec![0; places], vec![0; places]);
        Lengths { went_on, ended, ends: 0, cuts: 0 }
    }

    /// Counts an answer of `made` tokens that got another one.
    pub(super) fn went_on(&mut self, made: u32) {
        if let Some(count) = self.went_on.get_mut(made as usize) {
            *count += 1;
        }
    }

    pub(super) fn ended(&mut self, made: u32) {
        self.ends += 1;
        if let Some(count) = self.ended.get_mut(made as usize) {
            *count += 1;
        }
    }

    pub(super) fn cut(&mut self) {
        self.cuts += 1;
    }

    /// Returns true if no answer has ended yet.
    pub(super) fn tell_nothing(&self) -> bool {
        self.ends + self.cuts == 0
    }

    /// Estimates the fraction of answers that reach each length.
    pub(super) fn curve(&self) -> Curve {
        let scale = self.scale();
        let mut share = 1.0;
        let mut reach = vec![share];
        for (made, (went_on, ended)) in self.went_on.iter().zip(&self.ended).enumerate() {
            let (went_on, ended) = (f64::from(*went_on), f64::from(*ended));
            let hazard = scale.map_or(0.0, |scale| 1.0 / (scale + made as f64));
            share *= 1.0 - (ended + PSEUDO * hazard) / (ended + went_on + PSEUDO);
            reach.push(share);
        }
        Curve { reach }
    }

    /// Returns the `scale` at which a hazard of `1 / (scale + made)` predicts as many ends as were
    /// observed; `None` if there were none.
    fn scale(&self) -> Option<f64> {
        if self.ends == 0 {
            return None;
        }
        let expected = |scale: f64| -> f64 {
            let at = self.went_on.iter().zip(&self.ended).enumerate();
            at.map(|(made, (a, b))| f64::from(a + b) / (scale + made as f64)).sum()
        };
        let (mut low, mut high) = (1.0, 1e9);
        for _ in 0..HALVINGS {
            let middle = f64::sqrt(low * high);
            if expected(middle) > self.ends as f64 { low = middle } else { high = middle }
        }
        Some(low)
    }
}

/// Survival function of lengths: `reach[t]` is the fraction of answers with at least `t` tokens if
/// none were cut.
#[derive(Debug)]
pub(super) struct Curve {
    reach: Vec<f64>,
}

impl Curve {
    /// Returns the number of decode steps, including the last, that an answer of `made` tokens
    /// still takes in the `quantile` of comparable answers.
    pub(super) fn steps_left(&self, made: u32, most: u32, quantile: f64) -> u64 {
        let from = (made as usize).min(self.reach.len() - 1);
        let level = self.reach[from] * (1.0 - quantile);
        let length = self.reach.partition_point(|share| *share >= level).max(from + 1);
        (length - from).min((most.max(made) - made) as usize) as u64
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn nothing_known_means_the_most_there_can_be() {
        let lengths = Lengths::new(100);
        assert!(lengths.tell_nothing());
        assert_eq!(lengths.curve().steps_left(0, 100, 0.5), 100);
        assert_eq!(lengths.curve().steps_left(90, 100, 0.9), 10);
    }

    #[test]
    fn equal_answers_are_expected_to_end_where_the_others_did() {
        let mut lengths = Lengths::new(1000);
        for _ in 0..16 {
            (0..50).for_each(|made| lengths.went_on(made));
            lengths.ended(50);
        }
        let curve = lengths.curve();
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
