//! Times between measured points: piecewise linear in rows and in positions.
//!
//! Costs of kernels grow piecewise: with the weights they read, then with the arithmetic. Between
//! two points the line is close; beyond the last one the last slope is extrapolated, since what
//! bounds an operation there also bounds it further out. Below the smallest measured time,
//! extrapolation is limited to a fraction of it, so that a noisy slope never makes work free. A
//! single point is not a line: it gives the time of that point only.

use std::collections::BTreeSet;

/// Minimum fraction of the nearest measured time that an extrapolation may return.
const EXTRAPOLATION_SHARE_MIN: f64 = 0.05;

/// Interpolates in one coordinate over ascending points `(x, time)`; `None` if they do not extend
/// to `x`.
fn interpolate(points: &[(f64, f64)], x: f64) -> Option<f64> {
    let (first, last) = (points.first()?, points.last()?);
    if x == first.0 {
        return Some(first.1);
    }
    if points.len() == 1 {
        return None;
    }
    let above = points.partition_point(|point| point.0 < x).clamp(1, points.len() - 1);
    let (low, high) = (points[above - 1], points[above]);
    let value = low.1 + (high.1 - low.1) * (x - low.0) / (high.0 - low.0);
    let nearest = if x < first.0 { first.1 } else { last.1 };
    let inside = (first.0..=last.0).contains(&x);
    Some(if inside { value } else { value.max(EXTRAPOLATION_SHARE_MIN * nearest) })
}

/// Times over rows and positions.
#[derive(Debug, Clone, PartialEq, Default)]
pub struct CostSurface {
    /// For each number of rows, ascending: its points over positions, ascending.
    lines: Vec<(f64, Vec<(f64, f64)>)>,
    /// The points are times of one position instead of all.
    of_one_position: bool,
}

impl CostSurface {
    /// Builds a surface from points `(rows, positions, time)` in any order; of equal coordinates
    /// the last counts.
    pub fn from_points(points: impl IntoIterator<Item = (u32, u32, f64)>) -> CostSurface {
        let mut surface = CostSurface::default();
        for (rows, positions, time) in points {
            let (rows, positions) = (f64::from(rows), f64::from(positions));
            let place = surface.lines.partition_point(|line| line.0 < rows);
            if surface.lines.get(place).is_none_or(|line| line.0 != rows) {
                surface.lines.insert(place, (rows, Vec::new()));
            }
            let line = &mut surface.lines[place].1;
            let place = line.partition_point(|point| point.0 < positions);
            match line.get_mut(place) {
                Some(point) if point.0 == positions => point.1 = time,
                _ => line.insert(place, (positions, time)),
            }
        }
        surface
    }

    /// Builds a surface for work in which each position attends to the preceding ones, like
    /// attention over prompts: the time of one position is a line over positions, so two lengths
    /// determine all others.
    pub fn for_prompt_attention(points: impl IntoIterator<Item = (u32, u32, f64)>) -> CostSurface {
        let of_one = |(rows, positions, time): (u32, u32, f64)| {
            (rows, positions, time / f64::from(positions.max(1)))
        };
        CostSurface {
            of_one_position: true,
            ..CostSurface::from_points(points.into_iter().map(of_one))
        }
    }

    /// Returns the time at a point; `None` if the measured points do not extend to it: one number
    /// of rows does not predict another, nor does one number of positions.
    pub fn at(&self, rows: f64, positions: f64) -> Option<f64> {
        let over_rows: Vec<(f64, f64)> = self
            .lines
            .iter()
            .filter_map(|(rows, line)| Some((*rows, interpolate(line, positions)?)))
            .collect();
        let time = interpolate(&over_rows, rows)?;
        Some(if self.of_one_position { time * positions } else { time })
    }

    /// Returns the numbers of rows and of positions that were measured, ascending.
    pub fn coordinates(&self) -> (Vec<u32>, Vec<u32>) {
        let rows = self.lines.iter().map(|line| line.0 as u32).collect();
        let positions = self.lines.iter().flat_map(|line| &line.1).map(|point| point.0 as u32);
        (rows, positions.collect::<BTreeSet<u32>>().into_iter().collect())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn lines_by_hand() {
        let points = [(1.0, 10.0), (3.0, 20.0), (7.0, 60.0)];
        for (x, expected) in [(1.0, 10.0), (2.0, 15.0), (3.0, 20.0), (5.0, 40.0), (7.0, 60.0)] {
            assert_eq!(interpolate(&points, x), Some(expected), "at {x}");
        }
        assert_eq!(interpolate(&points, 9.0), Some(80.0), "the last slope goes on");
        assert_eq!(interpolate(&points, 0.0), Some(5.0), "and so does the first");
        assert_eq!(interpolate(&points, -9.0), Some(0.5), "but work is never free");
        assert_eq!(interpolate(&[(4.0, 8.0)], 4.0), Some(8.0), "one point is itself");
        assert_eq!(interpolate(&[(4.0, 8.0)], 100.0), None, "and no constant");
        assert_eq!(interpolate(&[], 1.0), None);
    }

    #[test]
    fn a_falling_slope_does_not_reach_zero() {
        let points = [(1.0, 10.0), (2.0, 4.0)];
        assert_eq!(interpolate(&points, 3.0), Some(0.2));
    }

    #[test]
    fn surfaces_are_linear_in_both_coordinates() {
        // time = 2 rows + 3 positions + rows * positions is bilinear, so it is reproduced
        // everywhere.
        let time = |rows: f64, positions: f64| 2.0 * rows + 3.0 * positions + rows * positions;
        let mut points = Vec::new();
        for rows in [8, 2, 4] {
            for positions in [100, 10, 50] {
                points.push((rows, positions, time(f64::from(rows), f64::from(positions))));
            }
        }
        let surface = CostSurface::from_points(points);
        for (rows, positions) in [(2.0, 10.0), (3.0, 30.0), (7.5, 99.0), (16.0, 200.0)] {
            let found = surface.at(rows, positions).expect("there are points");
            assert!((found - time(rows, positions)).abs() < 1e-9, "{rows}, {positions}: {found}");
        }
        assert_eq!(CostSurface::default().at(1.0, 1.0), None);
        assert_eq!(surface.coordinates(), (vec![2, 4, 8], vec![10, 50, 100]));
    }

    #[test]
    fn two_lengths_of_a_prompt_give_every_other() {
        let time = |positions: f64| 7.0 * positions + 0.5 * positions * positions;
        let surface =
            CostSurface::for_prompt_attention([64, 32].map(|n| (2, n, time(f64::from(n)))));
        for positions in [1.0, 8.0, 32.0, 48.0, 64.0, 100.0] {
            let found = surface.at(2.0, positions).expect("there are two lengths");
            assert!((found / time(positions) - 1.0).abs() < 1e-9, "{positions}: {found}");
        }
        assert_eq!(surface.coordinates(), (vec![2], vec![32, 64]));
    }

    #[test]
    fn a_line_of_one_point_is_left_out_elsewhere() {
        let surface = CostSurface::from_points([(8, 10, 1.0), (8, 20, 3.0), (2, 10, 0.5)]);
        assert_eq!(surface.at(8.0, 15.0), Some(2.0));
        assert_eq!(surface.at(2.0, 10.0), Some(0.5));
        assert_eq!(surface.at(2.0, 15.0), None, "of two rows one length alone is known");
    }

    #[test]
    fn a_later_point_replaces_an_earlier_one() {
        let surface = CostSurface::from_points([(1, 1, 5.0), (1, 1, 6.0)]);
        assert_eq!(surface.at(1.0, 1.0), Some(6.0));
    }
}
