//! Sums of the squared inputs of linears, against sums computed from the model's files.

use std::ops::ControlFlow;
use std::path::{Path, PathBuf};

use kernels::{PoolOptions, Variant};
use model::config::ModelConfig;
use model::ops::Op;
use model::source::gguf::GgufSource;
use model::source::{TensorId, TensorPart, WeightSource};
use planner::policy::{DefaultTiers, Policy, device_map};
use program::topology::MemoryId;
use workers::squared_inputs::{ObservedModel, SquaredInputs, squared_inputs};

fn fixture(name: &str) -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../tests/fixtures").join(name)
}

fn sums(source: &GgufSource, windows: &[Vec<u32>], threads: usize) -> SquaredInputs {
    let config = source.config();
    let tiers = DefaultTiers { kv: MemoryId::DRAM, prefill_hidden: MemoryId::DRAM };
    let map = device_map(&Policy::CpuOnly, config, true, tiers);
    let pool = PoolOptions::unpinned(threads);
    let observed =
        ObservedModel { config, source, map: &map, variant: Variant::best(), pool: &pool };
    squared_inputs(&observed, windows, &mut |_| ControlFlow::Continue(())).expect("computed")
}

fn windows(config: &ModelConfig) -> Vec<Vec<u32>> {
    let token = |index: usize| (index * 31 + 7) as u32 % config.vocab_size as u32;
    vec![(0..24).map(token).collect(), (50..60).map(token).collect()]
}

fn read(source: &GgufSource, id: TensorId) -> Vec<f32> {
    let (rows, columns) = source.shape(id).expect("a tensor");
    let mut out = vec![0.0; rows * columns];
    source.read_f32(id, 0, &mut out).expect("readable");
    out
}

fn matrix(op: Op) -> TensorId {
    TensorId::Layer { layer: 0, op, part: TensorPart::Matrix }
}

/// Returns the sums of the inputs of the first layer: embeddings after a norm.
fn expected(source: &GgufSource, windows: &[Vec<u32>]) -> Vec<f64> {
    let config = source.config();
    let embedding = read(source, TensorId::Embedding);
    let gain = read(source, TensorId::Layer { layer: 0, op: Op::Norm0, part: TensorPart::Gain });
    let hidden = config.hidden_size;
    let mut sums = vec![0.0; hidden];
    for token in windows.iter().flatten() {
        let row = &embedding[*token as usize * hidden..][..hidden];
        let square: f64 = row.iter().map(|value| f64::from(*value).powi(2)).sum();
        let factor = 1.0 / (square / hidden as f64 + f64::from(config.norm_eps)).sqrt();
        for ((sum, value), gain) in sums.iter_mut().zip(row).zip(&gain) {
            *sum += (f64::from(*value) * factor * f64::from(*gain)).powi(2);
        }
    }
    sums
}

#[test]
fn sums_are_those_of_the_inputs_of_all_windows() {
    let source = GgufSource::open(&fixture("qwen3_moe/model.gguf")).expect("a fixture");
    let windows = windows(source.config());
    let found = sums(&source, &windows, 2);
    for op in [Op::Q, Op::K, Op::V] {
        let [of_op] = found[&matrix(op)].as_slice() else { panic!("one matrix") };
        for (found, expected) in of_op.iter().zip(expected(&source, &windows)) {
            // Inputs are rounded to bf16.
            assert!((found / expected - 1.0).abs() < 5e-3, "{op:?}: {found} {expected}");
        }
    }
}

#[test]
fn experts_have_the_sums_of_their_own_rows() {
    let source = GgufSource::open(&fixture("qwen3_moe/model.gguf")).expect("a fixture");
    let config = source.config();
    let experts = config.experts.expect("experts");
    let windows = windows(config);
    let found = sums(&source, &windows, 2);
    let (gate, up) = (&found[&matrix(Op::ExpertGate)], &found[&matrix(Op::ExpertUp)]);
    assert_eq!((gate.len(), gate[0].len()), (experts.count, config.hidden_size));
    assert_eq!(gate, up);
    let down = &found[&matrix(Op::ExpertDown)];
    assert_eq!((down.len(), down[0].len()), (experts.count, experts.ffn_size));
    // An expert has inputs of its last linear if and only if it has rows, and not all have the
    // same.
    for (gate, down) in gate.iter().zip(down) {
        assert_eq!(gate.iter().any(|sum| *sum > 0.0), down.iter().any(|sum| *sum > 0.0));
    }
    assert!(gate.windows(2).any(|pair| pair[0] != pair[1]));
    // Normed inputs have a mean square of about the gain's: each row is counted once for each of
    // its experts.
    let gain = read(&source, TensorId::Layer { layer: 0, op: Op::Norm1, part: TensorPart::Gain });
    let rows = windows.iter().map(Vec::len).sum::<usize>() * experts.per_token;
    let relative = |column: usize| {
        let total: f64 = gate.iter().map(|sums| sums[column]).sum();
        total / f64::from(gain[column]).powi(2)
    };
    let total: f64 = (0..config.hidden_size).map(relative).sum();
    let mean = total / (config.hidden_size * rows) as f64;
    assert!((mean - 1.0).abs() < 0.02, "{mean}");
    assert!(!found.contains_key(&matrix(Op::Router)));
}

#[test]
fn threads_change_no_sum_and_a_window_can_be_the_last() {
    let source = GgufSource::open(&fixture("qwen3_moe/model.gguf")).expect("a fixture");
    let windows = windows(source.config());
    assert_eq!(sums(&source, &windows, 1), sums(&source, &windows, 3));
    let config = source.config();
    let tiers = DefaultTiers { kv: MemoryId::DRAM, prefill_hidden: MemoryId::DRAM };
    let map = device_map(&Policy::CpuOnly, config, true, tiers);
    let pool = PoolOptions::unpinned(1);
    let observed =
        ObservedModel { config, source: &source, map: &map, variant: Variant::best(), pool: &pool };
    let mut calls = 0;
    let ended = squared_inputs(&observed, &windows, &mut |done| {
        calls += done;
        ControlFlow::Break(())
    });
    assert_eq!((calls, ended.expect("computed")), (1, sums(&source, &windows[..1], 1)));
}
