//! Batches of ragged sequences for attention.
#![allow(dead_code, reason = "each test binary uses its part")]

use cuda_kernels::{
    DeviceAttentionShape, DeviceAttentionUnit, DeviceAttentionUnits, DevicePointer, KvOperand,
};
use kernels::Element;
use model::quantized_format::{KvRecordFormat, kv4_position_bytes};

use crate::common::Random;
use crate::device::{dtype, of, of_mut, run};

pub struct Batch<T> {
    pub shape: DeviceAttentionShape,
    pub units: Vec<DeviceAttentionUnit>,
    pub q: Vec<T>,
    pub k_fresh: Vec<T>,
    pub v_fresh: Vec<T>,
    pub k_cache: Vec<T>,
    pub v_cache: Vec<T>,
    /// One for each query head.
    pub sinks: Option<Vec<f32>>,
    pub scores_len: usize,
    pub rows: usize,
}

pub fn shape(heads: u32, kv_heads: u32, head_dim: u32) -> DeviceAttentionShape {
    let scale = 1.0 / (head_dim as f32).sqrt();
    DeviceAttentionShape { heads, kv_heads, head_dim, scale, window: None }
}

/// Builds sequences of `(fresh rows, cached positions)`, all KV heads as units. Unused places of
/// caches are NaN.
pub fn batch<T: Element>(
    seed: u64,
    shape: DeviceAttentionShape,
    sequences: &[(u32, u32)],
) -> Batch<T> {
    ring_batch(seed, shape, sequences, 0)
}

/// Builds a [`batch`] with the given number of places in each cache; 0: one for each position.
/// Positions before the window are NaN too, if they have a place.
pub fn ring_batch<T: Element>(
    seed: u64,
    shape: DeviceAttentionShape,
    sequences: &[(u32, u32)],
    places: u32,
) -> Batch<T> {
    let mut random = Random::new(seed);
    let mut units = Vec::new();
    let (mut rows, mut cache, mut scores) = (0, 0, 0);
    for &(fresh, past) in sequences {
        for kv_head in 0..shape.kv_heads {
            let (cache_offset, scores_offset) = (cache, scores);
            units.push(DeviceAttentionUnit {
                row0: rows,
                rows: fresh,
                past,
                kv_head,
                cache_offset,
                scores_offset,
                shared_row: DeviceAttentionUnit::CACHED,
                cache_positions: places,
            });
            // Space for the fresh rows to be appended, followed by a gap.
            let room = if places == 0 { past + fresh + 1 } else { places };
            cache += u64::from(room * shape.head_dim);
            scores += u64::from(fresh * shape.group() * (past + fresh));
        }
        rows += fresh;
    }
    let mut cached = || {
        let mut cached = vec![T::from_f32(f32::NAN); cache as usize + 16];
        for unit in &units {
            let seen = shape.window.map_or(unit.past, |window| unit.past.min(window - 1));
            for position in unit.past - seen..unit.past {
                let head = random.vector(shape.head_dim as usize);
                let place = if places == 0 { position } else { position % places };
                let at = unit.cache_offset as usize + place as usize * head.len();
                cached[at..at + head.len()].copy_from_slice(&head);
            }
        }
        cached
    };
    let (k_cache, v_cache) = (cached(), cached());
    let mut heads = |count: u32| random.vector((rows * count * shape.head_dim) as usize);
    Batch {
        q: heads(shape.heads),
        k_fresh: heads(shape.kv_heads),
        v_fresh: heads(shape.kv_heads),
        k_cache,
        v_cache,
        sinks: None,
        scores_len: scores as usize,
        rows: rows as usize,
        shape,
        units,
    }
}

impl<T: Element> Batch<T> {
    /// Returns the units, with bounds that are tight, or `slack` wider.
    pub fn listed(&self, slack: u32) -> DeviceAttentionUnits {
        let most =
            |of: fn(&DeviceAttentionUnit) -> u32| self.units.iter().map(of).max().unwrap_or(0);
        DeviceAttentionUnits {
            pointer: of(&self.units),
            count: self.units.len() as u32,
            rows_max: most(|unit| unit.rows),
            appended_max: most(DeviceAttentionUnit::appended),
            positions_max: most(|unit| unit.past + unit.rows) + slack,
        }
    }

    pub fn k(&self) -> KvOperand {
        KvOperand::Plain { fresh: of(&self.k_fresh), cache: of(&self.k_cache) }
    }

    pub fn v(&self) -> KvOperand {
        KvOperand::Plain { fresh: of(&self.v_fresh), cache: of(&self.v_cache) }
    }

    /// Returns the address of the sinks; 0 for none.
    pub fn sinks(&self) -> DevicePointer {
        self.sinks.as_deref().map_or(0, of)
    }

    /// Returns the length of `[rows, heads * head_dim]`.
    pub fn out_len(&self) -> usize {
        self.q.len()
    }
}

/// K or V of a batch as 4-bit records: fresh ones and the cache.
pub struct Four {
    pub fresh: Vec<u8>,
    pub cache: Vec<u8>,
}

impl Four {
    pub fn of<T: Element>(batch: &Batch<T>, fresh: &[T], cache: &[T]) -> Four {
        let head_dim = batch.shape.head_dim as usize;
        let bytes = kv4_position_bytes(head_dim).expect("an even head");
        let quantised = |x: &[T]| {
            let positions = x.len() / head_dim;
            let mut records = vec![0xaa; positions * bytes];
            let (positions, head_dim) = (positions as u32, head_dim as u32);
            let to = of_mut(&mut records);
            run(&[cuda_kernels::quantise_kv(dtype::<T>(), positions, head_dim, of(x), to)]);
            records
        };
        Four { fresh: quantised(fresh), cache: quantised(cache) }
    }

    pub fn operand(&self) -> KvOperand {
        KvOperand::Kv4 { fresh: of(&self.fresh), cache: of(&self.cache) }
    }

    /// Returns the decoded records, as `[fresh, cache]`.
    pub fn decoded(&self, head_dim: usize) -> [Vec<f32>; 2] {
        [&self.fresh, &self.cache].map(|records| {
            let bytes = kv4_position_bytes(head_dim).expect("an even head");
            let mut out = vec![0.0; records.len() / bytes * head_dim];
            kernels::quant::decode_kv(KvRecordFormat::Four, records, head_dim, &mut out);
            out
        })
    }
}
