//! Tests that no kernel reads or writes beyond an operand: in every call here all operands are
//! placed at forbidden pages, first with their start and then with their end, and results have the
//! same bits as in ordinary memory. Sizes are awkward.

use crate::common::records::{formats, random_records};
use crate::common::{Random, bits, poison, variants};
use crate::guarded::{Guarded, SIDES, Side, set_case};
use half::bf16;
use kernels::{Element, Kernels, Linear, LinearOut, LinearQuant, Variant, quant};
use model::quantized_format::{Bits, Grouped, KvRecordFormat};

/// Returns kernels of every variant that runs here, or can be emulated. One thread: the handler
/// knows the operands of the faulting thread.
fn all_kernels(test: &str) -> Vec<Kernels> {
    let native = Variant::available();
    let emulated = Variant::ALL.into_iter().filter(|variant| !native.contains(variant));
    let emulated = emulated.filter_map(|variant| crate::emulate::kernels(variant, 1));
    let native = native.iter().map(|&variant| crate::common::kernels(variant, 1));
    let all: Vec<Kernels> = native.chain(emulated).collect();
    for variant in Variant::ALL {
        if !all.iter().any(|kernels| kernels.variant() == variant) {
            println!("SKIP {test} ({}): neither here nor emulated", variant.name());
        }
    }
    all
}

#[derive(Debug, Clone, Copy)]
enum Out {
    Store,
    Relu,
    Gelu,
    SiluMul,
    GeluTanhMul,
    Limited,
    Clamped,
    TimesSilu,
    TimesSigmoid,
    AddTo,
    StoreF32,
}

const OUTS: [Out; 11] = [
    Out::Store,
    Out::Relu,
    Out::Gelu,
    Out::SiluMul,
    Out::AddTo,
    Out::StoreF32,
    Out::GeluTanhMul,
    Out::Limited,
    Out::Clamped,
    Out::TimesSilu,
    Out::TimesSigmoid,
];

