//! Seeded random weights, with which benchmarks and tests can run an architecture without its
//! files. They are never constant, since constant weights would make all answers and all cache
//! lines identical.
//!
//! Each element is a function of seed, tensor and index, so any thread can generate any range.

use half::bf16;

use super::{SourceError, TensorId, TensorPart, WeightSource};
use crate::config::ModelConfig;
use crate::experts::Experts;
use crate::layers::ExpertRouting;
use crate::ops::Op;

/// Half the width of a matrix's uniform distribution, which has a standard deviation of about 0.02.
const MATRIX_SPREAD: f32 = 0.035;
/// Half the width of the distribution of gains (around 1) and biases (around 0).
const VECTOR_SPREAD: f32 = 0.05;

/// Random weights with the shapes of a configuration.
#[derive(Debug, Clone)]
pub struct DummySource {
    config: ModelConfig,
    seed: u64,
}

impl DummySource {
    /// Creates weights with the shapes of `config`.
    pub fn new(config: ModelConfig, seed: u64) -> DummySource {
        DummySource { config, seed }
    }

    fn fill<T>(
        &self,
        id: TensorId,
        first_row: usize,
        out: &mut [T],
        convert: impl Fn(f32) -> T,
    ) -> Result<(), SourceError> {
        let (rows, columns) = self.shape(id)?;
        let start = first_row * columns;
        if start + out.len() > rows * columns {
            return Err(SourceError::Format {
                path: "dummy weights".to_owned(),
                reason: format!("{id:?} ends before row {}", (start + out.len()) / columns),
            });
        }
        if let Some(experts) = self.experts_of_table(id) {
            for (i, value) in out.iter_mut().enumerate() {
                let (token, place) =
                    ((start + i) / experts.per_token, (start + i) % experts.per_token);
                let first = mix(self.seed ^ mix(tensor_number(id)) ^ token as u64) as usize;
                *value = convert(((first % experts.count + place) % experts.count) as f32);
            }
            return Ok(());
        }
        let (centre, spread) = match part(id) {
            TensorPart::Matrix => (0.0, MATRIX_SPREAD),
            TensorPart::Gain => (1.0, VECTOR_SPREAD),
            TensorPart::Bias if is_factor(id) => (1.0, VECTOR_SPREAD),
            TensorPart::Bias => (0.0, VECTOR_SPREAD),
        };
        let id = match id {
            TensorId::Head if self.config.tied_embeddings => TensorId::Embedding,
            other => other,
        };
        let key = mix(self.seed ^ mix(tensor_number(id)));
        // 2^-23, which maps the top 24 bits to [-1, 1).
        let scale = spread / 8_388_608.0;
        for (i, value) in out.iter_mut().enumerate() {
            let word = mix(key.wrapping_add((start + i) as u64));
            let signed = (word >> 40) as i32 - (1 << 23);
            *value = convert(centre + signed as f32 * scale);
        }
        Ok(())
    }

    /// Returns the experts of a layer if a tensor is its table of the experts of each token.
    fn experts_of_table(&self, id: TensorId) -> Option<Experts> {
        let TensorId::Layer { layer, op: Op::Router, part: TensorPart::Gain } = id else {
            return None;
        };
        let is_by_token = self.config.layers.kind(layer).routing == ExpertRouting::ByToken;
        self.config.experts.filter(|_| is_by_token)
    }
}

impl WeightSource for DummySource {
    fn shape(&self, id: TensorId) -> Result<(usize, usize), SourceError> {
        id.expected_shape(&self.config).ok_or_else(|| SourceError::Missing {
            path: "dummy weights".to_owned(),
            tensor: format!("{id:?}"),
        })
    }

    fn read_bf16(
        &self,
        id: TensorId,
        first_row: usize,
        out: &mut [bf16],
    ) -> Result<(), SourceError> {
        self.fill(id, first_row, out, bf16::from_f32)
    }

    fn read_f32(&self, id: TensorId, first_row: usize, out: &mut [f32]) -> Result<(), SourceError> {
        self.fill(id, first_row, out, |value| value)
    }
}

/// Returns true for a bias that multiplies: the factor of the residual stream, or a second gain.
fn is_factor(id: TensorId) -> bool {
    let factors = [Op::PostNorm1, Op::PerLayerNorm, Op::SumNorm];
    matches!(id, TensorId::Layer { op, part: TensorPart::Bias, .. } if factors.contains(&op))
}

