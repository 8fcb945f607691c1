//! All costs that a profile measured without contention, as surfaces by the kind of work.

use std::collections::HashMap;

use model::ops::{Op, Value};
use program::plan::Plan;
use program::topology::LaneId;
use program::weights::Weights;

use crate::key::{ProfiledWork, WorkKey};
use crate::profile::Profile;
use crate::request::VOCABULARY_MAX;
use crate::surface::CostSurface;

/// All surfaces of a profile, by key.
pub(crate) struct CostTable {
    pub(crate) surfaces: Vec<CostSurface>,
    index: HashMap<WorkKey, usize>,
}

impl CostTable {
    pub(crate) fn from_profile(profile: &Profile) -> CostTable {
        let mut points: Vec<Vec<(u32, u32, f64)>> = Vec::new();
        let mut index = HashMap::new();
        for measured in profile.measurements.work.iter().filter(|m| m.concurrent.is_empty()) {
            let place = *index.entry(measured.key).or_insert_with(|| {
                points.push(Vec::new());
                points.len() - 1
            });
            let (rows, positions) = (measured.point.rows, measured.point.positions);
            points[place].push((rows, positions, measured.time.mean_ns));
        }
        let mut surfaces: Vec<CostSurface> =
            points.iter().cloned().map(CostSurface::from_points).collect();
        for (_, place) in index.iter().filter(|(key, _): &(&WorkKey, _)| key.attends_to_prompt()) {
            surfaces[*place] = CostSurface::for_prompt_attention(points[*place].iter().copied());
        }
        CostTable { surfaces, index }
    }

    /// Returns the surface of a key, and the factor to multiply it by.
    pub(crate) fn find(&self, plan: &Plan, key: &WorkKey) -> Option<(usize, f64)> {
        if matches!(key.work, ProfiledWork::Compute { op: Op::Sample, .. }) {
            return Some((self.sampling_surface(key)?, vocabulary_factor(plan, key)));
        }
        if let Some(surface) = self.index.get(key) {
            return Some((*surface, vocabulary_factor(plan, key)));
        }
        match key.work {
            ProfiledWork::CopyWeights { op: op @ (Op::Head | Op::FinalNorm), .. } => {
                self.nearest_copy_surface(plan, key, op)
            }
            _ => None,
        }
    }

    /// Returns the surface of sampling on a device, or on the other one if that was measured at
    /// more numbers of rows: a real device samples only as many rows as a stream of prefill has.
    fn sampling_surface(&self, key: &WorkKey) -> Option<usize> {
        let other = match key.lane {
            LaneId::CPU_COMPUTE => LaneId::GPU_COMPUTE,
            _ => LaneId::CPU_COMPUTE,
        };
        let surface = |lane| self.index.get(&WorkKey { lane, ..*key }).copied();
        let reach = |surface: &usize| self.surfaces[*surface].coordinates().0.len().min(2);
        match (surface(key.lane), surface(other)) {
            (Some(own), Some(other)) if reach(&other) > reach(&own) => Some(other),
            (own, other) => own.or(other),
        }
    }

    fn nearest_copy_surface(&self, plan: &Plan, key: &WorkKey, op: Op) -> Option<(usize, f64)> {
        let (config, dtype) = (&plan.config, plan.shape.dtype);
        let format = plan.map.weight_formats.of(config, Weights::of(op, None));
        let bytes = op.weight_bytes_in(config, dtype, format) as f64;
        let measured = self.index.iter().filter_map(|(other, surface)| match other.work {
            ProfiledWork::CopyWeights { op, weights } if other.lane == key.lane => {
                Some((op.weight_bytes_in(config, dtype, weights) as f64, *surface))
            }
            _ => None,
        });
        let distance = |other: f64| (other / bytes).ln().abs();
        let (other, surface) = measured
            .filter(|(other, _)| *other > 0.0)
            .min_by(|a, b| distance(a.0).total_cmp(&distance(b.0)).then(a.1.cmp(&b.1)))?;
        Some((surface, bytes / other))
    }
}

/// Returns the factor for a large vocabulary: head, logits and sampling were measured on a part of
/// it, and grow with it.
fn vocabulary_factor(plan: &Plan, key: &WorkKey) -> f64 {
    let vocabulary = plan.config.vocab_size;
    match key.work {
        ProfiledWork::Compute { op: Op::Head | Op::Sample, .. }
        | ProfiledWork::CopyValue { value: Value::Logits, .. } => {
            vocabulary as f64 / vocabulary.clamp(1, VOCABULARY_MAX) as f64
        }
        _ => 1.0,
    }
}
