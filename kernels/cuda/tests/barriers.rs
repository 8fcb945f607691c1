//! Tests that every barrier of every kernel is needed and that its absence is detected: each is
//! removed in turn, and some order of threads must then give other bits or an error. Kernels with
//! all their barriers give the same bits in every order.

mod batch;
#[path = "../../tests/common/mod.rs"]
mod common;
mod device;

use batch::{Batch, Four, batch, shape};
use common::records::random_records;
use common::{Random, bits};
use cuda_kernels::{
    DeviceExpertShape, DeviceLinear, DeviceLinearOut, DeviceNorm, DeviceWeight, KernelLaunch,
    add_rms_norm, argmax, attention_decode, attention_decode_scratch_bytes, attention_prefill,
    group_experts, head_norm, linear, scores, softmax, weighted_values,
};
use cuda_shim::{LaunchFault, barrier_sites, drop_barrier, set_order};
use device::{Half, Output, dtype, of, try_run};
use kernels::{Element, RoutedExpert};
use model::quantized_format::Grouped;

/// Runs one kernel's launches, and returns the last one's output.
type Run = Box<dyn Fn() -> Result<Vec<u32>, LaunchFault>>;

const ORDERS: [u32; 8] = [0, 1, 2, 3, 4, 5, 6, 7];

/// Returns one launch whose f32 output has `len` elements.
fn one(len: usize, launch: impl Fn(u64) -> KernelLaunch + 'static) -> Run {
    Box::new(move || {
        let mut out = Output::<f32>::new(len);
        try_run(&[launch(out.pointer())])?;
        Ok(bits(&out.take()))
    })
}

fn norm() -> Run {
    let mut random = Random::new(1);
    let (x, gain, bias) = (random.vector::<f32>(700), random.vector(350), random.vector(350));
    one(700, move |out| {
        let (gain, bias) = (of::<f32>(&gain), of::<f32>(&bias));
        let (x, eps, row_index) = (of(&x), 1e-5, 0);
        let operands = DeviceNorm { rows: 2, hidden: 350, x, gain, bias, eps, row_index };
        cuda_kernels::norm(dtype::<f32>(), &operands, out)
    })
}

/// Returns norms of wide rows in place, or of rows that are added.
fn rms(in_place: bool) -> Run {
    let mut random = Random::new(7);
    let (x, gain) = (random.vector::<f32>(1400), random.vector::<f32>(700));
    Box::new(move || {
        let mut out = Output::holding(&x);
        let (dtype, gain, to) = (dtype::<f32>(), of(&gain), out.pointer());
        try_run(&[match in_place {
            true => head_norm(dtype, 2, 1, 700, gain, 1e-5, to),
            false => add_rms_norm(dtype, 2, 700, of(&x), gain, 1e-5, to),
        }])?;
        Ok(bits(&out.take()))
    })
}

fn largest() -> Run {
    let mut random = Random::new(2);
    let logits = random.vector::<f32>(2000);
    one(4, move |out| argmax(4, 500, of(&logits), out))
}

/// Returns the grouping of a routing's places by expert.
fn places() -> Run {
    let shape = DeviceExpertShape { rows: 300, top_k: 2, experts: 5 };
    let mut random = Random::new(9);
    let mut routed = Vec::new();
    for _ in 0..shape.rows {
        let first = random.below(4) as u32;
        routed.extend([first, first + 1].map(|expert| RoutedExpert { expert, weight: 0.5 }));
    }
    one(606, move |out| group_experts(shape, of(&routed), out, out + 4 * 6))
}

fn product<T: Element>(rows: usize, n: usize, k: usize) -> Run {
    let mut random = Random::new(3);
    let (x, weight) = (random.vector::<T>(rows * k), random.vector::<T>(n * k));
    one(rows * n, move |out| {
        let (weight, out) = (DeviceWeight::Plain(of(&weight)), DeviceLinearOut::StoreF32(out));
        let (rows, n, k) = (rows as u32, n as u32, k as u32);
        linear(dtype::<T>(), &DeviceLinear { rows, n, k, x: of(&x), weight, bias: 0, out })
    })
}

/// Returns a product over records with arbitrary integers and small ranges.
fn grouped_product(format: Grouped, (rows, n, k): (usize, usize, usize)) -> Run {
    let mut random = Random::new(10);
    let x = random.vector::<Half>(rows * k);
    let records = random_records(&mut random, format, n, k);
    one(rows * n, move |out| {
        let weight = DeviceWeight::Grouped(format, of(&records));
        let (rows, n, k) = (rows as u32, n as u32, k as u32);
        let out = DeviceLinearOut::StoreF32(out);
        linear(dtype::<Half>(), &DeviceLinear { rows, n, k, x: of(&x), weight, bias: 0, out })
    })
}

fn decode_batch() -> Batch<f32> {
    batch(4, shape(11, 1, 24), &[(1, 300), (1, 40)])
}

