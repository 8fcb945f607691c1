//! Current capabilities of this machine, measured in the same process as the kernels: the speed of
//! reading memory, the peak of multiply-adds, and how far apart the cores are.

mod memory;
mod multiply;
mod steal_time;

use std::ops::Range;
use std::sync::Barrier;
use std::time::{Duration, Instant};

use kernels::Variant;
use memory::Read;
use rustix::thread::{CpuSet, sched_getaffinity, sched_setaffinity};
use shm::sync::{AtomicU32, Ordering, spin_loop};

/// Bytes that one measurement of memory reads: beyond any cache, and one step of the rotation.
const READ_BYTES: usize = 320 << 20;
/// About 4 ms of multiply-adds; the best of three counts, because a vCPU is preempted now and then.
const FMA_ROUNDS: u64 = 1_000_000;

/// Limits of the machine at one moment, all threads together.
#[derive(Debug, Clone)]
pub struct Peaks {
    /// The best of three read loops, bytes per second.
    pub dram_bytes_per_s: f64,
    /// Peak of the instructions that the variant's bf16 linears use.
    pub flops_per_s: f64,
    /// Round trip of a word from one core to another. `None` on a single core.
    pub spin_ns: Option<f64>,
    /// Rate of f32 multiply-adds that load their operands over that of those that do not, on the
    /// core with the lowest ratio: 1 on a core that is alone, less if its sibling thread runs other
    /// work.
    pub alone: f64,
    /// Rate of f32 multiply-adds of all threads at once over the sum of their individual rates: 1
    /// on separate cores, half on the two threads of one core.
    pub scaling: f64,
    /// Steal time of the cores when this measurement began and when it ended, in clock ticks.
    pub steal_ticks: Range<u64>,
}

/// Returns the minimum of [`Peaks::alone`] on a core that is alone. It distinguishes a shared core
/// from one that is alone on Ice Lake, but not on processors with AMX, where the ratio is always
/// lower.
fn least_alone() -> f64 {
    if Variant::Amx.is_available() { 0.0 } else { 0.93 }
}

impl Peaks {
    pub fn mean(&self, other: &Peaks) -> Peaks {
        Peaks {
            dram_bytes_per_s: f64::midpoint(self.dram_bytes_per_s, other.dram_bytes_per_s),
            flops_per_s: f64::midpoint(self.flops_per_s, other.flops_per_s),
            spin_ns: other.spin_ns,
            alone: self.alone.min(other.alone),
            scaling: self.scaling.min(other.scaling),
            steal_ticks: self.steal_ticks.start..other.steal_ticks.end,
        }
    }

    /// Returns the median of each figure.
    pub fn median(several: &[Peaks]) -> Peaks {
        let middle = |figure: fn(&Peaks) -> f64| median(several.iter().map(figure));
        let spin_ns = middle(|peaks| peaks.spin_ns.unwrap_or(f64::NAN));
        Peaks {
            dram_bytes_per_s: middle(|peaks| peaks.dram_bytes_per_s),
            flops_per_s: middle(|peaks| peaks.flops_per_s),
            spin_ns: Some(spin_ns).filter(|ns| !ns.is_nan()),
            alone: middle(|peaks| peaks.alone),
            scaling: middle(|peaks| peaks.scaling),
            steal_ticks: several
                .iter()
                .map(|peaks| peaks.steal_ticks.start)
                .min()
                .unwrap_or_default()
                ..several.iter().map(|peaks| peaks.steal_ticks.end).max().unwrap_or_default(),
        }
    }

    /// Returns the reason why a sample between these two measurements is no share of either, if
    /// any. Pairs can be less strict: a process that shares a core slows both.
    pub fn sharing(&self, after: &Peaks) -> Option<&'static str> {
        (self.alone.min(after.alone) < least_alone())
            .then_some("a core's other thread works for somebody else")
    }

    /// Returns the reason why a sample between these two measurements is meaningless, if any.
    pub fn contention(&self, after: &Peaks) -> Option<&'static str> {
        let moved = |a: f64, b: f64| (a / b).max(b / a) - 1.0;
        // Two threads of one core answer within 80 ns, and so do neighbours on some processors.
        let siblings = |at: &Peaks| at.spin_ns.is_some_and(|ns| ns < 80.0) && at.scaling < 0.75;
        let far = |at: &Peaks| at.spin_ns.is_some_and(|ns| ns > 1000.0);
        if after.steal_ticks.end > self.steal_ticks.start {
            Some("the host took time of the cores")
        } else if siblings(self) || siblings(after) {
            Some("both threads are on one core")
        } else if far(self) || far(after) {
            Some("the cores' round trip takes more than 1000 ns")
        } else if moved(self.dram_bytes_per_s, after.dram_bytes_per_s) > 0.25 {
            Some("the memory's speed changed by more than 25%")
        } else if moved(self.flops_per_s, after.flops_per_s) > 0.15 {
            Some("the peak changed by more than 15%")
        } else {
            None
        }
    }
}

/// Measures [`Peaks`], reading `memory` window by window.
#[derive(Debug)]
pub struct Meter {
    threads: usize,
    variant: Variant,
    next_window: usize,
}

impl Meter {
    pub fn new(threads: usize, variant: Variant) -> Meter {
        Meter { threads, variant, next_window: 0 }
    }

