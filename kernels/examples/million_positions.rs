//! Runs decode attention of one sequence of a million positions, layer after layer of
//! llama-3.2-1b's shapes (16 layers, 32 query heads, 8 KV heads of 64) over 4-bit caches, and
//! compares it with the read speed of memory in the same process. Prints each step, and panics if
//! one allocates.
//!
//!     cargo run --release -p kernels --example million_positions -- [positions] [threads] [steps]

#[path = "../tests/common/counting.rs"]
mod counting;

use std::time::Instant;

use counting::ALLOCATIONS;
use half::bf16;
use kernels::{
    AttentionShape, AttentionUnit, Kernels, KvCacheSlice, ScratchLimits, ThreadPool, Variant,
};
use model::quantized_format::{KvRecordFormat, kv4_position_bytes};
use shm::Mapping;
use shm::sync::Ordering;

const LAYERS: usize = 16;
const SHAPE: AttentionShape =
    AttentionShape { heads: 32, kv_heads: 8, head_dim: 64, scale: 0.125, window: None };

fn main() {
    let mut arguments =
        std::env::args().skip(1).map(|text| text.parse::<usize>().expect("a number"));
    let mut or = |default| arguments.next().unwrap_or(default);
    let (positions, threads, steps) = (or(1 << 20), or(2), or(5));
    let variant = Variant::from_env().expect("a variant of this machine");
    let AttentionShape { heads, kv_heads, head_dim, .. } = SHAPE;
    let record_bytes = kv4_position_bytes(head_dim).expect("an even head");
    let cache_bytes = kv_heads * positions * record_bytes;
    let caches = Mapping::private(2 * LAYERS * cache_bytes).expect("memory for the caches");
    fill(&caches, record_bytes);
    // SAFETY: the caches are no longer written.
    let bytes: &[u8] = unsafe { caches.slice(0, caches.size_bytes()) };

    let limits = ScratchLimits {
        rows: 1,
        linear_inputs: 1,
        positions: positions + 1,
        group: SHAPE.group(),
        head_dim,
    };
    let kernels = Kernels::new(variant, threads, limits).expect("threads start");
    let unit = |kv_head: usize| AttentionUnit {
        row0: 0,
        rows: 1,
        past: positions as u32,
        shared_row: None,
        kv_head: kv_head as u32,
        cache_offset: kv_head * positions * head_dim,
        cache_positions: 0,
        first_page: 0,
        scores_offset: 0,
    };
    let units: Vec<AttentionUnit> = (0..kv_heads).map(unit).collect();
    let value = |i: usize| bf16::from_f32((i % 31) as f32 / 31.0 - 0.5);
    let q: Vec<bf16> = (0..heads * head_dim).map(value).collect();
    let fresh: Vec<bf16> = (0..kv_heads * head_dim).map(value).collect();
    let mut out = q.clone();

    let readers = ThreadPool::new(threads).expect("threads start");
    // SAFETY: as above; caches are whole words.
    let words: &[u64] = unsafe { caches.slice(0, (1 << 30).min(caches.size_bytes()) / 8) };
    println!(
        "{positions} positions, {:.2} GB, {}, {threads} threads",
        bytes.len() as f64 / 1e9,
        variant.name()
    );
    for step in 0..=steps {
        let before = read(&readers, words);
        let allocations = ALLOCATIONS.load(Ordering::Relaxed);
        let begin = Instant::now();
        for layer in bytes.chunks_exact(2 * cache_bytes) {
            let (k, v) = layer.split_at(cache_bytes);
            let (k, v) = (
                KvCacheSlice::Records(KvRecordFormat::Four, k),
                KvCacheSlice::Records(KvRecordFormat::Four, v),
            );
            kernels.attention(&SHAPE, &units, &q, &fresh, &fresh, k, v, None, &mut out);
        }
        let seconds = begin.elapsed().as_secs_f64();
        assert_eq!(ALLOCATIONS.load(Ordering::Relaxed), allocations, "a step allocates");
        let (speed, memory) = (bytes.len() as f64 / seconds, before.max(read(&readers, words)));
        // The first step warms up pages and threads.
        if step > 0 {
            let (ms, share) = (seconds * 1e3, speed / memory);
            println!("{ms:8.1} ms, {:5.1} GB/s of {:5.1}, {share:.3}", speed / 1e9, memory / 1e9);
        }
    }
}

/// Fills every record with random integers, and scales and minimums of ordinary size.
fn fill(caches: &Mapping, record_bytes: usize) {
    // SAFETY: no other code has the mapping yet.
    let bytes: &mut [u8] = unsafe { caches.slice_mut(0, caches.size_bytes()) };
    let mut bits = 0x9e37_79b9_7f4a_7c15u64;
    let pattern: Vec<u8> = (0..record_bytes * 4096)
        .map(|at| {
            bits = bits.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1);
            let integers = at % record_bytes < SHAPE.head_dim / 2;
            // f16 of 0.002 to 0.004: the upper byte is 0x18 to 0x1b.
            let upper = 0x18 | (bits >> 60) as u8 & 3;
            if integers || at % 2 == 0 { (bits >> 40) as u8 } else { upper }
        })
        .collect();
    for chunk in bytes.chunks_mut(pattern.len()) {
        chunk.copy_from_slice(&pattern[..chunk.len()]);
    }
}

/// Returns the bytes per second at which all threads read, the faster of one stream each and of
/// four.
fn read(pool: &ThreadPool, words: &[u64]) -> f64 {
    let once = |streams: usize| {
        let begin = Instant::now();
        let parts: Vec<&[u64]> = words.chunks(1 << 20).collect();
        pool.run(parts.len(), &|part, _| {
            let part = parts[part];
            let stream = part.len() / streams;
            let mut sums = [0u64; 8];
            for at in (0..stream).step_by(8) {
                for first in (0..part.len()).step_by(stream) {
                    if let Some(line) = part.get(first + at..first + at + 8) {
                        for (sum, word) in sums.iter_mut().zip(line) {
                            *sum ^= word;
                        }
                    }
                }
            }
            std::hint::black_box(sums);
        });
        size_of_val(words) as f64 / begin.elapsed().as_secs_f64()
    };
    once(1).max(once(4))
}
