//! Prints how fast fused attention reads K and V, case by case, relative to a plain read of the
//! same caches. Both are measured alternately in the same process, because a shared machine's
//! memory speed changes from second to second. Figures are medians; `of read` is the median of the
//! ratios of adjacent measurements, and a read is the fastest of three loops over the same bytes.
//!
//!     cargo run --release -p kernels --example attention_speed -- [threads] [bf16|f32|kv8|kv4]
//!     [rounds] [case] [window]
//!
//! With a window caches are rings of that number of positions.

use std::time::Instant;

use bytemuck::{Pod, Zeroable};
use half::bf16;
use kernels::{
    AttentionShape, AttentionUnit, Element, Kernels, KvCacheSlice, ScratchLimits, ThreadPool,
    Variant,
};
use model::quantized_format::KvRecordFormat;

/// Sequences, fresh rows and cached positions of each, query heads, KV heads, elements of a head.
const CASES: [[usize; 6]; 10] = [
    [25, 1, 512, 56, 56, 128],
    [50, 1, 512, 56, 56, 128],
    [25, 1, 544, 56, 56, 128],
    [50, 1, 544, 56, 56, 128],
    [4, 1, 8192, 32, 8, 128],
    [1, 1, 65536, 32, 8, 128],
    [60, 1, 128, 9, 3, 64],
    [60, 1, 512, 9, 3, 64],
    [1, 512, 0, 56, 56, 128],
    [2, 512, 0, 9, 3, 64],
];

/// Cached positions of the sequences of the ragged case, which has the bytes of 16 x 1024.
const RAGGED: [usize; 16] =
    [6000, 64, 3000, 128, 17, 2048, 1, 512, 900, 300, 1500, 33, 1024, 257, 96, 504];

/// Memory with the alignment of caches.
#[derive(Debug, Clone, Copy, Pod, Zeroable)]
#[repr(C, align(64))]
struct Line([u8; 64]);

fn main() {
    let mut arguments = std::env::args().skip(1);
    let threads = arguments.next().and_then(|text| text.parse().ok()).unwrap_or(2);
    let dtype = arguments.next().unwrap_or_else(|| "bf16".to_owned());
    let rounds = arguments.next().and_then(|text| text.parse().ok()).unwrap_or(9);
    let only: Option<usize> = arguments.next().and_then(|text| text.parse().ok());
    let window: Option<u32> = arguments.next().and_then(|text| text.parse().ok());
    let variant = Variant::from_env().expect("a variant of this machine");
    println!("{} on {threads} threads, {dtype}", variant.name());
    let run = Run { variant, threads, rounds, window };
    for (index, [batch, rows, past, heads, kv_heads, head_dim]) in CASES.into_iter().enumerate() {
        if only.is_none_or(|only| only == index) {
            let name = format!("{batch:3} x {rows} after {past}");
            let sequences = vec![(rows, past); batch];
            run.measure_as(&dtype, &name, &sequences, (heads, kv_heads, head_dim));
        }
    }
    if only.is_none_or(|only| only == CASES.len()) {
        let even = vec![(1, RAGGED.iter().sum::<usize>() / RAGGED.len()); RAGGED.len()];
        let ragged: Vec<(usize, usize)> = RAGGED.into_iter().map(|past| (1, past)).collect();
        run.measure_as(&dtype, "even", &even, (32, 8, 128));
        run.measure_as(&dtype, "ragged", &ragged, (32, 8, 128));
    }
}

#[derive(Clone, Copy)]
struct Run {
    variant: Variant,
    threads: usize,
    rounds: usize,
    window: Option<u32>,
}

/// All KV heads of some sequences.
struct Units {
    units: Vec<AttentionUnit>,
    rows: usize,
    /// Elements of a cache.
    cache: usize,
    /// Number of positions that all rows see.
    pairs: usize,
}

impl Units {
    fn of(sequences: &[(usize, usize)], shape: &AttentionShape) -> Units {
        let mut all = Units { units: Vec::new(), rows: 0, cache: 0, pairs: 0 };
        for &(rows, past) in sequences {
            for kv_head in 0..shape.kv_heads {
                let unit = AttentionUnit {
                    row0: all.rows as u32,
                    rows: rows as u32,
                    past: past as u32,
                    shared_row: None,
                    kv_head: kv_head as u32,
                    cache_offset: all.cache,
                    cache_positions: shape.window.unwrap_or(0),
                    first_page: 0,
                    scores_offset: 0,
                };
                all.units.push(unit);
                all.cache += unit.cached() as usize * shape.head_dim;
            }
            all.rows += rows;
            let seen = |position: usize| position + 1 - shape.first_seen(position);
            all.pairs += (past..past + rows).map(seen).sum::<usize>();
        }
        all
    }
}

