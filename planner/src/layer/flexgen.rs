//! FlexGen's schedule in table terms.
//!
//! Attention and FFN are layers of their own. The loop goes over layers and batches and ends every
//! step with a barrier. In the step of batch `k` of layer `j` it loads the next batch's KV,
//! computes this one, and, at `k = 0` only, loads all weights of layer `j + 1`. So with several
//! batches the first step of a layer lasts as long as a layer's weights, and later steps leave the
//! link idle. Compressed operands are decompressed by the computation, weights once per batch too.
//! With attention on the CPU no KV is loaded, and nothing runs beside it.

use super::closed_form::Costs;
use super::table::Table;
use super::time::Ps;

/// Variants.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct Flexgen {
    /// The next layer's weights are spread evenly over the batches, without that flaw.
    pub spread: bool,
    pub cpu_attention: bool,
}

/// One of FlexGen's layers.
#[derive(Debug, Clone, Copy, Default)]
struct Half {
    /// Weights over the link.
    weights: Ps,
    /// One batch's KV over the link, and its copy to pinned memory before.
    kv: Ps,
    pinning: Ps,
    /// One batch, decompression included.
    compute: Ps,
}

/// Time of a decoder layer, all batches. `pinning` is the time of copying KV to pinned memory as a
/// share of its transfer.
pub fn layer_time(table: &Table, flexgen: &Flexgen, pinning: f64) -> Ps {
    let halves = halves(table, flexgen, pinning);
    let batches = u128::from(table.batches);
    let mut time = Ps::ZERO;
    for (index, half) in halves.iter().enumerate() {
        let next = &halves[(index + 1) % halves.len()];
        for batch in 0..batches {
            // A single batch loads weights and KV of the next layer together.
            let cache = if batch + 1 == batches { next } else { half };
            let weights = match (flexgen.spread, batch) {
                (true, _) => Ps(next.weights.0 / batches),
                (false, 0) => next.weights,
                (false, _) => Ps::ZERO,
            };
            // Pinning holds up the thread that then launches the computation.
            let link = weights.max(cache.pinning) + cache.kv;
            time += link.max(cache.pinning + half.compute);
        }
    }
    time
}

/// Attention with its projections, and the rest; one half when there is no attention.
fn halves(table: &Table, flexgen: &Flexgen, pinning: f64) -> Vec<Half> {
    let costs = Costs::of(table);
    let compressed = table.compression.cases()[0];
    let kv = |index: &usize| table.ops[*index].kv;
    let count = table.ops.len();
    let first = (0..count).find(kv);
    let last = (0..count).rev().find(kv);
    // The output projection stands behind the last operation on KV.
    let border = last.map_or(count, |last| (last + 2).min(count));
    let attention = first.zip(last).map_or(0..0, |(first, last)| first..last + 1);
    let fused = table.fused.as_ref().filter(|fused| fused.range == attention);
    let half = |range: std::ops::Range<usize>| {
        let mut half = Half::default();
        for index in range.clone() {
            let op = &costs.ops[index];
            let transfer = op.transfer(compressed);
            if flexgen.cpu_attention && attention.contains(&index) {
                half.compute += op.cpu;
                continue;
            }
            half.compute += op.gpu + op.decompression(compressed);
            if op.kv {
                half.kv += transfer;
                half.pinning += Ps((transfer.0 as f64 * pinning) as u128);
            } else {
                half.weights += transfer;
            }
        }
        if let Some(fused) = fused
            && range.contains(&fused.range.start)
        {
            let saved_ms =
                if flexgen.cpu_attention { fused.cpu_saved_ms } else { fused.gpu_saved_ms };
            half.compute = half.compute.saturating_sub(Ps::from_ms(saved_ms));
        }
        half
    };
    let second = (border < count).then(|| half(border..count));
    std::iter::once(half(0..border)).chain(second).collect()
}
