//! A case that is ready to be called repeatedly: operands in memory, weights and caches in
//! rotation, so that every call finds them in DRAM like those of a model larger than the caches.

use std::time::{Duration, Instant};

use bytemuck::{Pod, Zeroable};
use half::bf16;
use kernels::{
    AttentionShape, AttentionUnit, Element, Kernels, KvCacheSlice, Linear, LinearOut, LinearQuant,
    ScratchLimits, Variant,
};
use model::quantized_format::{Grouped, KvRecordFormat, kv4_position_bytes};
use shm::Mapping;

use crate::cases::{Case, Format, Work};

/// Minimum bytes of weights and caches together.
const ROTATION_BYTES: usize = 1280 << 20;
/// Duration for which idle threads poll for the next operation, the same as in workers.
const SPIN: Duration = Duration::from_micros(100);
/// Calls are repeated until a sample takes this long.
const SAMPLE_S: f64 = 0.05;

/// Memory with the alignment at which loaders place weights.
#[derive(Debug, Clone, Copy, Pod, Zeroable)]
#[repr(C, align(64))]
pub struct Line([u8; 64]);

/// Memory that all cases take their weights and caches from, mapped in the same way as a worker's:
/// seeded small numbers whose bytes are ordinary values both as bf16 and as f32.
#[derive(Debug)]
pub struct Memory(Mapping);

impl Memory {
    pub fn new() -> Memory {
        let mut bits = 0x9e37_79b9_7f4a_7c15u64;
        let mut line = || {
            let mut line = [0u8; 64];
            for word in line.chunks_exact_mut(2) {
                bits = bits.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1);
                let value = (bits >> 40) as f32 / (1u64 << 24) as f32 - 0.5;
                word.copy_from_slice(&bf16::from_f32(value / 16.0).to_bits().to_ne_bytes());
            }
            Line(line)
        };
        let seeded: Vec<Line> = (0..1 << 16).map(|_| line()).collect();
        let mapping = Mapping::private(ROTATION_BYTES).expect("a machine to measure has memory");
        // SAFETY: no other code has the mapping yet.
        let lines = unsafe { mapping.slice_mut::<Line>(0, ROTATION_BYTES / 64) };
        for (index, line) in lines.iter_mut().enumerate() {
            *line = seeded[index % seeded.len()];
        }
        Memory(mapping)
    }

    pub fn words(&self) -> &[u64] {
        self.elements()
    }

    fn elements<T: Pod>(&self) -> &[T] {
        // SAFETY: the memory is not written after `new`.
        unsafe { self.0.slice(0, ROTATION_BYTES / size_of::<T>()) }
    }
}

/// One timed sample of a case.
#[derive(Debug, Clone, Copy)]
pub struct Sample {
    /// Seconds of one call.
    pub seconds: f64,
}

/// A case with its operands.
pub struct Subject<'a> {
    call: Box<dyn FnMut() + 'a>,
    /// Bytes of weights, or of K and V, that one call must read.
    pub bytes: f64,
    /// Multiplications and additions of one call.
    pub flops: f64,
    calls: usize,
}

impl<'a> Subject<'a> {
    /// # Errors
    /// If the kernels' threads do not start.
    pub fn new(
        case: &Case,
        variant: Variant,
        threads: usize,
        memory: &'a Memory,
    ) -> Result<Subject<'a>, std::io::Error> {
        let (call, bytes, flops) = match (case.format, case.work) {
            (Format::W4, Work::Linear { n, k, rows }) => {
                grouped(n, k, rows, variant, threads, memory)?
            }
            (Format::F32, _) => operands::<f32>(case, variant, threads, memory)?,
            _ => operands::<bf16>(case, variant, threads, memory)?,
        };
        let mut subject = Subject { call, bytes, flops, calls: 1 };
        // The first calls warm up pages and threads and determine the number of calls per sample.
        (subject.call)();
        let begin = Instant::now();
        (subject.call)();
        subject.calls = (SAMPLE_S / begin.elapsed().as_secs_f64()).ceil().clamp(1.0, 1e5) as usize;
        Ok(subject)
    }

    pub fn sample(&mut self) -> Sample {
        let begin = Instant::now();
        for _ in 0..self.calls {
            (self.call)();
        }
        Sample { seconds: begin.elapsed().as_secs_f64() / self.calls as f64 }
    }
}

type Operands<'a> = (Box<dyn FnMut() + 'a>, f64, f64);

fn operands<'a, T: Element>(
    case: &Case,
    variant: Variant,
    threads: usize,
    memory: &'a Memory,
) -> Result<Operands<'a>, std::io::Error> {
    match case.work {
        Work::Linear { n, k, rows } => linear::<T>(n, k, rows, variant, threads, memory),
        Work::Decode { .. } | Work::Prefill { .. } => {
            attention::<T>(case, variant, threads, memory)
        }
    }
}

