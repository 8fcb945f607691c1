//! Prints how fast fused attention reads K and V, case by case, beside plain reading of the same
//! caches in the same process and in turn with it, because a shared machine's memory speed changes
//! from second to second. Medians; `of plain` is the median of the ratios of neighbours in time.
//!
//!     cargo run --release -p kernels --example attention_speed -- [threads] [bf16|f32] [rounds]

use std::time::Instant;

use half::bf16;
use kernels::{AttentionShape, Element, Kernels, Pool, ScratchLimits, Unit, Variant};

/// Sequences, fresh rows and cached positions of each, query heads, KV heads, elements of a head.
const CASES: [[usize; 6]; 6] = [
    [25, 1, 512, 56, 56, 128],
    [50, 1, 512, 56, 56, 128],
    [4, 1, 8192, 32, 8, 128],
    [60, 1, 256, 9, 3, 64],
    [1, 512, 0, 56, 56, 128],
    [2, 512, 0, 9, 3, 64],
];

fn main() {
    let mut arguments = std::env::args().skip(1);
    let threads = arguments.next().and_then(|text| text.parse().ok()).unwrap_or(2);
    let dtype = arguments.next().unwrap_or_else(|| "bf16".to_owned());
    let rounds = arguments.next().and_then(|text| text.parse().ok()).unwrap_or(9);
    let variant = Variant::from_env().expect("a variant of this machine");
    println!("{} on {threads} threads, {dtype}", variant.name());
    for case in CASES {
        if dtype == "f32" {
            measure::<f32>(variant, threads, rounds, case);
        } else {
            measure::<bf16>(variant, threads, rounds, case);
        }
    }
}

fn measure<T: Element>(variant: Variant, threads: usize, rounds: usize, case: [usize; 6]) {
    let [batch, rows, past, heads, kv_heads, head_dim] = case;
    let group = heads / kv_heads;
    let limits =
        ScratchLimits { rows: 1, linear_inputs: 1, positions: past + rows, group, head_dim };
    let kernels = Kernels::new(variant, threads, limits).expect("threads start");
    let readers = Pool::new(threads).expect("threads start");
    let shape = AttentionShape { heads, kv_heads, head_dim, scale: 0.1 };
    let units: Vec<Unit> = (0..batch * kv_heads)
        .map(|unit| Unit {
            row0: (unit / kv_heads * rows) as u32,
            rows: rows as u32,
            past: past as u32,
            kv_head: (unit % kv_heads) as u32,
            cache_offset: unit * past * head_dim,
            scores_offset: 0,
        })
        .collect();
    let q = vec![T::from_f32(0.1); batch * rows * heads * head_dim];
    let fresh = vec![T::from_f32(0.1); batch * rows * kv_heads * head_dim];
    let keys = vec![T::from_f32(0.1); batch * kv_heads * past * head_dim];
    let values = keys.clone();
    let mut out = q.clone();
    let (mut attention_s, mut plain_s, mut ratios) = (Vec::new(), Vec::new(), Vec::new());
    for round in 0..=rounds {
        let plain = timed(|| {
            read(&readers, bytemuck::pod_align_to(&keys).1);
            read(&readers, bytemuck::pod_align_to(&values).1);
        });
        let attention = timed(|| {
            kernels.attention(&shape, &units, &q, &fresh, &fresh, &keys, &values, &mut out);
        });
        // The first round brings pages and threads up.
        if round > 0 {
            attention_s.push(attention);
            plain_s.push(plain);
            ratios.push(plain / attention);
        }
    }
    let name = format!("{batch:3} x {rows} after {past}, {heads}/{kv_heads} heads of {head_dim}");
    let seconds = median(attention_s);
    if past == 0 {
        let pairs = batch * heads * rows * (rows + 1) / 2;
        let flops = (4 * pairs * head_dim) as f64 / seconds / 1e9;
        println!("{name:38} {flops:6.1} GFLOP/s");
    } else {
        let bytes = 2.0 * size_of_val(&keys[..]) as f64 / 1e9;
        let (speed, plain, ratio) = (bytes / seconds, bytes / median(plain_s), median(ratios));
        println!("{name:38} {speed:6.1} GB/s, plain read {plain:5.1} GB/s, {ratio:.2} of plain");
    }
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

/// Reads all of `data` on all threads of `pool`, in parts of the size of a unit's K.
fn read(pool: &Pool, data: &[u64]) {
    let parts: Vec<&[u64]> = data.chunks(16 << 10).collect();
    pool.run(parts.len(), &|part, _| {
        std::hint::black_box(parts[part].iter().fold(0, |a, b| a ^ b));
    });
}
