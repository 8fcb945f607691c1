//! How long answers are, from those that have ended and those that go on: Kaplan and Meier's
//! estimate, drawn towards a hazard that falls with length where few have come. A model that has
//! not ended long after others did may be repeating itself, and then goes on to the most it may.

/// So many answers of the falling hazard are added to those that were seen at each length.
const PSEUDO: f64 = 1.0;
/// Halvings in which the hazard that fits is found.
const HALVINGS: u32 = 40;

/// Counts by length.
#[derive(Debug)]
pub(super) struct Lengths {
    /// By tokens: answers that went on.
    went_on: Vec<u32>,
    /// By tokens: answers that ended by themselves.
    ended: Vec<u32>,
    ends: u64,
    /// Answers that ended at the most they might have.
    cuts: u64,
}

impl Lengths {
    /// For answers of up to `longest` tokens.
    pub(super) fn new(longest: u32) -> Lengths {
        let places = longest as usize + 1;
        let (went_on, ended) = (vec![0; places], vec![0; places]);
        Lengths { went_on, ended, ends: 0, cuts: 0 }
    }

    /// An answer of `made` tokens got another one.
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

    /// Whether no answer has ended yet.
    pub(super) fn tell_nothing(&self) -> bool {
        self.ends + self.cuts == 0
    }

    /// The shares of answers that reach each length.
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

    /// The `scale` at which a hazard of `1 / (scale + made)` would have ended as many answers as
    /// have; `None` where none has.
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

/// `reach[t]`: the share of answers with at least `t` tokens, were none cut.
#[derive(Debug)]
pub(super) struct Curve {
    reach: Vec<f64>,
}

impl Curve {
    /// Decode steps that an answer of `made` tokens still takes, the one that ends it among them,
    /// in the `quantile` of those like it.
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
        // What went on for longer than any is taken to go on for as long again, and longer the
        // longer it was.
        let (soon, late) = (curve.steps_left(60, 1000, 0.5), curve.steps_left(200, 1000, 0.5));
        assert!((30..=400).contains(&soon) && soon < late, "{soon} {late}");
    }
}