fn attention(which: &'static str) -> Run {
    let batch = if which == "prefill" {
        batch(5, shape(4, 2, 24), &[(37, 0), (20, 45)])
    } else {
        decode_batch()
    };
    let weights: Vec<f32> = Random::new(6).vector(batch.scores_len);
    Box::new(move || {
        let units = batch.listed(0);
        let (dtype, shape, q) = (dtype::<f32>(), &batch.shape, of(&batch.q));
        let len = match which {
            "scores" | "softmax" => batch.scores_len,
            _ => batch.out_len(),
        };
        let mut out = Output::<f32>::new(len);
        let to = out.pointer();
        let splits = attention_decode_scratch_bytes(shape, units.count, units.positions_max);
        let mut scratch = Output::<f32>::new(splits as usize / 4);
        let (k, v) = (batch.k(), batch.v());
        match which {
            "scores" => try_run(&[scores(dtype, shape, &units, q, k, to)])?,
            "softmax" => try_run(&[softmax(shape, &units, of(&weights), 0, to)])?,
            "values" => {
                try_run(&[weighted_values(dtype, shape, &units, of(&weights), v, to)])?;
            }
            "prefill" => try_run(&[attention_prefill(dtype, shape, &units, q, k, v, 0, to)])?,
            _ => {
                let scratch = scratch.pointer();
                let [part, whole] = attention_decode(dtype, shape, &units, q, k, v, 0, to, scratch);
                // The second has no barrier, and only the sites of the last launch are reported.
                let result = try_run(&[part]);
                let sites = barrier_sites();
                try_run(&[whole])?;
                assert!(barrier_sites().is_empty(), "combining has no barrier");
                result?;
                SITES.with_borrow_mut(|kept| *kept = sites);
            }
        }
        Ok(bits(&out.take()))
    })
}

fn matrix_attention(four: bool) -> Run {
    let batch = batch::<Half>(8, shape(2, 1, 64), &[(90, 50)]);
    let k_records = Four::of(&batch, &batch.k_fresh, &batch.k_cache);
    let v_records = Four::of(&batch, &batch.v_fresh, &batch.v_cache);
    Box::new(move || {
        let mut out = Output::<Half>::new(batch.out_len());
        let (q, to) = (of(&batch.q), out.pointer());
        let (units, shape) = (batch.listed(0), &batch.shape);
        let (k, v) =
            if four { (k_records.operand(), v_records.operand()) } else { (batch.k(), batch.v()) };
        try_run(&[attention_prefill(dtype::<Half>(), shape, &units, q, k, v, 0, to)])?;
        Ok(bits(&out.take()))
    })
}

/// Returns the first of decode attention's launches on tensor cores; its output is the scratch.
fn decode_on_matrices(four: bool) -> Run {
    let batch = batch::<Half>(4, shape(11, 1, 64), &[(1, 300), (1, 40)]);
    let k_records = Four::of(&batch, &batch.k_fresh, &batch.k_cache);
    let v_records = Four::of(&batch, &batch.v_fresh, &batch.v_cache);
    Box::new(move || {
        let (dtype, shape, q) = (dtype::<Half>(), &batch.shape, of(&batch.q));
        let units = batch.listed(0);
        let splits = attention_decode_scratch_bytes(shape, units.count, units.positions_max);
        let mut scratch = Output::<f32>::new(splits as usize / 4);
        let to = scratch.pointer();
        let (k, v) = match four {
            true => (k_records.operand(), v_records.operand()),
            false => (batch.k(), batch.v()),
        };
        let [part, _] = attention_decode(dtype, shape, &units, q, k, v, 0, 0, to);
        try_run(&[part])?;
        Ok(bits(&scratch.take()))
    })
}

thread_local! {
    /// Barriers of the first of two launches.
    static SITES: std::cell::RefCell<Vec<u32>> = const { std::cell::RefCell::new(Vec::new()) };
}

/// Checks one kernel, which has `barriers` barriers.
fn check(name: &str, barriers: usize, run: &Run) {
    SITES.with_borrow_mut(Vec::clear);
    set_order(0);
    let expected = run().expect("the kernel runs");
    let mut sites = barrier_sites();
    if sites.is_empty() {
        sites = SITES.with_borrow(Clone::clone);
    }
    assert_eq!(sites.len(), barriers, "{name}: barriers in the sources");
    for order in ORDERS {
        set_order(order);
        assert_eq!(run(), Ok(expected.clone()), "{name}: order {order}");
    }
    for (place, site) in sites.into_iter().enumerate() {
        drop_barrier(Some(site));
        let seen = ORDERS.into_iter().any(|order| {
            set_order(order);
            run() != Ok(expected.clone())
        });
        drop_barrier(None);
        assert!(seen, "{name}: barrier {place} can be removed and nothing shows it");
    }
}

#[test]
fn barriers_of_rows() {
    check("norm", 1, &norm());
    check("norm in place", 1, &rms(true));
    check("added norm", 1, &rms(false));
    check("argmax", 1, &largest());
    check("places by expert", 1, &places());
}

#[test]
fn barriers_of_linears() {
    check("small", 2, &product::<Half>(3, 16, 7700));
    check("small, 32 rows", 2, &product::<Half>(20, 32, 4200));
    check("f32", 2, &product::<f32>(17, 70, 100));
    // The last tile is stored in the memory in which the results are transposed.
    check("wide, 64 rows", 3, &product::<Half>(40, 130, 256));
    check("wide, 4 bits", 4, &grouped_product(Grouped::W4, (60, 40, 320)));
    check("stored", 4, &grouped_product(Grouped::GGUF_Q4_K, (3, 32, 7700)));
    check("stored, 32 rows", 4, &grouped_product(Grouped::GGUF_Q6_K, (20, 16, 4200)));
    check("stored, 64 rows", 4, &grouped_product(Grouped::GGUF_MXFP4, (40, 16, 2500)));
    check("wide, 128 rows", 3, &product::<Half>(130, 40, 160));
}

#[test]
fn barriers_of_attention() {
    check("scores", 2, &attention("scores"));
    check("softmax", 2, &attention("softmax"));
    check("weighted values", 2, &attention("values"));
    check("decode", 5, &attention("decode"));
    check("decode over 4 bits", 4, &decode_on_matrices(true));
    check("decode of shared heads", 3, &decode_on_matrices(false));
    check("prefill", 4, &attention("prefill"));
    check("prefill on tensor cores", 4, &matrix_attention(false));
    check("prefill over 4 bits on tensor cores", 4, &matrix_attention(true));
}
