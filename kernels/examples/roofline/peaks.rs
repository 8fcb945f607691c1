//! What this machine can do at this moment, measured in the same process as the kernels: the speed
//! of reading memory, the peak of multiply-adds, and how far apart the cores are.
//!
//! The multiply-add loops are assembly: a compiler that spills one accumulator halves the peak, and
//! every share measured against it doubles.

#[cfg(target_arch = "x86_64")]
use std::arch::asm;
use std::sync::Barrier;
use std::time::{Duration, Instant};

use kernels::Variant;
use rustix::thread::{CpuSet, sched_getaffinity, sched_setaffinity};
use shm::sync::{AtomicU32, Ordering, spin_loop};

/// Bytes that one measurement of memory reads: beyond any cache, and one step of the rotation.
const READ_BYTES: usize = 320 << 20;
/// Distance of the four rows that the third read loop takes at once: rows of 7168 bf16.
const ROW_BYTES: usize = 14 << 10;
/// About 4 ms of multiply-adds; the best of three counts, because a vCPU is taken away now and then.
const FMA_ROUNDS: u64 = 1_000_000;

/// Limits of the machine at one moment, all threads together.
#[derive(Debug, Clone, Copy)]
pub struct Peaks {
    /// The best of three read loops, bytes per second.
    pub dram_bytes_per_s: f64,
    /// Of the instructions that the variant's bf16 linears are made of.
    pub flops_per_s: f64,
    /// A word from one core to another and back. None on a single core.
    pub spin_ns: Option<f64>,
    /// f32 multiply-adds that load what they multiply, over those that do not, of the core where this is
    /// least: 1 on a core that is alone, less where its other thread works for somebody else.
    pub alone: f64,
}

/// What [`Peaks::alone`] is on a core that is alone, at least. On the machine of `BENCHMARKS.md` it is 1.00
/// or 0.72 to 0.85, seldom between.
const LEAST_ALONE: f64 = 0.93;

impl Peaks {
    pub fn mean(self, other: Peaks) -> Peaks {
        Peaks {
            dram_bytes_per_s: f64::midpoint(self.dram_bytes_per_s, other.dram_bytes_per_s),
            flops_per_s: f64::midpoint(self.flops_per_s, other.flops_per_s),
            spin_ns: other.spin_ns,
            alone: self.alone.min(other.alone),
        }
    }

    /// The median of each figure.
    pub fn median(several: &[Peaks]) -> Peaks {
        let middle = |figure: fn(&Peaks) -> f64| median(several.iter().map(figure));
        let spin_ns = middle(|peaks| peaks.spin_ns.unwrap_or(f64::NAN));
        Peaks {
            dram_bytes_per_s: middle(|peaks| peaks.dram_bytes_per_s),
            flops_per_s: middle(|peaks| peaks.flops_per_s),
            spin_ns: Some(spin_ns).filter(|ns| !ns.is_nan()),
            alone: middle(|peaks| peaks.alone),
        }
    }

