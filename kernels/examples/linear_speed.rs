//! Prints how fast linears and attention run on this machine, beside a plain read of memory and the
//! peak of f32 multiply-adds that the linear's own inner loop could reach.
//!
//!     cargo run --release -p kernels --example linear_speed -- [threads] [bf16|f32]

use std::time::Instant;

use half::bf16;
use kernels::{AttentionShape, Element, Kernels, Linear, LinearOut, ScratchLimits, Unit, Variant};

fn main() {
    let mut arguments = std::env::args().skip(1);
    let threads = arguments.next().and_then(|text| text.parse().ok()).unwrap_or(2);
    let dtype = arguments.next().unwrap_or_else(|| "bf16".to_owned());
    let limits =
        ScratchLimits { rows: 256, linear_inputs: 8192, positions: 1024, group: 8, head_dim: 128 };
    let variant = Variant::from_env().expect("a variant of this machine");
    let kernels = Kernels::new(variant, threads, limits).expect("threads start");
    println!("{} on {threads} threads, {dtype}", variant.name());
    if dtype == "f32" {
        measure::<f32>(&kernels);
    } else {
        measure::<bf16>(&kernels);
    }
}

fn measure<T: Element>(kernels: &Kernels) {
    read_speed(kernels.threads());
    for (n, k) in [(7168, 7168), (576, 576), (1536, 576)] {
        // Enough copies of the weight that each comes from memory.
        let copies = (512 << 20) / (n * k * size_of::<T>()) + 1;
        let weights: Vec<T> = vec![T::from_f32(0.01); n * k * copies.min(200)];
        for rows in [1, 2, 4, 8, 16, 32, 60, 128, 256] {
            let x = vec![T::from_f32(0.5); rows * k];
            let mut out = vec![T::from_f32(0.0); rows * n];
            let mut best = f64::INFINITY;
            let mut weights = weights.chunks_exact(n * k).cycle();
            let start = Instant::now();
            while start.elapsed().as_secs_f64() < 0.25 {
                let weight = weights.next().expect("at least one weight");
                let out = LinearOut::Store(&mut out[..]);
                let begin = Instant::now();
                kernels.linear(Linear { rows, n, k, x: &x, weight, bias: None, out });
                best = best.min(begin.elapsed().as_secs_f64());
            }
            let flops = 2.0 * (rows * n * k) as f64 / best / 1e9;
            let bytes = (n * k * size_of::<T>()) as f64 / best / 1e9;
            println!("{n}x{k} rows {rows:4}: {flops:7.1} GFLOP/s {bytes:6.1} GB/s of weight");
        }
    }
    attention::<T>(kernels);
}

fn read_speed(threads: usize) {
    let data = vec![1u64; 64 << 20];
    let start = Instant::now();
    let part = data.len() / threads;
    std::thread::scope(|scope| {
        for part in data.chunks(part) {
            scope.spawn(move || std::hint::black_box(part.iter().fold(0, |a, b| a ^ b)));
        }
    });
    println!(
        "memory read: {:.1} GB/s",
        data.len() as f64 * 8.0 / start.elapsed().as_secs_f64() / 1e9
    );
}

fn attention<T: Element>(kernels: &Kernels) {
    for (batch, rows, past, heads, kv_heads, head_dim) in
        [(16, 1, 512, 56, 56, 128), (60, 1, 256, 9, 3, 64), (2, 512, 0, 9, 3, 64)]
    {
        let scale = 0.1;
        let shape = AttentionShape { heads, kv_heads, head_dim, scale };
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
        let cache = vec![T::from_f32(0.1); batch * kv_heads * past * head_dim];
        let values = cache.clone();
        let mut out = q.clone();
        let mut best = f64::INFINITY;
        for _ in 0..10 {
            let begin = Instant::now();
            kernels.attention(&shape, &units, &q, &fresh, &fresh, &cache, &values, &mut out);
            best = best.min(begin.elapsed().as_secs_f64());
        }
        let pairs = batch * heads * (rows * past + rows * (rows + 1) / 2);
        let bytes = (2 * cache.len() * size_of::<T>()) as f64 / best / 1e9;
        let flops = (4 * pairs * head_dim) as f64 / best / 1e9;
        println!(
            "attention {batch}x{rows} after {past}, {heads}/{kv_heads} heads of {head_dim}: {bytes:.1} GB/s {flops:.1} GFLOP/s"
        );
    }
}
