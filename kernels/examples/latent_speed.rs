//! Prints how fast attention over latents is: all query heads read one cached vector per position,
//! which is key and value.
//!
//!     cargo run --release -p kernels --example latent_speed -- [threads] [rounds]
//!
//! Figures are medians. The rate counts the products of scores with keys and of weights with
//! latents; the rotated part of the values, which is also computed, is not counted.

use std::time::Instant;

use half::bf16;
use kernels::{AttentionShape, AttentionUnit, Kernels, ScratchLimits, Variant};

/// Name, sequences, fresh rows and cached positions of each, query heads.
const CASES: [(&str, usize, usize, usize, usize); 6] = [
    ("DeepSeek V3, decode", 1, 1, 8192, 128),
    ("DeepSeek V3, decode", 4, 1, 8192, 128),
    ("DeepSeek V3, prefill", 1, 256, 0, 128),
    ("GLM-4.7-Flash, decode", 1, 1, 8192, 20),
    ("GLM-4.7-Flash, decode", 8, 1, 8192, 20),
    ("GLM-4.7-Flash, prefill", 1, 512, 0, 20),
];
const LATENT: usize = 512;
const HEAD_DIM: usize = LATENT + 64;

fn main() {
    let mut arguments = std::env::args().skip(1);
    let threads = arguments.next().and_then(|text| text.parse().ok()).unwrap_or(2);
    let rounds = arguments.next().and_then(|text| text.parse().ok()).unwrap_or(5);
    let variant = Variant::from_env().expect("a variant of this machine");
    println!("{} on {threads} threads", variant.name());
    for (name, sequences, rows, past, heads) in CASES {
        let limits = ScratchLimits {
            rows: sequences * rows,
            linear_inputs: 1,
            positions: past + rows,
            group: heads,
            head_dim: HEAD_DIM,
        };
        let kernels = Kernels::new(variant, threads, limits).expect("threads start");
        let scale = 1.0 / 192f32.sqrt();
        let shape = AttentionShape { heads, kv_heads: 1, head_dim: HEAD_DIM, scale, window: None };
        let units: Vec<AttentionUnit> = (0..sequences)
            .map(|sequence| AttentionUnit {
                row0: (sequence * rows) as u32,
                rows: rows as u32,
                past: past as u32,
                shared_row: None,
                kv_head: 0,
                cache_offset: sequence * past * HEAD_DIM,
                cache_positions: 0,
                first_page: 0,
                scores_offset: 0,
            })
            .collect();
        let values = |len: usize| -> Vec<bf16> {
            let value = |at: usize| bf16::from_f32((at % 251) as f32 / 251.0 - 0.5);
            (0..len).map(value).collect()
        };
        let q = values(sequences * rows * heads * HEAD_DIM);
        let fresh = values(sequences * rows * HEAD_DIM);
        let cache = values(sequences * past * HEAD_DIM);
        let mut out = vec![bf16::ZERO; q.len()];
        let mut seconds: Vec<f64> = (0..=rounds)
            .map(|_| {
                let start = Instant::now();
                let (k, v) = (&cache, &cache);
                kernels.attention(&shape, &units, &q, &fresh, &fresh, k, v, None, &mut out);
                start.elapsed().as_secs_f64()
            })
            .skip(1)
            .collect();
        seconds.sort_by(f64::total_cmp);
        let median = seconds[seconds.len() / 2];
        let pairs = sequences * (rows * past + rows * (rows + 1) / 2);
        let products = 2.0 * (pairs * heads * (HEAD_DIM + LATENT)) as f64;
        let read_bytes = (cache.len() * size_of::<bf16>()) as f64;
        println!(
            "{name:22} {sequences} x {rows:3} after {past:4}: {:7.2} ms {:6.1} GFLOP/s {:5.2} GB/s",
            median * 1e3,
            products / median / 1e9,
            read_bytes / median / 1e9
        );
    }
}
