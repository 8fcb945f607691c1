//! Prints the cost of handing work to the pool, and of small operations on one thread and on all.
//!
//! `cargo run --release -p kernels --example small_speed [THREADS]`. Times are medians in
//! microseconds. Columns: one thread; all threads with sleeping, then with spinning idle threads.

use std::time::{Duration, Instant};

use half::bf16;
use kernels::{
    Kernels, PoolOptions, RopeTables, SampleDraw, SampleScratch, Sampling, ScratchLimits,
    ThreadLimits, ThreadPool, Variant,
};

const SPIN: Duration = Duration::from_micros(50);
const ROUNDS: usize = 301;

/// Returns the median time of a call; between calls the caller works for some microseconds, as
/// between operations of a step.
fn median_us(mut call: impl FnMut()) -> f64 {
    let mut times: Vec<f64> = (0..ROUNDS)
        .map(|_| {
            let pause = Instant::now();
            while pause.elapsed() < Duration::from_micros(5) {
                std::hint::spin_loop();
            }
            let start = Instant::now();
            call();
            start.elapsed().as_secs_f64() * 1e6
        })
        .collect();
    times.sort_by(f64::total_cmp);
    times[ROUNDS / 2]
}

fn main() {
    let threads = std::env::args().nth(1).and_then(|text| text.parse().ok()).unwrap_or(2);
    for spin in [Duration::ZERO, SPIN] {
        let options = PoolOptions { spin, ..PoolOptions::unpinned(threads) };
        let pool = ThreadPool::with_options(&options).expect("threads start");
        let hand_over = median_us(|| pool.run(threads, &|_, _| ()));
        println!("fork and join of {threads} threads, spin {spin:?}: {hand_over:.2} us");
    }
    println!("{:<26}{:>10}{:>10}{:>10}", "", "1 thread", "sleeping", "spinning");
    for (hidden, heads, head_dim) in [(576, 9, 64), (7168, 56, 128)] {
        for rows in [1, 8, 32, 60] {
            sizes(threads, rows, hidden, (heads, head_dim));
        }
    }
}

fn sizes(threads: usize, rows: usize, hidden: usize, (heads, head_dim): (usize, usize)) {
    const VOCAB: usize = 49_152;
    let limits = ScratchLimits { rows, linear_inputs: 64, positions: 1, group: 1, head_dim };
    let mut kernels = Kernels::new(Variant::best(), threads, limits).expect("threads start");
    let x: Vec<f32> = (0..rows * hidden).map(|i| (i % 97) as f32 - 48.0).collect();
    let gain = vec![1.5f32; hidden];
    let mut out = vec![bf16::ZERO; rows * hidden];
    let mut residual = x.clone();
    let table = vec![bf16::ONE; 1_000 * hidden];
    let tokens: Vec<u32> = (0..rows as u32).map(|i| i * 16 % 1_000).collect();
    let positions: Vec<u32> = (0..rows as u32).map(|i| 100 + i).collect();
    let frequencies = vec![0.01f32; head_dim / 2];
    let tables = RopeTables::whole(&frequencies);
    let logits: Vec<f32> = (0..rows * VOCAB).map(|i| (i * 7_919 % 10_007) as f32 / 500.0).collect();
    let mut scratch: Vec<_> = (0..threads).map(|_| SampleScratch::new(VOCAB)).collect();
    let mut drawn = vec![0; rows];
    let greedy = vec![SampleDraw::GREEDY; rows];
    let sampling = Sampling { temperature: 0.8, top_p: 0.9, ..Sampling::GREEDY };
    let nucleus = vec![SampleDraw { sampling, random: 0.5, ..SampleDraw::GREEDY }; rows];
    let mut cells = vec![Vec::new(); 5];
    for (limit, spin) in [(1, Duration::ZERO), (threads, Duration::ZERO), (threads, SPIN)] {
        kernels.set_thread_limits(ThreadLimits { small: limit, ..ThreadLimits::default() });
        kernels.set_spin(spin);
        cells[0].push(median_us(|| {
            kernels.rms_norm(rows, hidden, &x, &gain, 1e-5, None, &mut out);
        }));
        cells[1].push(median_us(|| {
            kernels.rope(rows, heads, head_dim, &positions, &tables, &mut out);
        }));
        cells[2].push(median_us(|| kernels.embed(&tokens, &table, None, 1.0, &mut residual)));
        cells[3].push(median_us(|| {
            kernels.sample_rows(&logits, &greedy, &[], &[], &mut scratch, &mut drawn);
        }));
        cells[4].push(median_us(|| {
            if rows <= 8 {
                kernels.sample_rows(&logits, &nucleus, &[], &[], &mut scratch, &mut drawn);
            }
        }));
    }
    let names = ["norm", "rope", "embed", "greedy", "nucleus"];
    for (name, times) in names.iter().zip(&cells) {
        if *name == "nucleus" && rows > 8 {
            continue;
        }
        print!("{:<26}", format!("{name} {rows} x {hidden}"));
        times.iter().for_each(|time| print!("{time:>10.2}"));
        println!();
    }
}
