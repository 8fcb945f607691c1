//! Prints how fast a mixture of experts reads the weights of the experts that rows are routed to,
//! as a share of a plain read. Rows are routed uniformly, anew in every call.
//!
//!     cargo run --release -p kernels --example expert_speed -- [w4|w8|bf16] [seconds] [rows,..]
//!     [threads] [experts,top_k,hidden,width]

mod memory;

use std::collections::BTreeSet;
use std::time::Instant;

use half::bf16;
use kernels::{
    ExpertLimits, ExpertWeight, Kernels, LinearOut, RoutedExpert, RoutedLinear, Routing,
    ScratchLimits, Variant,
};
use memory::{Line, read_speed};
use model::quantized_format::Grouped;

/// RoutedLinear, experts of a row, hidden width, an expert's width: Qwen3-30B-A3B.
const DEFAULT: [usize; 4] = [128, 8, 2048, 768];

/// Number of sets of weights that calls rotate through.
const SETS: usize = 2;

struct Mixture<'a> {
    kernels: &'a Kernels,
    format: Option<Grouped>,
    shape: [usize; 4],
    pool: &'a [u8],
}

/// Operands of the calls.
struct Buffers {
    x: Vec<bf16>,
    gate: Vec<bf16>,
    product: Vec<bf16>,
    hidden: Vec<f32>,
}

fn main() {
    let arguments: Vec<String> = std::env::args().skip(1).collect();
    let word = |index: usize| arguments.get(index).map_or("", String::as_str);
    let numbers = |index: usize| -> Vec<usize> {
        word(index).split(',').filter_map(|text| text.parse().ok()).collect()
    };
    let format = match word(0) {
        "bf16" => None,
        "w8" => Some(Grouped::GGUF_Q8),
        _ => Some(Grouped::GGUF_Q4),
    };
    let seconds: f64 = word(1).parse().unwrap_or(1.0);
    let batches = if numbers(2).is_empty() { vec![1, 8, 60] } else { numbers(2) };
    let threads: usize = word(3).parse().unwrap_or(2);
    let shape: [usize; 4] = numbers(4).try_into().unwrap_or(DEFAULT);
    let [experts, top_k, hidden, width] = shape;
    let rows = batches.iter().copied().max().unwrap_or(1);
    let inputs = hidden.max(width);
    let limits =
        ScratchLimits { rows, linear_inputs: inputs, positions: 64, group: 8, head_dim: 128 };
    let variant = Variant::from_env().expect("a variant of this machine");
    let kernels = Kernels::new(variant, threads, limits).expect("threads start");
    let kernels = kernels.with_experts(ExpertLimits { rows, top_k, experts, inputs, hidden });
    kernels.set_spin(std::time::Duration::from_micros(100));
    let expert_bytes = bytes(format, width, hidden).max(bytes(format, hidden, width));
    let lines = vec![Line([0x3c3c; 32]); (3 * SETS * experts * expert_bytes).div_ceil(64)];
    let pool: &[u8] = bytemuck::cast_slice(&lines);
    println!("{} {format:?} {shape:?} on {threads} threads", variant.name());
    let mixture = Mixture { kernels: &kernels, format, shape, pool };
    for rows in batches {
        let before = read_speed(bytemuck::cast_slice(pool), threads);
        let speeds = mixture.measure(rows, seconds);
        let read = before.max(read_speed(bytemuck::cast_slice(pool), threads));
        print!("{rows:3} rows, read {read:.1} GB/s:");
        for (name, (speed, time)) in ["gate", "up", "down", "all"].into_iter().zip(speeds) {
            let (share, us) = (speed / read, time * 1e6);
            print!(" {name} {share:.2} {speed:5.1} GB/s {us:8.1} us |");
        }
        println!();
    }
}

/// Returns the bytes of an expert's matrix.
fn bytes(format: Option<Grouped>, n: usize, k: usize) -> usize {
    format.map_or(2 * n * k, |format| format.size_bytes(n, k))
}