fn linear<T: Element>(
    n: usize,
    k: usize,
    rows: usize,
    variant: Variant,
    threads: usize,
    memory: &Memory,
) -> Result<Operands<'_>, std::io::Error> {
    let limits = ScratchLimits { rows, linear_inputs: k, positions: 1, group: 1, head_dim: 1 };
    let kernels = Kernels::new(variant, threads, limits)?;
    kernels.set_spin(SPIN);
    let x: Vec<T> = (0..rows * k).map(|i| T::from_f32((i % 31) as f32 / 31.0 - 0.5)).collect();
    let mut out = vec![T::from_f32(0.0); rows * n];
    let mut weights = memory.elements::<T>().chunks_exact(n * k).cycle();
    let call = move || {
        let weight = weights.next().expect("the memory holds at least one weight");
        let out = LinearOut::Store(&mut out[..]);
        kernels.linear(Linear { rows, n, k, x: &x, weight, bias: None, out });
    };
    let flops = 2.0 * (rows * n * k) as f64;
    Ok((Box::new(call), (n * k * size_of::<T>()) as f64, flops))
}

fn grouped(
    n: usize,
    k: usize,
    rows: usize,
    variant: Variant,
    threads: usize,
    memory: &Memory,
) -> Result<Operands<'_>, std::io::Error> {
    let limits = ScratchLimits { rows, linear_inputs: k, positions: 1, group: 1, head_dim: 1 };
    let kernels = Kernels::new(variant, threads, limits)?;
    kernels.set_spin(SPIN);
    let format = Grouped::W4;
    let size_bytes = format.size_bytes(n, k);
    let x: Vec<bf16> =
        (0..rows * k).map(|i| bf16::from_f32((i % 31) as f32 / 31.0 - 0.5)).collect();
    let mut out = vec![bf16::ZERO; rows * n];
    // The seeded bytes are ordinary numbers also when read as the f16 scales and minimums of
    // records.
    let mut weights = memory.elements::<u8>().chunks_exact(size_bytes).cycle();
    let call = move || {
        let records = weights.next().expect("the memory holds at least one weight");
        let out = LinearOut::Store(&mut out[..]);
        kernels.linear_grouped(LinearQuant { rows, n, k, x: &x, format, records, bias: None, out });
    };
    Ok((Box::new(call), size_bytes as f64, 2.0 * (rows * n * k) as f64))
}

fn attention<'a, T: Element>(
    case: &Case,
    variant: Variant,
    threads: usize,
    memory: &'a Memory,
) -> Result<Operands<'a>, std::io::Error> {
    let (heads, kv_heads, head_dim, rows) = match case.work {
        Work::Decode { heads, kv_heads, head_dim, .. } => (heads, kv_heads, head_dim, 1),
        Work::Prefill { heads, kv_heads, head_dim, rows, .. } => (heads, kv_heads, head_dim, rows),
        Work::Linear { .. } => unreachable!("only called for attention"),
    };
    let scale = (head_dim as f32).powf(-0.5);
    let shape = AttentionShape { heads, kv_heads, head_dim, scale, window: None };
    let cached = case.cached();
    let all_rows = cached.len() * rows;
    let limits = ScratchLimits {
        rows: all_rows,
        linear_inputs: 1,
        positions: cached.iter().max().map_or(0, |most| most + rows),
        group: shape.group(),
        head_dim,
    };
    let kernels = Kernels::new(variant, threads, limits)?;
    kernels.set_spin(SPIN);
    let mut units = Vec::new();
    let mut cache_len = 0;
    for (sequence, &past) in cached.iter().enumerate() {
        for kv_head in 0..kv_heads {
            units.push(AttentionUnit {
                row0: (sequence * rows) as u32,
                rows: rows as u32,
                past: past as u32,
                shared_row: None,
                kv_head: kv_head as u32,
                cache_offset: cache_len,
                cache_positions: 0,
                first_page: 0,
                scores_offset: 0,
            });
            cache_len += past * head_dim;
        }
    }
    // Positions that a row sees in the cache and among the rows before it.
    let seen: usize = cached.iter().map(|past| past * rows + rows * (rows - 1) / 2).sum();
    let value = |i: usize| T::from_f32((i % 31) as f32 / 31.0 - 0.5);
    let q: Vec<T> = (0..all_rows * heads * head_dim).map(value).collect();
    let fresh: Vec<T> = (0..all_rows * kv_heads * head_dim).map(value).collect();
    let mut out = q.clone();
    let four = case.format == Format::Kv4;
    let record_bytes = kv4_position_bytes(head_dim).expect("an even head");
    let cache_bytes =
        if four { cache_len / head_dim * record_bytes } else { cache_len * size_of::<T>() };
    // The seeded bytes are also ordinary numbers as f16 scales and minimums of records.
    let mut caches = memory.elements::<u8>().chunks_exact(2 * cache_bytes).cycle();
    let view = move |bytes: &'a [u8]| -> KvCacheSlice<'a, T> {
        if four {
            KvCacheSlice::Records(KvRecordFormat::Four, bytes)
        } else {
            KvCacheSlice::Plain(bytemuck::cast_slice(bytes))
        }
    };
    let call = move || {
        let cache = caches.next().expect("the memory holds at least one cache");
        let (keys, values) = cache.split_at(cache_bytes);
        let (keys, values) = (view(keys), view(values));
        kernels.attention(&shape, &units, &q, &fresh, &fresh, keys, values, None, &mut out);
    };
    let flops = 4.0 * (seen * heads * head_dim) as f64;
    Ok((Box::new(call), 2.0 * cache_bytes as f64, flops))
}
