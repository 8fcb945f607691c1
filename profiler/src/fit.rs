//! Least squares with non-negative coefficients.

/// Number of coefficients of a fit.
pub(crate) const COEFFICIENTS: usize = 3;

/// A measured point: `target = sum of columns x coefficients`, weighted by `scale`.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Sample {
    pub(crate) columns: [f64; COEFFICIENTS],
    pub(crate) target: f64,
    /// Scale to which an error of the target is relative.
    pub(crate) scale: f64,
}

/// Returns the coefficients with the least sum of squares; 0 where a column does not contribute.
pub(crate) fn non_negative(samples: &[Sample]) -> [f64; COEFFICIENTS] {
    let mut best = ([0.0; COEFFICIENTS], f64::INFINITY);
    // The best of all subsets of columns is the best among those with non-negative coefficients.
    for used in 1..1u32 << COEFFICIENTS {
        let Some(solution) = solve(samples, used) else { continue };
        if solution.iter().any(|coefficient| *coefficient < 0.0) {
            continue;
        }
        let error: f64 = samples.iter().map(|sample| residual(sample, &solution).powi(2)).sum();
        if error < best.1 {
            best = (solution, error);
        }
    }
    best.0
}

fn residual(sample: &Sample, solution: &[f64; COEFFICIENTS]) -> f64 {
    let predicted: f64 = sample.columns.iter().zip(solution).map(|(x, c)| x * c).sum();
    (predicted - sample.target) / sample.scale
}

/// Solves the normal equations of the columns in `used`, by elimination; `None` if they are
/// singular.
fn solve(samples: &[Sample], used: u32) -> Option<[f64; COEFFICIENTS]> {
    let columns: Vec<usize> = (0..COEFFICIENTS).filter(|index| used >> index & 1 == 1).collect();
    let count = columns.len();
    // Columns in units of their largest entry, so that bytes and constants are comparable.
    let units: Vec<f64> = columns
        .iter()
        .map(|column| samples.iter().map(|s| s.columns[*column] / s.scale).fold(0.0, f64::max))
        .collect();
    if units.iter().any(|unit| *unit <= 0.0) {
        return None;
    }
    let mut rows = vec![vec![0.0; count + 1]; count];
    for sample in samples {
        let entry = |place: usize| sample.columns[columns[place]] / sample.scale / units[place];
        for (row, values) in rows.iter_mut().enumerate() {
            for (column, value) in values.iter_mut().enumerate() {
                let other =
                    if column < count { entry(column) } else { sample.target / sample.scale };
                *value += entry(row) * other;
            }
        }
    }
    for pivot in 0..count {
        if rows[pivot][pivot] < 1e-9 {
            return None;
        }
        let by = rows[pivot].clone();
        for (row, values) in rows.iter_mut().enumerate().filter(|(row, _)| *row != pivot) {
            let factor = values[pivot] / by[pivot];
            debug_assert!(row < count);
            values.iter_mut().zip(&by).for_each(|(value, by)| *value -= factor * by);
        }
    }
    let mut solution = [0.0; COEFFICIENTS];
    for (place, column) in columns.iter().enumerate() {
        solution[*column] = rows[place][count] / rows[place][place] / units[place];
    }
    Some(solution)
}

#[cfg(test)]
mod tests {
    use super::{Sample, non_negative};

    fn samples(of: impl Fn(f64, f64) -> f64) -> Vec<Sample> {
        let points = [(1e6, 1e3), (1e6, 1e6), (4e6, 4e3), (4e6, 4e6), (2e6, 1e7)];
        let sample = |(bytes, flops)| {
            let target = of(bytes, flops);
            Sample { columns: [bytes, flops, 1.0], target, scale: target }
        };
        points.into_iter().map(sample).collect()
    }

    #[test]
    fn what_follows_the_law_is_found_exactly() {
        let found = non_negative(&samples(|bytes, flops| bytes / 50.0 + flops / 2000.0 + 700.0));
        for (found, expected) in found.into_iter().zip([1.0 / 50.0, 1.0 / 2000.0, 700.0]) {
            assert!((found / expected - 1.0).abs() < 1e-6, "{found} for {expected}");
        }
    }

    #[test]
    fn nothing_is_negative() {
        // If larger work takes less than proportionally, the constant would have to be negative.
        let found = non_negative(&samples(|bytes, _| bytes / 50.0 - 5000.0));
        assert!(found.iter().all(|coefficient| *coefficient >= 0.0), "{found:?}");
        assert!(found[0] > 0.0, "{found:?}");
    }

    #[test]
    fn a_column_without_entries_is_left_out() {
        let one = Sample { columns: [10.0, 0.0, 0.0], target: 5.0, scale: 5.0 };
        assert_eq!(non_negative(&[one]), [0.5, 0.0, 0.0]);
        assert_eq!(non_negative(&[]), [0.0; 3]);
    }
}
