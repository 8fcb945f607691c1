//! Prints hashes of the bits of seeded linears and attention calls, for each variant of this
//! machine or the one that `TANDEM_KERNELS` names. Two builds that print the same lines compute the
//! same bits.
//!
//!     cargo run -p kernels --example checksums -- [other]
//!
//! With `other`, the kernels behave as on the other kind of processor (`processor.rs`).

#[path = "../tests/common/mod.rs"]
mod common;

use common::records::{formats, random_records};
use common::{Random, poison};
use half::bf16;
use kernels::quant::quantise_kv;
use kernels::{
    AttentionShape, AttentionUnit, Element, Kernels, KvCacheSlice, Linear, LinearOut, LinearQuant,
    ScratchLimits, VARIANT_ENV, Variant,
};
use model::quantized_format::{KvRecordFormat, kv4_position_bytes};

const THREADS: usize = 2;

/// Numbers of rows around the heights of tiles.
const ROWS: [usize; 14] = [1, 2, 3, 4, 5, 7, 8, 12, 13, 16, 17, 25, 33, 50];

/// Outputs and inputs of plain linears, with and without a remainder of columns, steps and blocks.
const PLAIN: [(usize, usize); 4] = [(33, 65), (48, 576), (35, 1025), (16, 31)];

/// Outputs and inputs of grouped linears.
const GROUPED: [(usize, usize); 3] = [(35, 97), (80, 320), (130, 65)];

/// Query heads, KV heads, elements of a head, window.
const HEADS: [(usize, usize, usize, Option<u32>); 9] = [
    (3, 3, 64, None),
    (9, 3, 64, None),
    (4, 2, 80, Some(40)),
    (7, 1, 128, None),
    (8, 2, 128, Some(100)),
    (4, 1, 96, None),
    (5, 5, 16, None),
    (9, 1, 256, None),
    (6, 2, 32, None),
];

/// Fresh rows and cached positions of the sequences of each attention call.
const SEQUENCES: [(usize, usize); 12] = [
    (1, 0),
    (1, 3),
    (1, 16),
    (1, 64),
    (1, 129),
    (1, 1100),
    (3, 2),
    (17, 0),
    (33, 31),
    (5, 65),
    (49, 0),
    (2, 63),
];

fn main() {
    if std::env::args().nth(1).as_deref() == Some("other") {
        kernels::assume_other_processor();
    }
    let limits =
        ScratchLimits { rows: 256, linear_inputs: 1088, positions: 1200, group: 9, head_dim: 256 };
    let variants = match std::env::var_os(VARIANT_ENV) {
        Some(_) => vec![Variant::from_env().expect("a variant of this machine")],
        None => Variant::available(),
    };
    for variant in variants {
        let kernels = Kernels::new(variant, THREADS, limits).expect("threads start");
        plain::<bf16>(&kernels, "bf16");
        plain::<f32>(&kernels, "f32");
        grouped::<bf16>(&kernels, "bf16");
        grouped::<f32>(&kernels, "f32");
        attention::<bf16>(&kernels, "bf16");
        attention::<f32>(&kernels, "f32");
    }
}

fn plain<T: Element>(kernels: &Kernels, dtype: &str) {
    for (n, k) in PLAIN {
        let mut random = Random::new((n * 1_009 + k) as u64);
        let weight: Vec<T> = random.vector(n * k);
        let bias: Vec<f32> = random.vector(n);
        for rows in ROWS {
            let x: Vec<T> = random.vector(rows * k);
            let mut sums = poison::<f32>(rows * n);
            let mut gated = poison::<T>(rows * n);
            let gate: Vec<T> = random.vector(rows * n);
            let call = |out| Linear { rows, n, k, x: &x, weight: &weight, bias: Some(&bias), out };
            kernels.linear(call(LinearOut::StoreF32(&mut sums)));
            kernels.linear(call(LinearOut::SiluMul { gate: &gate, out: &mut gated }));
            let name = format!("linear {dtype} {rows}x{n}x{k}");
            print(kernels, &name, &[hash(&sums), hash(&gated)]);
        }
    }
}

fn grouped<T: Element>(kernels: &Kernels, dtype: &str) {
    for (index, format) in formats().into_iter().enumerate() {
        for (n, k) in GROUPED {
            let mut random = Random::new((index * 1_000_003 + n * 1_009 + k) as u64);
            let records = random_records(&mut random, format, n, k);
            let hashes = ROWS.map(|rows| {
                let x: Vec<T> = random.vector(rows * k);
                let mut out = poison::<f32>(rows * n);
                let target = LinearOut::StoreF32(&mut out);
                kernels.linear_grouped(LinearQuant {
                    rows,
                    n,
                    k,
                    x: &x,
                    format,
                    records: &records,
                    bias: None,
                    out: target,
                });
                hash(&out)
            });
            print(kernels, &format!("linear {dtype} {format:?} {n}x{k}"), &hashes);
        }
    }
}

fn attention<T: Element>(kernels: &Kernels, dtype: &str) {
    for (heads, kv_heads, head_dim, window) in HEADS {
        let scale = 1.0 / (head_dim as f32).sqrt();
        let shape = AttentionShape { heads, kv_heads, head_dim, scale, window };
        let mut random = Random::new((heads * 1_009 + head_dim) as u64);
        let mut hashes = Vec::new();
        for (fresh, past) in SEQUENCES {
            let positions = past * kv_heads;
            let unit = |kv_head| AttentionUnit {
                row0: 0,
                rows: fresh as u32,
                past: past as u32,
                shared_row: None,
                kv_head: kv_head as u32,
                cache_offset: kv_head * past * head_dim,
                cache_positions: 0,
                first_page: 0,
                scores_offset: 0,
            };
            let units: Vec<AttentionUnit> = (0..kv_heads).map(unit).collect();
            let q: Vec<T> = random.vector(fresh * heads * head_dim);
            let [k_fresh, v_fresh] = [(); 2].map(|()| random.vector(fresh * kv_heads * head_dim));
            let cached: [Vec<T>; 2] = [(); 2].map(|()| random.vector(positions * head_dim));
            let record = kv4_position_bytes(head_dim).expect("an even head");
            let records = [0, 1].map(|side| {
                let mut records = vec![0; positions * record];
                quantise_kv(
                    Variant::Scalar,
                    KvRecordFormat::Four,
                    &cached[side],
                    head_dim,
                    &mut records,
                );
                records
            });
            let plain = [0, 1].map(|side| KvCacheSlice::Plain(&cached[side]));
            let four =
                [0, 1].map(|side| KvCacheSlice::Records(KvRecordFormat::Four, &records[side]));
            for [k, v] in [plain, four] {
                let mut out = poison::<T>(q.len());
                kernels.attention(&shape, &units, &q, &k_fresh, &v_fresh, k, v, None, &mut out);
                hashes.push(hash(&out));
            }
        }
        let name = format!("attention {dtype} {heads}/{kv_heads} heads of {head_dim} {window:?}");
        print(kernels, &name, &hashes);
    }
}

fn hash<T: Element>(values: &[T]) -> u64 {
    values.iter().fold(values.len() as u64, |hash, value| {
        let bits = u64::from(value.to_f32().to_bits());
        (hash.rotate_left(29) ^ bits).wrapping_mul(0x9e37_79b9_7f4a_7c15)
    })
}

fn print(kernels: &Kernels, name: &str, hashes: &[u64]) {
    let hashes: Vec<String> = hashes.iter().map(|hash| format!("{hash:016x}")).collect();
    println!("{} {name}: {}", kernels.variant().name(), hashes.join(" "));
}
