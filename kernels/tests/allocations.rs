//! No kernel call allocates, on any thread: workers promise it from ready to drain.

mod common;

use std::alloc::{GlobalAlloc, Layout, System};

use common::{Random, kernels, variants};
use half::bf16;
use kernels::{
    AttentionShape, Draw, Kernels, Linear, LinearOut, Logprob, RopeTables, SampleScratch, Sampling,
    Unit,
};
use shm::sync::{AtomicU64, Ordering};

/// The system's allocator, counting.
struct Counting;

static ALLOCATIONS: AtomicU64 = AtomicU64::new(0);

// SAFETY: every call is passed on unchanged to the system's allocator.
unsafe impl GlobalAlloc for Counting {
    unsafe fn alloc(&self, layout: Layout) -> *mut u8 {
        ALLOCATIONS.fetch_add(1, Ordering::Relaxed);
        // SAFETY: the caller's promise is the callee's.
        unsafe { System.alloc(layout) }
    }

    unsafe fn dealloc(&self, pointer: *mut u8, layout: Layout) {
        // SAFETY: the caller's promise is the callee's.
        unsafe { System.dealloc(pointer, layout) }
    }

    unsafe fn realloc(&self, pointer: *mut u8, layout: Layout, size: usize) -> *mut u8 {
        ALLOCATIONS.fetch_add(1, Ordering::Relaxed);
        // SAFETY: the caller's promise is the callee's.
        unsafe { System.realloc(pointer, layout, size) }
    }
}

#[global_allocator]
static ALLOCATOR: Counting = Counting;

struct Buffers {
    residual: Vec<f32>,
    gain: Vec<f32>,
    x: Vec<bf16>,
    weight: Vec<bf16>,
    out: Vec<bf16>,
    logits: Vec<f32>,
    scores: Vec<f32>,
    probabilities: Vec<f32>,
    cache: Vec<bf16>,
    scratch: Vec<SampleScratch>,
}

const ROWS: usize = 200;
const HIDDEN: usize = 512;
const HEAD_DIM: usize = 64;

/// One call of every entry point, large enough that all threads of the pool take part.
fn every_call(kernels: &Kernels, buffers: &mut Buffers) {
    let Buffers { residual, gain, x, weight, out, logits, scores, probabilities, cache, scratch } =
        buffers;
    let tokens = [3u32; ROWS];
    kernels.embed(&tokens, weight, Some((&tokens, weight, 2)), 2.0, residual);
    kernels.rms_norm(ROWS, HIDDEN, residual, gain, 1e-5, None, x);
    kernels.layer_norm(ROWS, HIDDEN, residual, gain, gain, 1e-5, None, x);
    kernels.add_rms_norm(ROWS, x, gain, 1e-5, residual);
    for kind in 0..7 {
        let target = match kind {
            0 => LinearOut::Store(&mut out[..]),
            1 => LinearOut::Relu(&mut out[..]),
            2 => LinearOut::Gelu(&mut out[..]),
            3 => LinearOut::SiluMul { gate: x, out: &mut out[..] },
            4 => LinearOut::GeluTanhMul { gate: x, out: &mut out[..] },
            5 => LinearOut::AddScaled { out: residual, factor: 0.1 },
            _ => LinearOut::StoreF32(&mut logits[..]),
        };
        let (rows, n, k) = (ROWS, HIDDEN, HIDDEN);
        kernels.linear(Linear { rows, n, k, x, weight, bias: Some(gain), out: target });
    }
    let heads = HIDDEN / HEAD_DIM;
    let frequencies = [0.5f32; HEAD_DIM / 2];
    kernels.head_norm((ROWS, heads), &gain[..HEAD_DIM], 1e-6, out);
    let tables = RopeTables {
        rotary_dim: HEAD_DIM / 2,
        table_of_row: Some(&[1; ROWS]),
        ..RopeTables::whole(&frequencies)
    };
    kernels.rope(ROWS, heads, HEAD_DIM, &tokens, &tables, out);
    let shape = AttentionShape { heads, kv_heads: heads, head_dim: HEAD_DIM, scale: 0.1 };
    let units: [Unit; HIDDEN / HEAD_DIM] = std::array::from_fn(|head| Unit {
        row0: 0,
        rows: ROWS as u32,
        past: 10,
        shared_row: None,
        kv_head: head as u32,
        cache_offset: head * 300 * HEAD_DIM,
        scores_offset: head * ROWS * (ROWS + 10),
    });
    kernels.scores(&shape, &units, x, x, &*cache, scores);
    kernels.softmax(&shape, &units, scores, probabilities);
    kernels.weighted_values(&shape, &units, probabilities, x, &*cache, &mut *out);
    kernels.attention(&shape, &units, x, x, x, &*cache, &*cache, out);
    kernels.append(&shape, &units, x, cache);
    let random = kernels::random_unit(1, 2, 3);
    let sampling = Sampling { temperature: 0.7, top_p: 0.9, top_k: 40, min_p: 0.01 };
    let draw = Draw { sampling, random, masked: true };
    let masks = [0xffff_fff0; ROWS * HIDDEN / 32];
    kernels.sample_rows(logits, &[draw; ROWS], &masks, scratch, &mut [0; ROWS]);
    kernels.logprob_rows(logits, &[0; ROWS], &[3; ROWS], &mut [Logprob::NONE; 3 * ROWS]);
}

#[test]
fn no_call_allocates_after_the_kernels_are_built() {
    let mut random = Random::new(12);
    let heads = HIDDEN / HEAD_DIM;
    let mut buffers = Buffers {
        residual: random.vector(ROWS * HIDDEN),
        gain: random.vector(HIDDEN),
        x: random.vector(ROWS * HIDDEN),
        weight: random.vector(HIDDEN * HIDDEN),
        out: random.vector(ROWS * HIDDEN),
        logits: random.vector(ROWS * HIDDEN),
        scores: random.vector(heads * ROWS * (ROWS + 10)),
        probabilities: random.vector(heads * ROWS * (ROWS + 10)),
        cache: random.vector(heads * 300 * HEAD_DIM),
        scratch: (0..3).map(|_| SampleScratch::new(HIDDEN)).collect(),
    };
    for variant in variants("no_call_allocates_after_the_kernels_are_built") {
        let kernels = kernels(variant, 3);
        // Spinning threads are given small work too, and then fall asleep.
        kernels.set_spin(std::time::Duration::from_micros(20));
        let before = ALLOCATIONS.load(Ordering::Relaxed);
        for _ in 0..3 {
            every_call(&kernels, &mut buffers);
        }
        let allocations = ALLOCATIONS.load(Ordering::Relaxed) - before;
        assert_eq!(allocations, 0, "{variant:?}");
    }
}
