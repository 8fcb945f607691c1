//! Prints how fast linears run on this machine, as a share of the roofline: weights read from
//! memory at the speed of a plain read, or multiply-adds at the processor's peak, whichever is
//! slower.
//!
//!     cargo run --release -p kernels --example linear_speed -- [bf16|f32|w4|w8|q4_k|..]
//!     [seconds] [rows,..]
//!     [large|small|NxK] [MiB of weights] [threads] [int8|int12]

mod memory;

use std::time::Instant;

use half::bf16;
use kernels::{Element, Kernels, Linear, LinearOut, LinearQuant, ScratchLimits, Variant};
use memory::{Line, on_all, read_speed};
use model::quantized_format::{ActivationFormat, Bits, Grouped};

const LARGE: [(usize, usize); 3] = [(7168, 7168), (28672, 7168), (7168, 28672)];
const SMALL: [(usize, usize); 5] = [(576, 576), (1536, 576), (576, 1536), (192, 576), (49152, 576)];

fn main() {
    let arguments: Vec<String> = std::env::args().skip(1).collect();
    let word = |index: usize| arguments.get(index).map_or("", String::as_str);
    let dtype = if word(0).is_empty() { "bf16" } else { word(0) };
    let seconds: f64 = word(1).parse().unwrap_or(0.5);
    let rows: Vec<usize> = word(2).split(',').filter_map(|text| text.parse().ok()).collect();
    let rows = if rows.is_empty() { vec![1, 4, 8, 16, 25, 50, 60, 100, 240] } else { rows };
    let one = word(3).split_once('x').and_then(|(n, k)| Some((n.parse().ok()?, k.parse().ok()?)));
    let shapes = match (one, word(3)) {
        (Some(shape), _) => vec![shape],
        (None, "small") => SMALL.to_vec(),
        _ => LARGE.to_vec(),
    };
    let threads: usize = word(5).parse().unwrap_or(2);
    let limits =
        ScratchLimits { rows: 256, linear_inputs: 28672, positions: 64, group: 8, head_dim: 128 };
    let variant = Variant::from_env().expect("a variant of this machine");
    let int12 = word(6) == ActivationFormat::Int12.name();
    let activations = if int12 { ActivationFormat::Int12 } else { ActivationFormat::Int8 };
    let kernels = Kernels::new(variant, threads, limits).expect("threads start");
    let kernels = kernels.with_activations(activations);
    kernels.set_spin(std::time::Duration::from_micros(100));
    println!("{} {dtype} {} on {threads} threads", variant.name(), activations.name());
    // Weights rotate through more memory than any cache holds, unless specified otherwise.
    let mebibytes: usize = word(4).parse().unwrap_or(1024);
    let lines = vec![Line([0x3c3c; 32]); mebibytes << 14];
    let pool: &[u16] = bytemuck::cast_slice(&lines);
    for &rows in &rows {
        let mut shares = Vec::new();
        for &(n, k) in &shapes {
            let bytes = weight_bytes(dtype, n, k);
            let (read, peak) =
                (read_speed(pool, threads), (0..3).map(|_| peak(threads)).fold(0.0, f64::max));
            let time = match dtype {
                "f32" => measure::<f32>(&kernels, dtype, (rows, n, k), pool, seconds),
                _ => measure::<bf16>(&kernels, dtype, (rows, n, k), pool, seconds),
            };
            let (read, peak) = (read.max(read_speed(pool, threads)), peak.max(self::peak(threads)));
            let flops = 2.0 * (rows * n * k) as f64;
            let share = (bytes as f64 / read / 1e9).max(flops / peak / 1e9) / time;
            shares.push(share);
            print!(
                "{n}x{k} {rows:3}: {share:.2} {:8.1} us {:5.1}/{read:.0} GB/s {:5.0}/{peak:.0} GF | ",
                time * 1e6,
                bytes as f64 / time / 1e9,
                flops / time / 1e9
            );
        }
        println!("mean {:.3}", shares.iter().sum::<f64>() / shares.len() as f64);
    }
}

/// Returns the grouped format of a name.
fn format(dtype: &str) -> Option<Grouped> {
    Some(match dtype {
        "w4" => Grouped::W4,
        "w8" => Grouped::halves(Bits::Eight, 64),
        "q4_0" => Grouped::GGUF_Q4,
        "q5_0" => Grouped::GGUF_Q5_0,
        "q5_1" => Grouped::GGUF_Q5_1,
        "q8_0" => Grouped::GGUF_Q8,
        "q4_k" => Grouped::GGUF_Q4_K,
        "q5_k" => Grouped::GGUF_Q5_K,
        "q6_k" => Grouped::GGUF_Q6_K,
        "iq4_nl" => Grouped::GGUF_IQ4_NL,
        "iq4_xs" => Grouped::GGUF_IQ4_XS,
        "q2_k" => Grouped::GGUF_Q2_K,
        "q3_k" => Grouped::GGUF_Q3_K,
        "iq2_s" => Grouped::GGUF_IQ2_S,
        "iq3_xxs" => Grouped::GGUF_IQ3_XXS,
        "mxfp4" => Grouped::GGUF_MXFP4,
        _ => return None,
    })
}

