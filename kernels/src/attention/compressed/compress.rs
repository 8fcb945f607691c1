//! Compression of groups of positions. Plain code, identical in every variant.

use super::IndexedPlaces;
use crate::Kernels;
use crate::attention::pages::{AttentionUnits, PageLists};
use crate::attention::shape::AttentionUnit;
use crate::number::Number;
use crate::rope::RopeTables;
use crate::scratch::{ScratchLimits, SharedPointer};

/// Channels that are summed together.
const BLOCK: usize = 64;

/// Rules by which groups of positions are compressed.
#[derive(Debug, Clone, Copy)]
pub struct CompressRules<'a> {
    /// Size of a place of the cache of positions, in elements.
    pub place: usize,
    /// Size of an entry.
    pub entry: usize,
    /// Number of positions of a group.
    pub rate: usize,
    /// Number of series of values and gates of a position: 1, or 2 if an entry sums the second one
    /// of its own group and the first one of the group before.
    pub series: usize,
    pub norm_eps: f32,
    pub tables: RopeTables<'a>,
}

/// Consecutive elements of an entry, with a norm and a rotation of their own.
#[derive(Debug, Clone, Copy)]
pub struct CompressedSpan<'a> {
    pub size: usize,
    /// First of their values in a place, `[series, size]`, which their gates follow.
    pub values: usize,
    /// First element in an entry.
    pub first: usize,
    /// Biases of gates, `[rate, series, size]`.
    pub biases: &'a [f32],
    /// Gains of the norm.
    pub gains: &'a [f32],
}

/// Returns the floats of scratch per thread: the sums of a span, and the cosines and sines of its
/// rotation.
pub(crate) const fn thread_len(limits: &ScratchLimits) -> usize {
    2 * limits.head_dim
}

impl Kernels {
    /// Computes the entries of the groups that end with the call's rows, each in its last row of
    /// `out`, `[rows, entry]`; other rows are not written. Each channel is the sum of its values,
    /// weighted by the softmax of its gates plus their biases; a span is then normed and rotated by
    /// the position of its group's first row.
    ///
    /// # Panics
    /// If shapes do not match, or a span is beyond the scratch limits.
    pub fn compress<'a, T: Number>(
        &self,
        rules: &CompressRules<'_>,
        spans: &[CompressedSpan<'_>],
        units: impl Into<AttentionUnits<'a>>,
        places: IndexedPlaces<'_, T>,
        out: &mut [T],
    ) {
        let AttentionUnits { units, pages } = units.into();
        let CompressRules { place, entry, rate, series, tables, .. } = *rules;
        let rows = out.len() / entry;
        assert_eq!(out.len(), rows * entry, "out is [rows, entry]");
        assert_eq!(places.fresh.len(), rows * place, "fresh places are [rows, place]");
        assert!(rate > 0 && (1..=2).contains(&series), "groups have positions and series");
        assert!(tables.table_of_row.is_none(), "all sequences have the same rotation");
        for span in spans {
            let CompressedSpan { size, values, first, biases, gains } = *span;
            assert!(size <= self.limits.head_dim, "a span is beyond the scratch limits");
            assert!(values + 2 * series * size <= place && first + size <= entry, "spans fit");
            assert_eq!(biases.len(), rate * series * size, "biases are [rate, series, size]");
            assert_eq!(gains.len(), size, "a norm has a gain for each element");
            tables.check(0, size);
        }
        let ends = |unit: &AttentionUnit| {
            let groups = |positions: usize| positions / rate;
            groups(unit.positions()) - groups(unit.past as usize)
        };
        for unit in units {
            let ring = unit.cache_positions as usize;
            assert!(ring == 0 || ring + 1 >= rate * series, "rings hold unfinished groups");
            assert!(unit.row0 as usize + unit.rows as usize <= rows, "units lie within the rows");
        }
        let tasks: usize = units.iter().map(ends).sum();
        let bytes = tasks * rate * series * 2 * entry * size_of::<T>();
        let (out, per_thread) = (SharedPointer(out.as_mut_ptr()), &self.per_thread);
        self.run_sized(tasks * spans.len(), bytes, &|task, thread| {
            let (mut task, span) = (task / spans.len(), &spans[task % spans.len()]);
            let mut all = units.iter();
            let Some(unit) = all.find(|unit| match task.checked_sub(ends(unit)) {
                Some(left) => {
                    task = left;
                    false
                }
                None => true,
            }) else {
                return;
            };
            let number = unit.past as usize / rate + task;
            let row = unit.row0 as usize + (number + 1) * rate - 1 - unit.past as usize;
            // SAFETY: this thread's scratch holds the floats of a span and of its rotation; the
            // span is within the row's entry, and no other task writes it.
            let (scratch, out) = unsafe {
                let len = span.size + tables.rotary_dim;
                let scratch = std::slice::from_raw_parts_mut(per_thread.for_thread(thread), len);
                let to = out.pointer().add(row * entry + span.first);
                (scratch, std::slice::from_raw_parts_mut(to, span.size))
            };
            let (sums, angles) = scratch.split_at_mut(span.size);
            let group = Group { rules, span, places: &places, pages: &pages, unit, number };
            group.sum(sums);
            norm(sums, span.gains, rules.norm_eps);
            let (cosines, sines) = angles.split_at_mut(tables.rotary_dim / 2);
            tables.fill(0, (number * rate) as u32, cosines, sines);
            rotate(&mut sums[..tables.rotary_dim], cosines, sines);
            out.iter_mut().zip(sums).for_each(|(out, sum)| *out = T::from_f32(*sum));
        });
    }
}

