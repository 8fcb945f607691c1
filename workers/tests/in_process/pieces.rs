//! Linears split between the devices by their output rows: wherever the boundary is, the bits are
//! those of the run on the CPU alone.

use crate::common::placed::{cpu_only, run, shape, two_split};
use crate::common::{llama, opt};
use model::config::{Dtype, ModelConfig};
use model::quantized_format::{Grouped, WeightFormat};
use planner::split::{Split, parse_split};
use program::compile::{CompileError, compile};
use program::formats::WeightFormats;
use program::map::{ChunkOrder, Chunking, DeviceMap, Schedule, layer_list};
use workers::error::WorkerError;

const LINEARS: Chunking = Chunking { order: ChunkOrder::Linears, chunks: 3 };

/// Returns a model wide enough for three pieces.
fn wide(config: ModelConfig) -> ModelConfig {
    let hidden_size = config.num_heads * config.head_dim;
    let hidden_size = hidden_size.next_multiple_of(48);
    ModelConfig { hidden_size, ffn_size: 96, ..config }
}

fn formed(config: &ModelConfig, format: WeightFormat, mut map: DeviceMap) -> DeviceMap {
    map.weight_formats = WeightFormats::with_layers(config, format);
    map
}

#[test]
fn every_piece_gives_the_bits_of_the_cpu() {
    let w4 = WeightFormat::Grouped(Grouped::W4);
    // Grouped heads, and as many KV heads as heads, with which queries are split into pieces too.
    let many = ModelConfig { num_heads: 6, num_kv_heads: 6, ..opt() };
    for (config, dtype, format, linears) in [
        (wide(llama()), Dtype::Bf16, WeightFormat::Plain, 4),
        (wide(many.clone()), Dtype::F32, WeightFormat::Plain, 4),
        (wide(llama()), Dtype::Bf16, w4, 4),
        (wide(many), Dtype::Bf16, w4, 4),
    ] {
        let shape = shape(2, 3, 2, dtype);
        let expected = run(&config, &shape, &formed(&config, format, cpu_only(&config)));
        assert!(expected.1.iter().all(|logit| logit.is_finite()) && !expected.1.is_empty());
        let list = layer_list(&config, 0, Some(LINEARS));
        let within = |at: &usize| list[at - 1].op == list[*at].op;
        let boundaries: Vec<usize> = (1..list.len()).filter(within).collect();
        assert_eq!(boundaries.len(), 2 * linears, "two boundaries within each");
        for (index, at) in boundaries.iter().copied().enumerate() {
            let other = boundaries[(index + 3) % boundaries.len()];
            for (start, end) in [(at, list.len()), (1, at), (at.min(other), at.max(other))] {
                let map = two_split(&config, Split { start, end }, Some(LINEARS));
                let outcome = run(&config, &shape, &formed(&config, format, map));
                assert!(outcome == expected, "{:?} {format:?} [{start}, {end})", config.family);
            }
        }
    }
}

/// Kernels for CUDA write whole linears only; the error names the operation before a device is
/// opened.
#[test]
fn a_cuda_device_refuses_pieces_by_name() {
    let config = wide(llama());
    let plan = |text: &str, chunking| {
        let split = parse_split(text, &config, Some(chunking)).expect("a split");
        let map = two_split(&config, split, Some(chunking));
        compile(&config, &shape(1, 3, 3, Dtype::Bf16), &map).expect("compiles")
    };
    let refused = workers::device::check(&plan("scores:up.1", LINEARS)).expect_err("up in pieces");
    assert!(matches!(refused, WorkerError::PieceOnDevice { op: "up" }), "{refused}");
    assert!(refused.to_string().contains("--split-chunks"), "{refused}");
    // Whole linears, and attention in chunks.
    assert!(workers::device::check(&plan("scores:up", LINEARS)).is_ok());
    let attention = Chunking { order: ChunkOrder::Attention, chunks: 3 };
    assert!(workers::device::check(&plan("scores.1:up", attention)).is_ok());
}

#[test]
fn what_pieces_do_not_go_with_is_refused() {
    let config = wide(llama());
    let shape = shape(1, 3, 3, Dtype::Bf16);
    let split = |order| {
        let list = layer_list(&config, 0, Some(LINEARS));
        let place = list.iter().position(|entry| entry.chunk.is_some()).expect("pieces");
        let split = Split { start: place + order, end: list.len() };
        two_split(&config, split, Some(LINEARS))
    };
    let refused =
        |map: &DeviceMap| matches!(compile(&config, &shape, map), Err(CompileError::Pieces { .. }));
    assert!(!refused(&split(1)));
    let widened = WeightFormat::Grouped(Grouped::GGUF_Q2_K);
    assert!(refused(&formed(&config, widened, split(1))));
    // Nothing is widened in pieces if each linear is on one device as a whole.
    assert!(!refused(&formed(&config, widened, split(0))));
    assert!(refused(&DeviceMap { schedule: Schedule::Barrier, ..split(1) }));
    assert!(refused(&DeviceMap { direct_reads: true, ..split(1) }));
    let none = Some(Chunking { chunks: 0, ..LINEARS });
    assert!(refused(&DeviceMap { chunking: none, ..split(1) }));
}