fn part(id: TensorId) -> TensorPart {
    match id {
        TensorId::Embedding | TensorId::Positions | TensorId::Head | TensorId::PerLayerTable => {
            TensorPart::Matrix
        }
        TensorId::FinalNorm { part }
        | TensorId::PerLayerProjection { part }
        | TensorId::JoinHidden { part }
        | TensorId::Layer { part, .. } => part,
    }
}

/// Returns a unique number for every tensor of a model.
fn tensor_number(id: TensorId) -> u64 {
    match id {
        TensorId::Embedding => 1,
        TensorId::Positions => 2,
        TensorId::Head => 3,
        TensorId::FinalNorm { part } => 4 + part as u64,
        TensorId::PerLayerTable => 8,
        TensorId::PerLayerProjection { part } => 9 + part as u64,
        TensorId::JoinHidden { part } => 12 + part as u64,
        TensorId::Layer { layer, op, part } => {
            // Six bits of the operation precede those of the layer, and the others follow them.
            let (low, high) = (op as u64 & 63, op as u64 >> 6);
            16 + (high << 40 | (layer as u64) << 8 | low << 2 | part as u64)
        }
    }
}

/// The finaliser of SplitMix64.
fn mix(word: u64) -> u64 {
    let word = word.wrapping_add(0x9e37_79b9_7f4a_7c15);
    let word = (word ^ word >> 30).wrapping_mul(0xbf58_476d_1ce4_e5b9);
    let word = (word ^ word >> 27).wrapping_mul(0x94d0_49bb_1331_11eb);
    word ^ word >> 31
}

#[cfg(test)]
mod tests {
    use super::*;

    fn source(seed: u64) -> DummySource {
        DummySource::new(crate::known::find_known("opt-125m").expect("known").config, seed)
    }

    const FC0: TensorId = TensorId::Layer { layer: 3, op: Op::Fc0, part: TensorPart::Matrix };

    #[test]
    fn values_spread_around_zero_and_differ() {
        let mut values = vec![0.0f32; 768 * 200];
        source(0).read_f32(FC0, 0, &mut values).expect("in range");
        let mean = values.iter().sum::<f32>() / values.len() as f32;
        let variance = values.iter().map(|v| (v - mean).powi(2)).sum::<f32>() / values.len() as f32;
        assert!(mean.abs() < 2e-4, "{mean}");
        assert!((variance.sqrt() - 0.0202).abs() < 5e-4, "{}", variance.sqrt());
        let mut sorted: Vec<u32> = values.iter().map(|v| v.to_bits()).collect();
        sorted.sort_unstable();
        sorted.dedup();
        assert!(sorted.len() > values.len() * 9 / 10);
    }

    #[test]
    fn any_range_gives_the_same_values() {
        let mut whole = vec![0.0f32; 768 * 7];
        source(5).read_f32(FC0, 10, &mut whole).expect("in range");
        let mut rows = vec![0.0f32; 768 * 2];
        source(5).read_f32(FC0, 13, &mut rows).expect("in range");
        assert_eq!(rows, whole[768 * 3..768 * 5]);
        let mut other = rows.clone();
        source(6).read_f32(FC0, 13, &mut other).expect("in range");
        assert_ne!(rows, other);
        let other_op = TensorId::Layer { layer: 4, op: Op::Fc0, part: TensorPart::Matrix };
        source(5).read_f32(other_op, 13, &mut other).expect("in range");
        assert_ne!(rows, other);
        assert!(source(5).read_f32(FC0, 3071, &mut rows).is_err());
    }

    #[test]
    fn a_tied_head_is_the_embedding() {
        let read = |tied: bool, id| {
            let mut config = crate::known::find_known("opt-125m").expect("known").config;
            config.tied_embeddings = tied;
            let mut row = vec![0.0f32; 768];
            DummySource::new(config, 1).read_f32(id, 9, &mut row).expect("in range");
            row
        };
        let embedding = read(true, TensorId::Embedding);
        assert_eq!(read(true, TensorId::Head), embedding);
        assert_ne!(read(false, TensorId::Head), embedding);
    }
}
