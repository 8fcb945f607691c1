//! Dividing a blob over devices so that all of them finish at the same time.
//!
//! Follows Park and Egger (equations 2 to 4, with the sign of the weight chosen such that a device
//! that took longer than the average gets less): with times `t`, `w = (average / t - 1) * alpha`
//! and `size = size * (1 + w)`; the sizes are then scaled to the total.

use serde::{Deserialize, Serialize};

/// Step size of a correction. 1 corrects the whole difference at once, and follows all noise.
pub const ALPHA: f64 = 0.75;

/// Maximum deviation of finish times from their average, as a fraction of the average.
pub const TOLERANCE: f64 = 0.05;

/// Maximum number of divisions measured; the best one is used if none is balanced.
pub const STEPS: usize = 10;

/// Maximum growth of a device's share in one step, regardless of how short its time was.
const GROWTH_MAX: f64 = 1000.0;

/// Reason why no division exists.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
pub enum BalanceError {
    /// All devices failed.
    #[error("no device responds any more")]
    NoDevice,
    /// The number of times differs from the number of devices.
    #[error("{times} times were given for {devices} devices")]
    Times {
        /// Number of times given.
        times: usize,
        /// Number of devices.
        devices: usize,
    },
}

/// Division of blocks over devices, corrected by measured times.
#[derive(Debug, Clone, PartialEq)]
pub struct Balance {
    total_blocks: u64,
    alpha: f64,
    sizes: Vec<u64>,
    /// Per device: true as long as it has responded in every step.
    is_alive: Vec<bool>,
    /// Times of the last step, for the blocks that the devices read then.
    times_s: Vec<Option<f64>>,
    /// True if a device failed in the last step.
    has_lost_device: bool,
}

impl Balance {
    /// Starts with shares in proportion to `start`, or with equal shares if all of it is 0. Every
    /// device gets at least one block if there are enough.
    ///
    /// # Panics
    ///
    /// Panics if there is no device, or if `alpha` is not in `(0, 1]`.
    pub fn new(total_blocks: u64, start: &[u64], alpha: f64) -> Balance {
        assert!(!start.is_empty(), "blocks are divided over devices");
        assert!(alpha > 0.0 && alpha <= 1.0, "alpha is above 0 and at most 1, not {alpha}");
        let is_alive = vec![true; start.len()];
        let shares: Vec<f64> = start.iter().map(|size| *size as f64).collect();
        Balance {
            total_blocks,
            alpha,
            sizes: divide(total_blocks, &shares, &is_alive),
            times_s: vec![None; is_alive.len()],
            has_lost_device: false,
            is_alive,
        }
    }

    /// Starts with equal shares for `devices` devices, and [`ALPHA`].
    ///
    /// # Panics
    ///
    /// Panics if there is no device.
    pub fn equal(total_blocks: u64, devices: usize) -> Balance {
        Balance::new(total_blocks, &vec![1; devices], ALPHA)
    }

    /// Returns the number of blocks per device. The sum is the total as long as a device is left.
    pub fn sizes(&self) -> &[u64] {
        &self.sizes
    }

    /// Computes new shares from the seconds that the devices took for the current ones. A device
    /// without a time is lost: it gets nothing from now on.
    ///
    /// # Errors
    ///
    /// Fails if no device is left, or if the number of times differs from the number of devices.
    pub fn step(&mut self, times_s: &[Option<f64>]) -> Result<(), BalanceError> {
        self.record_times(times_s)?;
        self.redivide()
    }

    /// Returns true if all times of the last step were within `tolerance` of their average and no
    /// device was lost in it.
    pub fn is_balanced(&self, tolerance: f64) -> bool {
        let answered = self.last_times_s();
        let average_s = answered.iter().sum::<f64>() / answered.len() as f64;
        let is_near = |time_s: &f64| (time_s - average_s).abs() <= tolerance * average_s;
        !answered.is_empty() && answered.iter().all(is_near) && !self.has_lost_device
    }

    /// Records the times for the current shares. A device without blocks has no time, but can still
    /// be lost.
    fn record_times(&mut self, times_s: &[Option<f64>]) -> Result<(), BalanceError> {
        if times_s.len() != self.sizes.len() {
            let devices = self.sizes.len();
            return Err(BalanceError::Times { times: times_s.len(), devices });
        }
        self.has_lost_device = false;
        for (device, time_s) in times_s.iter().enumerate() {
            let time_s = time_s.filter(|time_s| time_s.is_finite() && *time_s >= 0.0);
            self.has_lost_device |= self.is_alive[device] && time_s.is_none();
            self.is_alive[device] &= time_s.is_some();
            let is_timed = self.is_alive[device] && self.sizes[device] > 0;
            self.times_s[device] = time_s.filter(|_| is_timed);
        }
        Ok(())
    }