fn weight_bytes(dtype: &str, n: usize, k: usize) -> usize {
    match format(dtype) {
        Some(format) => format.size_bytes(n, k),
        None if dtype == "f32" => 4 * n * k,
        None => 2 * n * k,
    }
}

/// Returns the tenth percentile of a call's time in seconds (other guests of the host slow the
/// rest), over weights that rotate through `pool`.
fn measure<T: Element>(
    kernels: &Kernels,
    dtype: &str,
    (rows, n, k): (usize, usize, usize),
    pool: &[u16],
    seconds: f64,
) -> f64 {
    let x = vec![T::from_f32(0.5); rows * k];
    let mut out = vec![T::from_f32(0.0); rows * n];
    let bytes = weight_bytes(dtype, n, k);
    let pool: &[u8] = bytemuck::cast_slice(pool);
    let copies = pool.len() / bytes;
    let mut times = Vec::new();
    let start = Instant::now();
    while start.elapsed().as_secs_f64() < seconds || times.len() < 5 {
        let weight = &pool[times.len() % copies * bytes..][..bytes];
        let out = LinearOut::Store(&mut out[..]);
        let begin = Instant::now();
        if let Some(format) = format(dtype) {
            let bias = None;
            kernels.linear_grouped(LinearQuant {
                rows,
                n,
                k,
                x: &x,
                format,
                records: weight,
                bias,
                out,
            });
        } else {
            let weight = bytemuck::cast_slice(weight);
            kernels.linear(Linear { rows, n, k, x: &x, weight, bias: None, out });
        }
        times.push(begin.elapsed().as_secs_f64());
    }
    times.sort_by(f64::total_cmp);
    times[times.len() / 10]
}

/// Measures f32 multiply-adds of all threads, in GFLOP/s.
fn peak(threads: usize) -> f64 {
    #[cfg(target_arch = "x86_64")]
    if is_x86_feature_detected!("avx512f") {
        const ROUNDS: u64 = 2_000_000;
        let time = on_all(threads, |_| {
            // SAFETY: the instructions exist; only named registers are accessed.
            unsafe { peak_avx512(ROUNDS) };
        });
        return (threads as u64 * ROUNDS * 16 * 32) as f64 / time / 1e9;
    }
    f64::NAN
}

/// # Safety
/// The machine has AVX-512.
#[cfg(target_arch = "x86_64")]
#[target_feature(enable = "avx512f")]
unsafe fn peak_avx512(rounds: u64) {
    // SAFETY: a loop over registers that are declared as overwritten.
    unsafe {
        std::arch::asm!(
            "vxorps xmm16, xmm16, xmm16", "vxorps xmm17, xmm17, xmm17",
            "2:",
            "vfmadd231ps zmm0, zmm16, zmm17", "vfmadd231ps zmm1, zmm16, zmm17",
            "vfmadd231ps zmm2, zmm16, zmm17", "vfmadd231ps zmm3, zmm16, zmm17",
            "vfmadd231ps zmm4, zmm16, zmm17", "vfmadd231ps zmm5, zmm16, zmm17",
            "vfmadd231ps zmm6, zmm16, zmm17", "vfmadd231ps zmm7, zmm16, zmm17",
            "vfmadd231ps zmm8, zmm16, zmm17", "vfmadd231ps zmm9, zmm16, zmm17",
            "vfmadd231ps zmm10, zmm16, zmm17", "vfmadd231ps zmm11, zmm16, zmm17",
            "vfmadd231ps zmm12, zmm16, zmm17", "vfmadd231ps zmm13, zmm16, zmm17",
            "vfmadd231ps zmm14, zmm16, zmm17", "vfmadd231ps zmm15, zmm16, zmm17",
            "dec {rounds}",
            "jnz 2b",
            rounds = inout(reg) rounds => _,
            out("zmm0") _, out("zmm1") _, out("zmm2") _, out("zmm3") _,
            out("zmm4") _, out("zmm5") _, out("zmm6") _, out("zmm7") _,
            out("zmm8") _, out("zmm9") _, out("zmm10") _, out("zmm11") _,
            out("zmm16") _, out("zmm17") _,
            out("zmm12") _, out("zmm13") _, out("zmm14") _, out("zmm15") _,
        );
    }
}
