//! Records of a 4-bit KV cache.

use half::f16;
use model::quantized_format::{KV_GROUP, kv4_groups};

use super::range::{LONGEST, quantise_range};
use crate::number::Number;

const _: () = assert!(KV_GROUP <= LONGEST);

/// Quantises one position of a head.
#[inline(always)]
pub(super) fn encode_record<T: Number>(x: &[T], record: &mut [u8]) {
    let groups = kv4_groups(x.len());
    let (integers, ranges) = record.split_at_mut(x.len() / 2);
    let (scales, minimums) = ranges.split_at_mut(2 * groups);
    let targets = integers.chunks_mut(KV_GROUP / 2);
    for (group, (x, target)) in x.chunks(KV_GROUP).zip(targets).enumerate() {
        let mut values = [0.0; LONGEST];
        for (value, x) in values.iter_mut().zip(x) {
            *value = x.to_f32();
        }
        let range = quantise_range(&mut values, x.len());
        let (low, high) = range.q.split_at(x.len() / 2);
        for ((byte, low), high) in target.iter_mut().zip(low).zip(high) {
            *byte = low | high << 4;
        }
        scales[2 * group..][..2].copy_from_slice(&range.scale.to_le_bytes());
        minimums[2 * group..][..2].copy_from_slice(&range.minimum.to_le_bytes());
    }
}

/// Decodes one position of a head of `out.len()` elements.
pub(super) fn decode_record(record: &[u8], out: &mut [f32]) {
    let groups = kv4_groups(out.len());
    let (integers, ranges) = record.split_at(out.len() / 2);
    let half =
        |index: usize| f16::from_le_bytes([ranges[2 * index], ranges[2 * index + 1]]).to_f32();
    for (group, out) in out.chunks_mut(KV_GROUP).enumerate() {
        let (scale, minimum) = (half(group), half(groups + group));
        let integers = &integers[group * KV_GROUP / 2..][..out.len() / 2];
        let (low, high) = out.split_at_mut(out.len() / 2);
        for ((byte, low), high) in integers.iter().zip(low).zip(high) {
            *low = scale * f32::from(byte & 15) + minimum;
            *high = scale * f32::from(byte >> 4) + minimum;
        }
    }
}