impl Run {
    fn measure_as(
        self,
        dtype: &str,
        name: &str,
        sequences: &[(usize, usize)],
        heads: (usize, usize, usize),
    ) {
        match dtype {
            "f32" => self.measure::<f32>(name, sequences, heads, None),
            "kv8" => self.measure::<bf16>(name, sequences, heads, Some(KvRecordFormat::Eight)),
            "kv4" => self.measure::<bf16>(name, sequences, heads, Some(KvRecordFormat::Four)),
            _ => self.measure::<bf16>(name, sequences, heads, None),
        }
    }

    fn measure<T: Element>(
        self,
        name: &str,
        sequences: &[(usize, usize)],
        (heads, kv_heads, head_dim): (usize, usize, usize),
        format: Option<KvRecordFormat>,
    ) {
        let group = heads / kv_heads;
        let positions = sequences.iter().map(|(rows, past)| rows + past).max().unwrap_or(0);
        let rows = sequences.iter().map(|(rows, _)| rows).sum();
        let limits = ScratchLimits { rows, linear_inputs: 1, positions, group, head_dim };
        let kernels = Kernels::new(self.variant, self.threads, limits).expect("threads start");
        let readers = ThreadPool::new(self.threads).expect("threads start");
        let shape = AttentionShape { heads, kv_heads, head_dim, scale: 0.1, window: self.window };
        let Units { units, rows, cache, pairs } = Units::of(sequences, &shape);
        let q = vec![T::from_f32(0.1); rows * heads * head_dim];
        let fresh = vec![T::from_f32(0.1); rows * kv_heads * head_dim];
        let record = match format {
            Some(format) => format.position_bytes(head_dim).expect("an even head"),
            None => head_dim * size_of::<T>(),
        };
        let size = cache / head_dim * record;
        let lines = || vec![Line([0x2d; 64]); size.div_ceil(64)];
        let (keys, values) = (lines(), lines());
        let keys: &[u8] = &bytemuck::cast_slice(&keys)[..size];
        let values: &[u8] = &bytemuck::cast_slice(&values)[..size];
        let view = |bytes| match format {
            Some(format) => KvCacheSlice::Records(format, bytes),
            None => KvCacheSlice::Plain(bytemuck::pod_align_to(bytes).1),
        };
        let mut out = q.clone();
        let (mut attention_s, mut read_s, mut ratios) = (Vec::new(), Vec::new(), Vec::new());
        for round in 0..=self.rounds {
            let read = read_all(&readers, keys, values);
            let attention = timed(|| {
                let (keys, values) = (view(keys), view(values));
                kernels.attention(&shape, &units, &q, &fresh, &fresh, keys, values, None, &mut out);
            });
            // The first round warms up pages and threads.
            if round > 0 {
                attention_s.push(attention);
                read_s.push(read);
                ratios.push(read / attention);
            }
        }
        let name = format!("{name}, {heads}/{kv_heads} heads of {head_dim}");
        let seconds = median(attention_s);
        if cache == 0 {
            let flops = (4 * heads * pairs * head_dim) as f64 / seconds / 1e9;
            println!("{name:38} {flops:6.1} GFLOP/s");
        } else {
            let bytes = 2.0 * size as f64 / 1e9;
            let (speed, read, ratio) = (bytes / seconds, bytes / median(read_s), median(ratios));
            println!(
                "{name:38} {speed:6.1} GB/s, read {read:5.1} GB/s, {ratio:.2} of read, {:.2} ms",
                seconds * 1e3
            );
        }
    }
}

/// Returns the seconds of the fastest of three loops that read both caches.
fn read_all(pool: &ThreadPool, keys: &[u8], values: &[u8]) -> f64 {
    let parts = [bytemuck::pod_align_to(keys).1, bytemuck::pod_align_to(values).1];
    [1usize, 4, 8]
        .into_iter()
        .map(|streams| timed(|| parts.iter().for_each(|part| read(pool, part, streams))))
        .fold(f64::INFINITY, f64::min)
}

fn timed(work: impl FnOnce()) -> f64 {
    let begin = Instant::now();
    work();
    begin.elapsed().as_secs_f64()
}

fn median(mut values: Vec<f64>) -> f64 {
    values.sort_by(f64::total_cmp);
    values[values.len() / 2]
}

/// Reads all of `data` on all threads of `pool`, in parts of the size of a unit's K, each in
/// `streams` parallel streams.
fn read(pool: &ThreadPool, data: &[u64], streams: usize) {
    let parts: Vec<&[u64]> = data.chunks(16 << 10).collect();
    pool.run(parts.len(), &|part, _| {
        let part = parts[part];
        let stream = (part.len() / streams).next_multiple_of(8).max(8);
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
}
