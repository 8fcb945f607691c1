//! Memory that weights rotate through, and the speed at which this machine reads it.
#![allow(dead_code, reason = "each example uses its part")]

use std::time::Instant;

use bytemuck::{Pod, Zeroable};

/// Memory with the alignment at which loaders place weights.
#[derive(Debug, Clone, Copy, Pod, Zeroable)]
#[repr(C, align(64))]
pub struct Line(pub [u16; 32]);

/// Returns the seconds that all threads together take for `work`, which receives their numbers.
pub fn on_all(threads: usize, work: impl Fn(usize) + Sync) -> f64 {
    let begin = Instant::now();
    std::thread::scope(|scope| {
        for thread in 0..threads {
            let work = &work;
            scope.spawn(move || work(thread));
        }
    });
    begin.elapsed().as_secs_f64()
}

/// Measures the plain read of memory by all threads, in GB/s: four runs per thread, the best of
/// three passes.
pub fn read_speed(pool: &[u16], threads: usize) -> f64 {
    let part = pool.len().min(32 << 20) / threads / 128 * 128;
    let once = || {
        on_all(threads, |thread| {
            let part = &pool[thread * part..][..part];
            let (front, back) = part.split_at(part.len() / 2);
            let mut sums = [0u16; 64];
            for (front, back) in front.chunks_exact(64).zip(back.chunks_exact(64)) {
                for (sum, (a, b)) in sums.iter_mut().zip(front.iter().zip(back)) {
                    *sum ^= a ^ b;
                }
            }
            std::hint::black_box(sums);
        })
    };
    let best = (0..3).map(|_| once()).fold(f64::INFINITY, f64::min);
    (part * threads * 2) as f64 / best / 1e9
}