    /// Measures the peaks; `memory` is larger than any cache.
    pub fn measure(&mut self, memory: &[u64]) -> Peaks {
        let steal_ticks = steal_time::ticks();
        let spin_ns = (self.threads > 1).then(spin_round_trip_ns);
        let mut fma = 0.0f64;
        let mut ratios = vec![Vec::new(); self.threads];
        let variant = self.variant;
        let mut scalings = Vec::new();
        for _ in 0..3 {
            let rate_of = |products: fn(Variant, u64) -> f64| {
                on_each(self.threads, &|_| (), &|_, ()| products(variant, FMA_ROUNDS))
            };
            let one = on_each(1, &|_| (), &|_, ()| multiply::in_registers(variant, FMA_ROUNDS));
            let plain = rate_of(multiply::in_registers);
            scalings.push(total_rate(&plain) / (self.threads as f64 * total_rate(&one)));
            let loading = rate_of(multiply::loading);
            let bf16 = multiply::has_bf16(variant).then(|| rate_of(multiply::bf16));
            fma = fma.max(total_rate(bf16.as_ref().unwrap_or(&plain)));
            for ((ratios, plain), loading) in ratios.iter_mut().zip(&plain).zip(&loading) {
                ratios.push(loading.rate() / plain.rate());
            }
        }
        let alone =
            ratios.into_iter().map(|of_core| median(of_core.into_iter())).fold(1.0, f64::min);
        let dram = Read::ALL.into_iter().map(|read| self.read(memory, read)).fold(0.0, f64::max);
        Peaks {
            dram_bytes_per_s: dram,
            flops_per_s: fma,
            spin_ns,
            alone,
            scaling: median(scalings.into_iter()),
            steal_ticks: steal_ticks..steal_time::ticks(),
        }
    }

    fn read(&mut self, memory: &[u64], read: Read) -> f64 {
        let window = READ_BYTES / 8;
        let windows = (memory.len() / window).max(1);
        let memory = memory.chunks(window).nth(self.next_window % windows).unwrap_or(memory);
        self.next_window += 1;
        let part = memory.len() / self.threads;
        let input = |thread: usize| &memory[thread * part..(thread + 1) * part];
        total_rate(&on_each(self.threads, &input, &|_, part| {
            std::hint::black_box(memory::read(read, part));
            size_of_val(part) as f64
        }))
    }
}

/// Runs `work` on all threads at once.
fn on_each<I>(
    threads: usize,
    input: &(dyn Fn(usize) -> I + Sync),
    work: &(dyn Fn(usize, I) -> f64 + Sync),
) -> Vec<Done> {
    let start = Barrier::new(threads);
    let run = |thread: usize| {
        let input = input(thread);
        start.wait();
        let begin = Instant::now();
        let amount = work(thread, input);
        Done { amount, time: begin.elapsed() }
    };
    std::thread::scope(|scope| {
        // Each on a separate core: the scheduler starts a thread near the one that created it.
        let threads: Vec<_> = (0..threads)
            .map(|thread| {
                scope.spawn(move || {
                    pin(thread);
                    run(thread)
                })
            })
            .collect();
        threads.into_iter().map(|thread| thread.join().expect("no panic")).collect()
    })
}

/// Work of a thread, and its time.
#[derive(Debug, Clone, Copy)]
struct Done {
    amount: f64,
    time: Duration,
}

impl Done {
    fn rate(self) -> f64 {
        self.amount / self.time.as_secs_f64()
    }
}

/// Pins this thread to one of the cores it may use, if the system allows it.
fn pin(thread: usize) {
    if let Ok(allowed) = sched_getaffinity(None) {
        let cores: Vec<usize> = (0..CpuSet::MAX_CPU).filter(|&core| allowed.is_set(core)).collect();
        let mut one = CpuSet::new();
        one.set(cores[thread % cores.len()]);
        let _ = sched_setaffinity(None, &one);
    }
}

/// Returns the work of all threads over the time until the last one ended.
fn total_rate(threads: &[Done]) -> f64 {
    let slowest = threads.iter().map(|done| done.time).max().unwrap_or_default();
    threads.iter().map(|done| done.amount).sum::<f64>() / slowest.as_secs_f64()
}

/// Returns the median of a few round trips: an interrupted one says nothing about the cores.
fn spin_round_trip_ns() -> f64 {
    const TRIPS: u32 = 1000;
    let word = AtomicU32::new(0);
    let await_value = |value: u32| {
        while word.load(Ordering::Acquire) != value {
            spin_loop();
        }
    };
    std::thread::scope(|scope| {
        scope.spawn(|| {
            for trip in 0..5 * TRIPS {
                await_value(2 * trip + 1);
                word.store(2 * trip + 2, Ordering::Release);
            }
        });
        let groups = [0, 1, 2, 3, 4].map(|group| {
            let begin = Instant::now();
            for trip in group * TRIPS..(group + 1) * TRIPS {
                word.store(2 * trip + 1, Ordering::Release);
                await_value(2 * trip + 2);
            }
            begin.elapsed().as_nanos() as f64 / f64::from(TRIPS)
        });
        median(groups.into_iter())
    })
}

/// Returns the median; NaN for an empty iterator.
pub fn median(values: impl Iterator<Item = f64>) -> f64 {
    let mut values: Vec<f64> = values.collect();
    values.sort_by(f64::total_cmp);
    match values.len() {
        0 => f64::NAN,
        len if len.is_multiple_of(2) => f64::midpoint(values[len / 2 - 1], values[len / 2]),
        len => values[len / 2],
    }
}