impl Mixture<'_> {
    /// Returns bytes read per second, in GB/s, and seconds, of gate, up, down and all three: the
    /// tenth percentile of the calls' times, since other guests of the host slow the rest.
    fn measure(&self, rows: usize, seconds: f64) -> [(f64, f64); 4] {
        let [_, top_k, hidden, width] = self.shape;
        let slots = rows * top_k;
        let mut buffers = Buffers {
            x: vec![bf16::from_f32(0.5); rows * hidden],
            gate: vec![bf16::ZERO; slots * width],
            product: vec![bf16::ZERO; slots * width],
            hidden: vec![0.0; rows * hidden],
        };
        let mut random = 0x9e37_79b9_7f4a_7c15;
        let mut calls: Vec<[(f64, f64); 4]> = Vec::new();
        let start = Instant::now();
        while start.elapsed().as_secs_f64() < seconds || calls.len() < 5 {
            let routed = self.uniform(rows, &mut random);
            calls.push(self.call(&routed, calls.len() % SETS, &mut buffers));
        }
        std::array::from_fn(|i| {
            let mut of_one: Vec<(f64, f64)> = calls.iter().map(|call| call[i]).collect();
            of_one.sort_by(|a, b| b.0.total_cmp(&a.0));
            of_one[of_one.len() / 10]
        })
    }

    fn uniform(&self, rows: usize, random: &mut u64) -> Vec<RoutedExpert> {
        let [experts, top_k, ..] = self.shape;
        let mut routed = Vec::new();
        for _ in 0..rows {
            let mut chosen = BTreeSet::new();
            while chosen.len() < top_k {
                *random ^= *random << 13;
                *random ^= *random >> 7;
                *random ^= *random << 17;
                chosen.insert((*random % experts as u64) as u32);
            }
            routed.extend(chosen.into_iter().map(|expert| RoutedExpert { expert, weight: 0.125 }));
        }
        routed
    }

    fn call(&self, routed: &[RoutedExpert], set: usize, buffers: &mut Buffers) -> [(f64, f64); 4] {
        let Mixture { kernels, format, shape: [experts, top_k, hidden, width], pool } = *self;
        let Buffers { x, gate, product, hidden: out } = buffers;
        let hit = routed.iter().map(|routed| routed.expert).collect::<BTreeSet<_>>().len();
        let routing = Routing { experts, top_k, routed };
        let linear = |index: usize, n: usize, k: usize| {
            let len = experts * bytes(format, n, k);
            let blob = &pool[(3 * set + index) * (pool.len() / 3 / SETS / 64 * 64)..][..len];
            let weight = match format {
                None => ExpertWeight::Plain(bytemuck::cast_slice(blob)),
                Some(format) => ExpertWeight::Grouped(format, blob),
            };
            RoutedLinear { routing, n, k, weight, bias: None, places: None, included: None }
        };
        let read = |n: usize, k: usize| (hit * bytes(format, n, k)) as f64;
        let begin = Instant::now();
        kernels.expert_linear(&linear(0, width, hidden), x, LinearOut::Store(gate));
        let gate_time = begin.elapsed().as_secs_f64();
        let silu = LinearOut::SiluMul { gate, out: product };
        kernels.expert_linear(&linear(1, width, hidden), x, silu);
        let up_time = begin.elapsed().as_secs_f64() - gate_time;
        kernels.expert_down(&linear(2, hidden, width), product, out);
        let all_time = begin.elapsed().as_secs_f64();
        let down_time = all_time - gate_time - up_time;
        let (gate, down) = (read(width, hidden), read(hidden, width));
        [
            (gate / gate_time / 1e9, gate_time),
            (gate / up_time / 1e9, up_time),
            (down / down_time / 1e9, down_time),
            ((2.0 * gate + down) / all_time / 1e9, all_time),
        ]
    }
}