    /// Why a sample between these two measurements is no share of either, if so. Pairs need not be so
    /// particular: whoever shares a core slows both.
    pub fn sharing(self, after: Peaks) -> Option<&'static str> {
        (self.alone.min(after.alone) < LEAST_ALONE)
            .then_some("a core's other thread works for somebody else")
    }

    /// Why a sample between these two measurements says nothing, if so.
    pub fn contention(self, after: Peaks) -> Option<&'static str> {
        let moved = |a: f64, b: f64| (a / b).max(b / a) - 1.0;
        let strange = |spin: Option<f64>| spin.is_some_and(|ns| !(80.0..=1000.0).contains(&ns));
        if strange(self.spin_ns) || strange(after.spin_ns) {
            Some("the cores' round trip is outside 80..1000 ns")
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

    /// `memory` is larger than any cache.
    pub fn measure(&mut self, memory: &[u64]) -> Peaks {
        let spin_ns = (self.threads > 1).then(spin_round_trip_ns);
        let mut fma = 0.0f64;
        let mut ratios = vec![Vec::new(); self.threads];
        for _ in 0..3 {
            let plain = self.on_each(&|_| (), &|_, ()| self.multiply_add(FMA_ROUNDS));
            let loading = self.on_each(&|_| (), &|_, ()| self.load_multiply_add(FMA_ROUNDS));
            let pairs = self
                .has_bf16_pairs()
                .then(|| self.on_each(&|_| (), &|_, ()| Self::multiply_add_pairs(FMA_ROUNDS)));
            fma = fma.max(total_rate(pairs.as_ref().unwrap_or(&plain)));
            for ((ratios, plain), loading) in ratios.iter_mut().zip(&plain).zip(&loading) {
                ratios.push(loading.rate() / plain.rate());
            }
        }
        let alone =
            ratios.into_iter().map(|of_core| median(of_core.into_iter())).fold(1.0, f64::min);
        let dram = [Read::OneStream, Read::FourStreams, Read::FourRows, Read::SixteenRows]
            .map(|read| self.read(memory, read))
            .into_iter()
            .fold(0.0, f64::max);
        Peaks { dram_bytes_per_s: dram, flops_per_s: fma, spin_ns, alone }
    }

    fn read(&mut self, memory: &[u64], read: Read) -> f64 {
        let window = READ_BYTES / 8;
        let windows = (memory.len() / window).max(1);
        let memory = memory.chunks(window).nth(self.next_window % windows).unwrap_or(memory);
        self.next_window += 1;
        let part = memory.len() / self.threads;
        let input = |thread: usize| &memory[thread * part..(thread + 1) * part];
        total_rate(&self.on_each(&input, &|_, part| {
            std::hint::black_box(wide(read, part));
            size_of_val(part) as f64
        }))
    }

    /// Runs `work` on all threads at once.
    fn on_each<I>(
        &self,
        input: &(dyn Fn(usize) -> I + Sync),
        work: &(dyn Fn(usize, I) -> f64 + Sync),
    ) -> Vec<Done> {
        let start = Barrier::new(self.threads);
        let run = |thread: usize| {
            let input = input(thread);
            start.wait();
            let begin = Instant::now();
            let amount = work(thread, input);
            Done { amount, time: begin.elapsed() }
        };
        std::thread::scope(|scope| {
            // Each on a core of its own: the scheduler starts a thread beside the one that made it.
            let threads: Vec<_> = (0..self.threads)
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

    /// Whether the variant's bf16 linears multiply pairs of bf16.
    fn has_bf16_pairs(&self) -> bool {
        #[cfg(target_arch = "x86_64")]
        return matches!(self.variant.name(), "avx512bf16" | "amx")
            && is_x86_feature_detected!("avx512bf16");
        #[cfg(not(target_arch = "x86_64"))]
        false
    }

    /// Operations done in `rounds` of the loop on pairs of bf16, which the machine has.
    fn multiply_add_pairs(rounds: u64) -> f64 {
        #[cfg(target_arch = "x86_64")]
        // SAFETY: only called where the machine has the instruction.
        return unsafe { fma_bf16(rounds) };
        #[cfg(not(target_arch = "x86_64"))]
        unreachable!("pairs of bf16 are {rounds} rounds of x86")
    }

    /// Operations done in `rounds` of the variant's f32 loop.
    fn multiply_add(&self, rounds: u64) -> f64 {
        #[cfg(target_arch = "x86_64")]
        // SAFETY: the loops need instructions that the standard library has no stable name for in one
        // unspillable piece; each is entered only where the machine has them.
        unsafe {
            if self.variant >= Variant::Avx512 {
                return fma_512(rounds);
            } else if self.variant == Variant::Avx2 {
                return fma_256(rounds);
            }
        }
        fma_scalar(rounds)
    }

    /// As many operations as [`Meter::multiply_add`], whose operands are loaded as in a linear's
    /// register tile. Portable code has no such loop: a core counts as alone.
    fn load_multiply_add(&self, rounds: u64) -> f64 {
        #[cfg(target_arch = "x86_64")]
        // SAFETY: each is entered only where the machine has the instructions.
        unsafe {
            if self.variant >= Variant::Avx512 {
                return load_fma_512(rounds * 20 / 24);
            } else if self.variant == Variant::Avx2 {
                return load_fma_256(rounds);
            }
        }
        self.multiply_add(rounds)
    }
}

/// What a thread did, and in which time.
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

/// Keeps this thread on one of the cores it may use, where the system allows it.
fn pin(thread: usize) {
    if let Ok(allowed) = sched_getaffinity(None) {
        let cores: Vec<usize> = (0..CpuSet::MAX_CPU).filter(|&core| allowed.is_set(core)).collect();
        let mut one = CpuSet::new();
        one.set(cores[thread % cores.len()]);
        let _ = sched_setaffinity(None, &one);
    }
}

/// What all did, over the time until the last one ended.
fn total_rate(threads: &[Done]) -> f64 {
    let slowest = threads.iter().map(|done| done.time).max().unwrap_or_default();
    threads.iter().map(|done| done.amount).sum::<f64>() / slowest.as_secs_f64()
}

/// Multiply-adds without intrinsics, as the portable kernels have them.
fn fma_scalar(rounds: u64) -> f64 {
    let mut sums = [0.0f32; 16];
    let (a, b) = std::hint::black_box((0.0f32, 1.0f32));
    for _ in 0..rounds / 4 {
        for sum in &mut sums {
            *sum += a * b;
        }
        std::hint::black_box(&mut sums);
    }
    (rounds / 4) as f64 * 32.0
}

/// `$op` on each register `$n`, with `$a` and `$b` of the same width as operands.
#[cfg(target_arch = "x86_64")]
macro_rules! each {
    ($op:literal, $width:literal, $a:literal, $b:literal; $($n:literal)*) => {
        concat!($($op, " ", $width, $n, ", ", $width, $a, ", ", $width, $b, "\n"),*)
    };
}

/// `$width` registers of zero: no NaN and no subnormal slows the loop down.
#[cfg(target_arch = "x86_64")]
macro_rules! zero {
    ($width:literal; $($n:literal)*) => {
        concat!($("vxorps ", $width, $n, ", ", $width, $n, ", ", $width, $n, "\n"),*)
    };
}

/// `$rounds` times `$op` on every accumulator `$n`: more of them than a multiply-add takes cycles
/// times the ones that start in each.
#[cfg(target_arch = "x86_64")]
macro_rules! fma_loop {
    ($rounds:ident, $op:literal, $width:literal, $a:literal, $b:literal; $($n:literal)*) => {
        asm!(
            zero!($width; $a $b $($n)*),
            "2:",
            each!($op, $width, $a, $b; $($n)*),
            "dec rcx",
            "jnz 2b",
            inout("rcx") $rounds => _,
            clobber_abi("C"),
            options(nomem, nostack),
        )
    };
}

#[cfg(target_arch = "x86_64")]
#[target_feature(enable = "avx512f,avx512dq,avx512vl,avx512bw")]
fn fma_512(rounds: u64) -> f64 {
    // SAFETY: registers only, all declared; assembly because nothing may be spilled.
    unsafe {
        fma_loop!(rounds, "vfmadd231ps", "zmm", "30", "31";
            "0" "1" "2" "3" "4" "5" "6" "7" "8" "9" "10" "11" "12" "13" "14" "15" "16" "17" "18" "19");
    }
    rounds as f64 * 20.0 * 32.0
}

#[cfg(target_arch = "x86_64")]
#[target_feature(enable = "avx512f,avx512dq,avx512vl,avx512bw")]
fn fma_bf16(rounds: u64) -> f64 {
    // SAFETY: as above; the caller asked for AVX512-BF16.
    unsafe {
        fma_loop!(rounds, "vdpbf16ps", "zmm", "30", "31";
            "0" "1" "2" "3" "4" "5" "6" "7" "8" "9" "10" "11" "12" "13" "14" "15" "16" "17" "18" "19");
    }
    rounds as f64 * 20.0 * 64.0
}

#[cfg(target_arch = "x86_64")]
#[target_feature(enable = "avx2,fma")]
fn fma_256(rounds: u64) -> f64 {
    // SAFETY: as above.
    unsafe {
        fma_loop!(rounds, "vfmadd231ps", "ymm", "14", "15";
            "0" "1" "2" "3" "4" "5" "6" "7" "8" "9" "10" "11");
    }
    rounds as f64 * 12.0 * 16.0
}

/// `$rounds` times `$rows` of a broadcast and a product with each of the weights, all in the first level
/// of cache.
#[cfg(target_arch = "x86_64")]
macro_rules! load_fma_loop {
    ($rounds:ident, $operands:ident, $width:literal, $x:literal;
     $($weight:literal)*; $([$at:literal: $($sum:literal $by:literal)*])*) => {
        asm!(
            zero!($width; $($($sum)*)*),
            "2:",
            $(concat!("vmovups ", $width, $weight, ", [{operands}]"),)*
            $(
                concat!("vbroadcastss ", $width, $x, ", [{operands} + ", $at, "]"),
                $(concat!("vfmadd231ps ", $width, $sum, ", ", $width, $by, ", ", $width, $x),)*
            )*
            "dec rcx",
            "jnz 2b",
            operands = in(reg) $operands.as_ptr(),
            inout("rcx") $rounds => _,
            clobber_abi("C"),
            options(readonly, nostack),
        )
    };
}

#[cfg(target_arch = "x86_64")]
#[target_feature(enable = "avx512f,avx512dq,avx512vl,avx512bw")]
fn load_fma_512(rounds: u64) -> f64 {
    let operands = Operands([0.0; 32]);
    let operands = &operands.0;
    // SAFETY: reads the operands; registers are all declared.
    unsafe {
        load_fma_loop!(rounds, operands, "zmm", "31"; "28" "29" "30";
            ["0": "0" "28" "1" "29" "2" "30"] ["4": "3" "28" "4" "29" "5" "30"]
            ["8": "6" "28" "7" "29" "8" "30"] ["12": "9" "28" "10" "29" "11" "30"]
            ["16": "12" "28" "13" "29" "14" "30"] ["20": "15" "28" "16" "29" "17" "30"]
            ["24": "18" "28" "19" "29" "20" "30"] ["28": "21" "28" "22" "29" "23" "30"]);
    }
    rounds as f64 * 24.0 * 32.0
}

#[cfg(target_arch = "x86_64")]
#[target_feature(enable = "avx2,fma")]
fn load_fma_256(rounds: u64) -> f64 {
    let operands = Operands([0.0; 32]);
    let operands = &operands.0;
    // SAFETY: as above.
    unsafe {
        load_fma_loop!(rounds, operands, "ymm", "15"; "13" "14";
            ["0": "0" "13" "1" "14"] ["4": "2" "13" "3" "14"] ["8": "4" "13" "5" "14"]
            ["12": "6" "13" "7" "14"] ["16": "8" "13" "9" "14"] ["20": "10" "13" "11" "14"]);
    }
    rounds as f64 * 12.0 * 16.0
}

/// What a loop loads, within two lines.
#[cfg(target_arch = "x86_64")]
#[repr(C, align(64))]
struct Operands([f32; 32]);

type Line = [u64; 8];

/// The ways of reading; which one is fastest depends on the machine.
#[derive(Debug, Clone, Copy)]
enum Read {
    /// What the hardware's prefetcher likes best.
    OneStream,
    FourStreams,
    /// Four rows of a matrix side by side, then the next four.
    FourRows,
    /// Sixteen: what the linear does at one row.
    SixteenRows,
}

/// Reads `data` with the widest loads: narrow ones fill the core's window with fewer lines.
fn wide(read: Read, data: &[u64]) -> u64 {
    #[cfg(target_arch = "x86_64")]
    {
        #[target_feature(enable = "avx512f")]
        fn in_512(read: Read, data: &[u64]) -> u64 {
            run(read, data)
        }
        #[target_feature(enable = "avx2")]
        fn in_256(read: Read, data: &[u64]) -> u64 {
            run(read, data)
        }
        if is_x86_feature_detected!("avx512f") {
            // SAFETY: compiled for instructions that this machine has, as was just asked.
            return unsafe { in_512(read, data) };
        } else if is_x86_feature_detected!("avx2") {
            // SAFETY: as above.
            return unsafe { in_256(read, data) };
        }
    }
    run(read, data)
}

#[inline(always)]
fn run(read: Read, data: &[u64]) -> u64 {
    match read {
        Read::OneStream => fold(bytemuck::cast_slice(&data[..data.len() / 8 * 8])),
        Read::FourStreams => read_streams::<4>(data, data.len() / 32 * 8),
        Read::FourRows => read_rows::<4>(data),
        Read::SixteenRows => read_rows::<16>(data),
    }
}

/// `N` rows of a matrix side by side, then the next.
#[inline(always)]
fn read_rows<const N: usize>(data: &[u64]) -> u64 {
    let row = ROW_BYTES / 8;
    data.chunks_exact(N * row).map(|rows| read_streams::<N>(rows, row)).fold(0, |a, b| a ^ b)
}

/// `N` streams of `len` words each, one behind the other.
#[inline(always)]
fn read_streams<const N: usize>(data: &[u64], len: usize) -> u64 {
    let lines: &[Line] = bytemuck::cast_slice(&data[..N * len]);
    let length = len / 8;
    let mut sums = [[0u64; 8]; 4];
    for at in 0..length {
        for stream in 0..N {
            let line = &lines[stream * length + at];
            for lane in 0..8 {
                sums[stream % 4][lane] ^= line[lane];
            }
        }
    }
    sums.iter().flatten().fold(0, |a, b| a ^ b)
}

#[inline(always)]
fn fold(lines: &[Line]) -> u64 {
    let mut sums = [0u64; 8];
    for line in lines {
        for lane in 0..8 {
            sums[lane] ^= line[lane];
        }
    }
    sums.iter().fold(0, |a, b| a ^ b)
}

/// The middle of a few: an interrupted one says nothing about the cores.
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

/// The middle value; NaN of nothing.
pub fn median(values: impl Iterator<Item = f64>) -> f64 {
    let mut values: Vec<f64> = values.collect();
    values.sort_by(f64::total_cmp);
    match values.len() {
        0 => f64::NAN,
        len if len.is_multiple_of(2) => f64::midpoint(values[len / 2 - 1], values[len / 2]),
        len => values[len / 2],
    }
}