/// A group of positions.
struct Group<'a, T> {
    rules: &'a CompressRules<'a>,
    span: &'a CompressedSpan<'a>,
    places: &'a IndexedPlaces<'a, T>,
    pages: &'a PageLists<'a>,
    unit: &'a AttentionUnit,
    number: usize,
}

impl<T: Number> Group<'_, T> {
    /// Computes the weighted sums of all channels.
    fn sum(&self, sums: &mut [f32]) {
        for (block, sums) in sums.chunks_mut(BLOCK).enumerate() {
            let first = block * BLOCK;
            let mut largest = [f32::NEG_INFINITY; BLOCK];
            self.each_position(first, sums.len(), |_, gates, biases| {
                for ((largest, gate), bias) in largest.iter_mut().zip(gates).zip(biases) {
                    *largest = largest.max(gate.to_f32() + bias);
                }
            });
            let mut weights = [0.0; BLOCK];
            sums.fill(0.0);
            self.each_position(first, sums.len(), |values, gates, biases| {
                for (channel, sum) in sums.iter_mut().enumerate() {
                    let gate = gates[channel].to_f32() + biases[channel];
                    let weight = (gate - largest[channel]).exp();
                    weights[channel] += weight;
                    *sum += weight * values[channel].to_f32();
                }
            });
            sums.iter_mut().zip(weights).for_each(|(sum, weight)| *sum /= weight);
        }
    }

    /// Calls `each` with values, gates and biases of `count` channels from `first` on, for each
    /// position of the group, and of the group before if there are two series.
    fn each_position(&self, first: usize, count: usize, mut each: impl FnMut(&[T], &[T], &[f32])) {
        let CompressRules { place, rate, series, .. } = *self.rules;
        let CompressedSpan { size, values, biases, .. } = *self.span;
        for of_series in 0..series {
            // The last series is that of the group itself.
            let Some(group) = (self.number + of_series + 1).checked_sub(series) else { continue };
            for index in 0..rate {
                let position = group * rate + index;
                let place = self.places.elements(self.pages, self.unit, position, place);
                let at = of_series * size + first;
                let values = &place[values + at..][..count];
                let gates = &place[self.span.values + series * size + at..][..count];
                each(values, gates, &biases[index * series * size + at..][..count]);
            }
        }
    }
}

/// Rotates pairs of elements of two halves.
fn rotate(x: &mut [f32], cosines: &[f32], sines: &[f32]) {
    let (low, high) = x.split_at_mut(cosines.len());
    for ((low, high), (cosine, sine)) in low.iter_mut().zip(high).zip(cosines.iter().zip(sines)) {
        (*low, *high) = (*low * cosine - *high * sine, *high * cosine + *low * sine);
    }
}

/// Divides by the root mean square, and multiplies by gains.
fn norm(x: &mut [f32], gains: &[f32], eps: f32) {
    let squares: f32 = x.iter().map(|x| x * x).sum();
    let factor = 1.0 / (squares / x.len() as f32 + eps).sqrt();
    x.iter_mut().zip(gains).for_each(|(x, gain)| *x *= factor * gain);
}