/// Calls `run` with the output kind `out` on ordinary memory, then on guarded memory, and compares.
fn compare_outs<T: Element>(
    out: Out,
    (len, seed): (usize, u64),
    mut run: impl FnMut(Option<Side>, LinearOut<'_, T>),
) {
    let mut random = Random::new(seed);
    let (gate, residual): (Vec<T>, Vec<f32>) = (random.vector(len), random.vector(len));
    let mut typed = |side: Option<Side>, memory: &mut [T], gate: &[T]| {
        let target = match out {
            Out::Store => LinearOut::Store(memory),
            Out::Relu => LinearOut::Relu(memory),
            Out::Gelu => LinearOut::Gelu(memory),
            Out::GeluTanhMul => LinearOut::GeluTanhMul { gate, out: memory },
            Out::Limited => LinearOut::LimitedSiluMul { gate, out: memory, limit: 0.8 },
            Out::Clamped => {
                LinearOut::ClampedSwiGlu { gate, out: memory, alpha: 1.702, limit: 0.8 }
            }
            Out::TimesSilu => LinearOut::TimesSilu { x: gate, out: memory },
            Out::TimesSigmoid => LinearOut::TimesSigmoid { x: gate, out: memory },
            _ => LinearOut::SiluMul { gate, out: memory },
        };
        run(side, target);
    };
    if matches!(out, Out::AddTo | Out::StoreF32) {
        let mut floats = |side: Option<Side>, memory: &mut [f32]| {
            run(
                side,
                if matches!(out, Out::AddTo) {
                    LinearOut::AddScaled { out: memory, factor: 0.5 }
                } else {
                    LinearOut::StoreScaled { out: memory, factor: 0.5 }
                },
            );
        };
        let mut expected = residual.clone();
        floats(None, &mut expected);
        for side in SIDES {
            let mut memory = Guarded::new("out", side, &residual);
            floats(Some(side), memory.slice_mut());
            assert_eq!(bits(memory.slice()), bits(&expected), "{side:?} {out:?}");
        }
        return;
    }
    let mut expected = poison::<T>(len);
    typed(None, &mut expected, &gate);
    for side in SIDES {
        let mut memory = Guarded::new("out", side, &poison::<T>(len));
        let gate = Guarded::new("gate", side, &gate);
        typed(Some(side), memory.slice_mut(), gate.slice());
        assert_eq!(bits(memory.slice()), bits(&expected), "{side:?} {out:?}");
    }
}

fn check_linear<T: Element>(kernels: &Kernels, cases: &[(usize, usize, usize)]) {
    for (index, &(rows, n, k)) in cases.iter().enumerate() {
        let mut random = Random::new(index as u64);
        let (x, weight): (Vec<T>, Vec<T>) = (random.vector(rows * k), random.vector(n * k));
        let bias: Vec<f32> = random.vector(n);
        let out = OUTS[index % OUTS.len()];
        compare_outs::<T>(out, (rows * n, index as u64), |side, out_form| {
            let case = format!("linear {:?} {rows}x{n}x{k} {out:?}", kernels.variant());
            set_case(case);
            let call = |x: &[T], weight: &[T], bias: &[f32]| {
                let bias = (index % 3 > 0).then_some(bias);
                kernels.linear(Linear { rows, n, k, x, weight, bias, out: out_form });
            };
            match side {
                None => call(&x, &weight, &bias),
                Some(side) => {
                    let x = Guarded::new("x", side, &x);
                    let weight = Guarded::new("weight", side, &weight);
                    let bias = Guarded::new("bias", side, &bias);
                    call(x.slice(), weight.slice(), bias.slice());
                }
            }
        });
    }
}

/// Returns shapes of rows, outputs and inputs. Fewer if instructions may be emulated.
fn linear_cases(kernels: &Kernels) -> Vec<(usize, usize, usize)> {
    let native = kernels.variant().is_available();
    let sizes: &[usize] = if native {
        &[1, 2, 3, 15, 16, 17, 31, 32, 33, 47, 63, 64, 65, 127, 129]
    } else {
        &[1, 3, 16, 17, 31, 48, 63]
    };
    let mut cases = Vec::new();
    let rows: &[usize] = if native { &[1, 2, 3, 5, 13, 17, 33] } else { &[1, 3, 5, 17] };
    for (round, &rows) in rows.iter().enumerate() {
        for (offset, &n) in sizes.iter().enumerate() {
            for step in [0, 3] {
                cases.push((rows, n, sizes[(offset * 2 + round + step) % sizes.len()]));
            }
        }
        // More than a block of inputs.
        cases.push((rows, 19 + round, 512 + 29 * round));
    }
    cases
}

#[test]
fn linears_stay_within_their_operands() {
    for kernels in all_kernels("linears_stay_within_their_operands") {
        let cases = linear_cases(&kernels);
        check_linear::<bf16>(&kernels, &cases);
        if kernels.variant() == Variant::Avx512 {
            // Large enough for rows in lanes.
            check_linear::<bf16>(&kernels, &[(16, 2051, 2083), (32, 2049, 2048)]);
        }
        if kernels.variant() == Variant::Avx512Bf16 && kernels.variant().is_available() {
            // Large enough for several parallel streams.
            check_linear::<bf16>(&kernels, &[1, 2, 3, 4].map(|rows| (rows, 53, 4419)));
        }
        if kernels.variant().is_available() {
            check_linear::<f32>(&kernels, &cases);
        }
    }
}

fn check_gates_of_heads<T: Element>(kernels: &Kernels) {
    for (rows, n, k, head_dim) in [(1, 3, 17, 24), (5, 17, 31, 5), (3, 16, 64, 33)] {
        let mut random = Random::new(head_dim as u64);
        let (x, weight): (Vec<T>, Vec<T>) = (random.vector(rows * k), random.vector(n * k));
        let values: Vec<T> = random.vector(rows * n * head_dim);
        let run = |values: &[T], out: &mut [T]| {
            let out = LinearOut::TimesSigmoidOfHead { x: values, out, head_dim };
            let (x, weight) = (&x[..], &weight[..]);
            kernels.linear(Linear { rows, n, k, x, weight, bias: None, out });
        };
        let mut expected = poison::<T>(values.len());
        run(&values, &mut expected);
        for side in SIDES {
            set_case(format!("gates {:?} {rows}x{n}x{k} of {head_dim}", kernels.variant()));
            let mut out = Guarded::new("out", side, &poison::<T>(values.len()));
            let values = Guarded::new("values", side, &values);
            run(values.slice(), out.slice_mut());
            assert_eq!(bits(out.slice()), bits(&expected), "{side:?} {head_dim}");
        }
    }
}

#[test]
fn gates_of_heads_stay_within_their_operands() {
    for kernels in all_kernels("gates_of_heads_stay_within_their_operands") {
        check_gates_of_heads::<bf16>(&kernels);
        if kernels.variant().is_available() {
            check_gates_of_heads::<f32>(&kernels);
        }
    }
}

fn check_grouped<T: Element>(kernels: &Kernels, cases: &[(usize, usize, usize)]) {
    let formats = formats();
    for (index, &(rows, n, k)) in cases.iter().enumerate() {
        let mut random = Random::new(index as u64);
        let format = formats[index % formats.len()];
        let x: Vec<T> = random.vector(rows * k);
        let weight = random_records(&mut random, format, n, k);
        let out = OUTS[index / 2 % OUTS.len()];
        compare_outs::<T>(out, (rows * n, index as u64), |side, out_form| {
            let variant = kernels.variant();
            set_case(format!("grouped linear {variant:?} {rows}x{n}x{k} {format:?} {out:?}"));
            let call = |x: &[T], records: &[u8]| {
                let (bias, out) = (None, out_form);
                kernels.linear_grouped(LinearQuant { rows, n, k, x, format, records, bias, out });
            };
            match side {
                None => call(&x, &weight),
                Some(side) => {
                    let x = Guarded::new("x", side, &x);
                    let weight = Guarded::new("records", side, &weight);
                    call(x.slice(), weight.slice());
                }
            }
        });
    }
}

#[test]
fn grouped_linears_stay_within_their_operands() {
    for kernels in all_kernels("grouped_linears_stay_within_their_operands") {
        let cases = linear_cases(&kernels);
        if kernels.variant().is_available() {
            check_grouped::<bf16>(&kernels, &cases);
            check_grouped::<f32>(&kernels, &cases);
        } else {
            let some: Vec<_> = cases.into_iter().step_by(3).collect();
            check_grouped::<bf16>(&kernels, &some);
        }
    }
}

/// Calls `run` with an output of `len` bytes on ordinary and on guarded memory, and compares.
fn compare_bytes(len: usize, mut run: impl FnMut(Option<Side>, &mut [u8])) {
    let mut expected = vec![0xaa; len];
    run(None, &mut expected);
    for side in SIDES {
        let mut out = Guarded::new("out", side, &vec![0x55u8; len]);
        run(Some(side), out.slice_mut());
        assert_eq!(out.slice(), expected, "{side:?}");
    }
}

fn check_formats<T: Element>(variant: Variant) {
    let mut random = Random::new(6);
    for (n, k) in [(1, 1), (3, 63), (16, 64), (17, 65), (33, 200)] {
        set_case(format!("quantise {variant:?} {n}x{k}"));
        let weights: Vec<T> = random.vector(n * k);
        compare_bytes(Grouped::W4.size_bytes(n, k), |side, out| {
            let run = |weights: &[T], out| quant::quantise(variant, Grouped::W4, weights, k, out);
            match side {
                None => run(&weights, out),
                Some(side) => run(Guarded::new("weights", side, &weights).slice(), out),
            }
        });
    }
    for (positions, head_dim) in [(1, 2), (3, 30), (2, 64), (5, 66), (3, 128), (1, 98)] {
        set_case(format!("quantise_kv {variant:?} {positions}x{head_dim}"));
        let x: Vec<T> = random.vector(positions * head_dim);
        for format in KvRecordFormat::ALL {
            let record = format.position_bytes(head_dim).expect("an even head");
            compare_bytes(positions * record, |side, out| {
                let run = |x: &[T], out| quant::quantise_kv(variant, format, x, head_dim, out);
                match side {
                    None => run(&x, out),
                    Some(side) => run(Guarded::new("x", side, &x).slice(), out),
                }
            });
        }
    }
}

#[test]
fn quantisers_and_widening_stay_within_their_operands() {
    for variant in variants("quantisers_and_widening_stay_within_their_operands") {
        check_formats::<bf16>(variant);
        check_formats::<f32>(variant);
        for format in formats().into_iter().filter(|format| format.bits != Bits::Eight) {
            set_case(format!("widen {variant:?} {format:?}"));
            let narrow = random_records(&mut Random::new(7), format, 33, 130);
            compare_bytes(format.widened().size_bytes(33, 130), |side, out| match side {
                None => quant::widen(variant, format, 130, &narrow, out),
                Some(side) => {
                    let narrow = Guarded::new("from", side, &narrow);
                    quant::widen(variant, format, 130, narrow.slice(), out);
                }
            });
        }
    }
}

#[test]
fn sampling_stays_within_the_logits() {
    let mut scratch = kernels::SampleScratch::new(200);
    let all = kernels::Sampling::GREEDY;
    let sampling =
        kernels::Sampling { temperature: 0.8, top_p: 0.9, top_k: 50, min_p: 0.001, ..all };
    let draw = kernels::SampleDraw { sampling, random: 0.4, ..kernels::SampleDraw::GREEDY };
    for vocab in [1usize, 2, 15, 16, 17, 33, 63, 65, 127, 200] {
        set_case(format!("sampling from {vocab}"));
        let logits: Vec<f32> = Random::new(vocab as u64).vector(vocab);
        let best = kernels::argmax(&logits);
        let drawn = kernels::sample(&logits, draw, &mut scratch);
        for side in SIDES {
            let logits = Guarded::new("logits", side, &logits);
            assert_eq!(kernels::argmax(logits.slice()), best);
            let again = kernels::sample(logits.slice(), draw, &mut scratch);
            assert_eq!(again, drawn);
            let mut actual = [kernels::Logprob::NONE; 4];
            kernels::logprobs(logits.slice(), best, &mut actual);
            assert_eq!(actual[0], actual[1]);
        }
    }
}

#[test]
fn a_touch_beyond_an_operand_ends_the_process_and_names_it() {
    const CHILD: &str = "TANDEM_TEST_GUARD";
    let test = "guard_pages::a_touch_beyond_an_operand_ends_the_process_and_names_it";
    let touch = |side: Side| {
        let operand = Guarded::new("weight", side, &[1u8; 100]);
        set_case("case 7".to_owned());
        let first = operand.slice().as_ptr();
        let beyond =
            if side == Side::Start { first.wrapping_sub(1) } else { first.wrapping_add(100) };
        // SAFETY: none: this process exists to die of the access.
        unsafe { std::ptr::read_volatile(beyond) }
    };
    match std::env::var(CHILD).as_deref() {
        Ok("start") => println!("{}", touch(Side::Start)),
        Ok(_) => println!("{}", touch(Side::End)),
        Err(_) => {}
    }
    for (side, words) in [("start", "before its start"), ("end", "behind its end")] {
        use std::os::unix::process::ExitStatusExt;
        let program = std::env::current_exe().expect("this program has a name");
        let output = std::process::Command::new(program)
            .args(["--exact", test, "--nocapture"])
            .env(CHILD, side)
            .output()
            .expect("this program starts again");
        assert_eq!(output.status.signal(), Some(libc::SIGSEGV));
        let said = String::from_utf8_lossy(&output.stderr);
        let expected = format!("guard page touched: operand weight, {words}, case 7");
        assert!(said.contains(&expected), "{said}");
    }
}
