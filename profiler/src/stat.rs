//! Summary of repeated measurements: the median, the spread, and the number of outliers.
//!
//! **Outliers.** A sample is an outlier if its distance from the median exceeds
//! [`OUTLIER_DEVIATIONS`] scaled median absolute deviations, or [`OUTLIER_SHARE`] of the median if
//! the samples agree better than that. Statistics are taken over the remaining samples. Interrupts
//! and migrations make single samples long; the median alone would tolerate them, but not the
//! spread.

use serde::{Deserialize, Serialize};

/// Number of scaled median absolute deviations beyond which a sample is an outlier.
pub const OUTLIER_DEVIATIONS: f64 = 3.5;
/// Fraction of the median within which no sample is an outlier, however well the others agree.
pub const OUTLIER_SHARE: f64 = 0.02;
/// Fraction of a mean beyond which another one differs from it, however widely the samples spread.
pub const DIFFERENCE_MAX: f64 = 0.1;
/// Standard deviation of a normal distribution in units of median absolute deviations.
const NORMAL_SCALE: f64 = 1.4826;

/// Statistics of repeated measurements, in nanoseconds.
#[derive(Debug, Clone, Copy, PartialEq, Serialize, Deserialize)]
pub struct Stat {
    pub median_ns: f64,
    /// Mean over all samples including outliers: the cost of each in a long run.
    pub mean_ns: f64,
    /// Smallest and largest sample that is not an outlier.
    pub min_ns: f64,
    pub max_ns: f64,
    /// Scaled median absolute deviation, which equals the standard deviation of a normal
    /// distribution.
    pub deviation_ns: f64,
    /// Number of samples that count.
    pub samples: u32,
    /// Number of samples that were left out.
    pub outliers: u32,
}

impl Stat {
    /// Summarises samples in nanoseconds; `None` without samples.
    pub fn from_samples(samples_ns: &[u64]) -> Option<Stat> {
        let mut values: Vec<f64> = samples_ns.iter().map(|ns| *ns as f64).collect();
        values.sort_unstable_by(f64::total_cmp);
        let centre = median(&values)?;
        let allowed =
            (OUTLIER_DEVIATIONS * median_deviation(&values, centre)).max(OUTLIER_SHARE * centre);
        let all = values.len();
        let mean_ns = values.iter().sum::<f64>() / all as f64;
        values.retain(|value| (value - centre).abs() <= allowed);
        // At least the samples next to the median remain.
        let median_ns = median(&values)?;
        Some(Stat {
            median_ns,
            mean_ns,
            min_ns: *values.first()?,
            max_ns: *values.last()?,
            deviation_ns: median_deviation(&values, median_ns),
            samples: values.len() as u32,
            outliers: (all - values.len()) as u32,
        })
    }

    /// Returns true if the means differ by more than their samples spread. A wide spread excuses at
    /// most [`DIFFERENCE_MAX`].
    pub fn differs(&self, other: &Stat) -> bool {
        let smaller_mean_ns = self.mean_ns.min(other.mean_ns);
        let allowed_ns = (self.deviation_ns + other.deviation_ns)
            .clamp(OUTLIER_SHARE * smaller_mean_ns, DIFFERENCE_MAX * smaller_mean_ns);
        (self.mean_ns - other.mean_ns).abs() > allowed_ns
    }
}

/// Returns the median of sorted values; the mean of the middle two for an even count.
pub(crate) fn median(sorted: &[f64]) -> Option<f64> {
    let middle = sorted.len() / 2;
    match sorted.len() {
        0 => None,
        count if count % 2 == 1 => Some(sorted[middle]),
        _ => Some((sorted[middle - 1] + sorted[middle]) / 2.0),
    }
}

fn median_deviation(sorted: &[f64], centre: f64) -> f64 {
    let mut distances: Vec<f64> = sorted.iter().map(|value| (value - centre).abs()).collect();
    distances.sort_unstable_by(f64::total_cmp);
    NORMAL_SCALE * median(&distances).unwrap_or(0.0)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn medians_by_hand() {
        assert_eq!(Stat::from_samples(&[]), None);
        let one = Stat::from_samples(&[7]).expect("one sample");
        assert_eq!((one.median_ns, one.deviation_ns, one.samples, one.outliers), (7.0, 0.0, 1, 0));
        let even = Stat::from_samples(&[40, 10, 30, 20]).expect("four samples");
        assert_eq!((even.median_ns, even.min_ns, even.max_ns), (25.0, 10.0, 40.0));
        // Distances 15 5 5 15: their median is 10.
        assert_eq!(even.deviation_ns, 10.0 * NORMAL_SCALE);
    }

    #[test]
    fn an_interrupted_sample_is_left_out_and_counted() {
        // Median 102, distances 2 1 0 1 2 898 0: their median is 1, so 102 +- 5.2 remain.
        let found = Stat::from_samples(&[100, 101, 102, 103, 104, 1000, 102]).expect("samples");
        assert_eq!((found.samples, found.outliers), (6, 1));
        assert_eq!((found.median_ns, found.max_ns), (102.0, 104.0));
        assert_eq!(found.mean_ns, 1612.0 / 7.0, "the mean is over all");
    }

    #[test]
    fn samples_that_agree_have_no_outliers_within_the_share() {
        // The deviation is 0; 2% of 1000 are 20.
        let found = Stat::from_samples(&[1000, 1000, 1000, 1000, 1020, 1021]).expect("samples");
        assert_eq!((found.samples, found.outliers), (5, 1));
        assert_eq!(found.max_ns, 1020.0);
    }

    #[test]
    fn figures_differ_beyond_their_spread() {
        let of = |samples: &[u64]| Stat::from_samples(samples).expect("samples");
        let narrow = of(&[1000, 1001, 1002, 1003, 1004]);
        assert!(!narrow.differs(&of(&[1015, 1016, 1017])), "within 2%");
        assert!(narrow.differs(&of(&[1100, 1101, 1102])));
        assert!(of(&[1100, 1101, 1102]).differs(&narrow));
        let wide = of(&[900, 1000, 1100, 1200, 1300]);
        assert!(!narrow.differs(&wide), "98 apart, and one of them spreads by 148");
        assert!(narrow.differs(&of(&[1000, 1300, 1700])), "a third apart is not excused");
    }

    #[test]
    fn a_wide_distribution_keeps_its_samples() {
        let found = Stat::from_samples(&[100, 200, 300, 400, 500]).expect("samples");
        assert_eq!((found.samples, found.outliers), (5, 0));
    }
}