    fn redivide(&mut self) -> Result<(), BalanceError> {
        let answered = self.last_times_s();
        let average_s = answered.iter().sum::<f64>() / answered.len() as f64;
        let shares = self.sizes.iter().zip(&self.times_s).map(|(size, time_s)| {
            let Some(time_s) = time_s else { return 0.0 };
            let ratio = if *time_s > 0.0 { average_s / time_s } else { GROWTH_MAX };
            *size as f64 * (1.0 + (ratio.min(GROWTH_MAX) - 1.0) * self.alpha)
        });
        let shares: Vec<f64> = shares.collect();
        self.sizes = divide(self.total_blocks, &shares, &self.is_alive);
        if self.is_alive.contains(&true) { Ok(()) } else { Err(BalanceError::NoDevice) }
    }

    /// Returns the last times of the devices that have one.
    fn last_times_s(&self) -> Vec<f64> {
        self.times_s.iter().flatten().copied().collect()
    }
}

/// Divides `total` blocks in proportion to `shares` by largest remainders. Devices that are not
/// alive get nothing; every other device gets at least one block if there are enough.
fn divide(total: u64, shares: &[f64], is_alive: &[bool]) -> Vec<u64> {
    let alive: Vec<usize> = (0..shares.len()).filter(|device| is_alive[*device]).collect();
    let mut sizes = vec![0; shares.len()];
    if alive.is_empty() {
        return sizes;
    }
    let sum: f64 = alive.iter().map(|device| shares[*device]).sum();
    let quota = |device: usize| match sum > 0.0 {
        true => shares[device] / sum * total as f64,
        false => total as f64 / alive.len() as f64,
    };
    let min_blocks = u64::from(total >= alive.len() as u64);
    for device in &alive {
        sizes[*device] = (quota(*device) as u64).max(min_blocks);
    }
    let mut by_remainder = alive.clone();
    let remainder = |device: &usize| quota(*device) - sizes[*device] as f64;
    by_remainder.sort_by(|a, b| remainder(b).total_cmp(&remainder(a)));
    let mut sum_blocks: u64 = sizes.iter().sum();
    for device in by_remainder.iter().cycle() {
        if sum_blocks >= total {
            break;
        }
        sizes[*device] += 1;
        sum_blocks += 1;
    }
    while sum_blocks > total {
        // The largest shares pay for raising the smallest ones to the minimum.
        let largest = alive.iter().copied().max_by_key(|device| sizes[*device]);
        let largest = largest.expect("a device is alive");
        sizes[largest] -= 1;
        sum_blocks -= 1;
    }
    sizes
}

/// A division with its measured times.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct MeasuredDivision {
    /// Blocks per device.
    pub sizes: Vec<u64>,
    /// Seconds per device; `None` for a device that did not respond or had no blocks.
    pub times_s: Vec<Option<f64>>,
}

impl MeasuredDivision {
    /// Returns when the last device finished; `None` if one did not.
    fn end_s(&self) -> Option<f64> {
        let devices = self.sizes.iter().zip(&self.times_s).filter(|(size, _)| **size > 0);
        devices
            .map(|(_, time_s)| *time_s)
            .try_fold(0.0, |end_s: f64, time_s| Some(end_s.max(time_s?)))
    }
}

/// Result of balancing, with all divisions that led to it.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct Trajectory {
    /// Every division measured, in order.
    pub iterations: Vec<MeasuredDivision>,
    /// Blocks per device: the last division if it was balanced, otherwise the one that finished
    /// first among those since the last device was lost.
    pub sizes: Vec<u64>,
    /// True if the finish times were within the tolerance.
    pub is_balanced: bool,
}

/// Measures at most `steps` divisions until finish times are within [`TOLERANCE`]. `measure`
/// returns the seconds that each device took for its blocks.
///
/// # Errors
///
/// Fails if `measure` fails, or if no device is left.
pub fn run<E: From<BalanceError>>(
    mut balance: Balance,
    steps: usize,
    mut measure: impl FnMut(&[u64]) -> Result<Vec<Option<f64>>, E>,
) -> Result<Trajectory, E> {
    let mut iterations: Vec<MeasuredDivision> = Vec::new();
    for _ in 0..steps {
        let sizes = balance.sizes().to_vec();
        balance.record_times(&measure(&sizes)?)?;
        iterations
            .push(MeasuredDivision { sizes: sizes.clone(), times_s: balance.times_s.clone() });
        if balance.is_balanced(TOLERANCE) {
            return Ok(Trajectory { iterations, sizes, is_balanced: true });
        }
        balance.redivide()?;
    }
    let is_usable = |iteration: &&MeasuredDivision| {
        let mut pairs = iteration.sizes.iter().zip(balance.sizes());
        iteration.end_s().is_some() && pairs.all(|(then, now)| *then == 0 || *now > 0)
    };
    let usable = iterations.iter().filter(is_usable);
    let best = usable.min_by(|a, b| a.end_s().unwrap_or(0.0).total_cmp(&b.end_s().unwrap_or(0.0)));
    let sizes = best.map_or_else(|| balance.sizes().to_vec(), |best| best.sizes.clone());
    Ok(Trajectory { iterations, sizes, is_balanced: false })
}
