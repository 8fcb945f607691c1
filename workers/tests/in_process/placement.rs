//! Compiled plans run by all lanes as threads of this process: whatever the placement, the bits are
//! those of the run on the CPU alone.

use crate::common::placed::{
    cpu_only, group, intervals, options, run, runs_all_cases, shape, two_split,
};
use crate::common::{llama, opt, step};
use model::config::{Dtype, ModelConfig};
use model::ops::Op;
use model::source::dummy::DummySource;
use planner::policy::{DefaultTiers, Policy, device_map};
use planner::split::{Split, parse_chunking, parse_split};
use program::compile::compile;
use program::ir::{Instruction, ProgramId};
use program::map::layer_list;
use program::plan::RunShape;
use program::step_table::EndReason;
use program::topology::{LaneId, MemoryId};
use workers::testing::{GenerationRequest, InProcess, PlacedRequest};

#[test]
fn every_interval_gives_the_bits_of_the_cpu() {
    for (config, dtype) in [(llama(), Dtype::Bf16), (opt(), Dtype::F32), (step(), Dtype::Bf16)] {
        let shape = shape(2, 3, 2, dtype);
        let expected = run(&config, &shape, &cpu_only(&config));
        assert!(expected.1.iter().all(|logit| logit.is_finite()) && !expected.1.is_empty());
        let ops = layer_list(&config, 0, None).len();
        for split in intervals(ops) {
            let map = two_split(&config, split, None);
            let found = run(&config, &shape, &map);
            assert_eq!(found.0, expected.0, "{:?} {split:?}", config.family);
            assert_eq!(found.1, expected.1, "{:?} {split:?}", config.family);
        }
    }
}

#[test]
fn chunks_give_the_bits_of_the_whole() {
    for config in [llama(), opt(), step()] {
        for batches in [1, 2] {
            let shape = shape(batches, 4, 4, Dtype::Bf16);
            let expected = run(&config, &shape, &cpu_only(&config));
            for text in ["scores=3", "attention=3", "attention=1"] {
                let chunking = Some(parse_chunking(text).expect("a chunking"));
                let ops = layer_list(&config, 0, chunking).len();
                let first = layer_list(&config, 0, chunking)
                    .iter()
                    .position(|entry| entry.op == Op::Scores)
                    .expect("scores");
                let stride = if runs_all_cases() { 1 } else { 3 };
                for (start, end) in (first..ops)
                    .step_by(stride)
                    .flat_map(|end| [(first - 1, end), (end, ops), (1, end)])
                {
                    if start >= end {
                        continue;
                    }
                    let map = two_split(&config, Split { start, end }, chunking);
                    let found = run(&config, &shape, &map);
                    assert!(found == expected, "{:?} {text} [{start}, {end})", config.family);
                }
            }
        }
    }
}

#[test]
fn the_gpu_alone_gives_the_bits_of_the_cpu() {
    let config = llama();
    let shape = shape(2, 3, 1, Dtype::Bf16);
    let expected = run(&config, &shape, &cpu_only(&config));
    for kv in [MemoryId::DRAM, MemoryId::VRAM] {
        for prefill_hidden in [MemoryId::DRAM, MemoryId::VRAM] {
            let homes = DefaultTiers { kv, prefill_hidden };
            let mut map = device_map(&Policy::GpuOnly, &config, false, homes);
            let streamed = run(&config, &shape, &map);
            assert!(streamed == expected, "{homes:?}");
            // One batch's caches are on the device, and the other's are streamed to it.
            map.kv.iter_mut().for_each(|kv| kv.device_batches = 1);
            assert!(run(&config, &shape, &map) == expected, "{homes:?}, one batch on the device");
            map.weights.iter_mut().flatten().for_each(|home| *home = MemoryId::VRAM);
            map.outer_weights = MemoryId::VRAM;
            let resident = run(&config, &shape, &map);
            assert!(resident == expected, "{homes:?} resident");
        }
    }
}

#[test]
fn a_sequence_alone_and_in_every_slot_gives_the_same_bits() {
    let config = llama();
    let request = GenerationRequest::greedy(vec![5, 9, 33, 2, 60], 4);
    let mut alone = None;
    for (batches, batch_size, threads) in [(1, 1, 1), (2, 3, 2), (1, 4, 3)] {
        let shape = shape(batches, batch_size, batch_size, Dtype::Bf16);
        let plan = compile(&config, &shape, &cpu_only(&config)).expect("compiles");
        let source = DummySource::new(config.clone(), 5);
        let mut lanes = InProcess::start(plan, &source, options(threads)).expect("starts");
        for batch in 0..usize::from(batches) {
            for slot in 0..usize::from(batch_size) {
                let mut placed = group(&shape, config.vocab_size);
                placed.retain(|other| (other.batch, other.slot) != (batch, slot));
                placed.push(PlacedRequest { batch, slot, request: request.clone() });
                let outcome = lanes.run_group(&placed).pop().expect("one per sequence");
                assert_eq!(
                    *alone.get_or_insert_with(|| outcome.clone()),
                    outcome,
                    "{batch} {slot}"
                );
            }
        }
        assert!(lanes.finish().iter().all(Result::is_ok));
    }
}

#[test]
fn eos_ends_a_sequence_and_the_others_go_on() {
    let mut config = llama();
    let shape = shape(1, 3, 3, Dtype::F32);
    let (free, _) = run(&config, &shape, &cpu_only(&config));
    // The second token of the longest sequence becomes an EOS.
    let longest = (0..free.len()).max_by_key(|i| free[*i].tokens.len()).expect("sequences");
    config.eos_token_ids = vec![free[longest].tokens[1]];
    let split = parse_split("k:up", &config, None).expect("a split");
    for map in [cpu_only(&config), two_split(&config, split, None)] {
        let plan = compile(&config, &shape, &map).expect("compiles");
        let source = DummySource::new(config.clone(), 5);
        let mut lanes = InProcess::start(plan, &source, options(1)).expect("starts");
        let mut placed = group(&shape, config.vocab_size);
        placed.iter_mut().for_each(|placed| placed.request.ignore_eos = false);
        let ended = lanes.run_group(&placed);
        for (ended, free) in ended.iter().zip(&free) {
            let stop = free.tokens.iter().position(|token| config.eos_token_ids.contains(token));
            let expected = stop.map_or(free.tokens.len(), |stop| stop + 1);
            assert_eq!(ended.tokens, free.tokens[..expected]);
            // A token that is both an EOS and the last allowed one counts as a stop.
            let finish = if stop.is_some() { EndReason::Stop } else { EndReason::Length };
            assert_eq!(ended.finish, finish as u32);
        }
        assert!(lanes.finish().iter().all(Result::is_ok));
    }
}

#[test]
fn the_trace_counts_what_is_active_and_no_more() {
    let config = llama();
    let shape =
        RunShape { max_prompt: 512, max_context: 514, max_new: 2, ..shape(1, 2, 2, Dtype::Bf16) };
    let config = ModelConfig { max_positions: 514, ..config };
    let split = parse_split("scores:out", &config, None).expect("a split");
    let plan = compile(&config, &shape, &two_split(&config, split, None)).expect("compiles");
    let source = DummySource::new(config.clone(), 5);
    let mut lanes = InProcess::start(plan, &source, options(1)).expect("starts");
    let place = |slot, length: usize| {
        let prompt = (0..length).map(|i| (i % 61) as u32).collect();
        PlacedRequest { batch: 0, slot, request: GenerationRequest::greedy(prompt, 2) }
    };
    lanes.run_group(&[place(0, 1), place(1, 512)]);
    let records = lanes.drain_trace();
    let plan = lanes.plan();
    let sum = |program: ProgramId, wanted: &dyn Fn(&Instruction) -> bool| -> (u64, u64) {
        records
            .iter()
            .filter(|(lane, record)| {
                let list = plan.program(program).lane(*lane).map(|list| &list.instructions);
                record.program == u32::from(program.0)
                    && list.is_some_and(|list| wanted(&list[record.instruction as usize]))
            })
            .fold((0, 0), |(rows, bytes), (_, record)| {
                (rows + u64::from(record.rows), bytes + record.bytes)
            })
    };
    let embed = |i: &Instruction| matches!(i, Instruction::Compute(c) if c.op == Op::Embed);
    assert_eq!(sum(ProgramId::PREFILL, &embed).0, 513);
    assert_eq!(sum(ProgramId::DECODE, &embed).0, 2);
    let row_bytes = (config.kv_size() * 2) as u64;
    let layers = config.num_layers as u64;
    let append = |i: &Instruction| matches!(i, Instruction::Append(_));
    assert_eq!(sum(ProgramId::PREFILL, &append).1, 2 * layers * 513 * row_bytes);
    let streamed = |i: &Instruction| match i {
        Instruction::Copy(c) => matches!(c.moved, program::ir::Moved::Cache(_)),
        _ => false,
    };
    // One decode step streams the positions cached before it.
    assert_eq!(sum(ProgramId::DECODE, &streamed).1, 2 * layers * 513 * row_bytes);
    assert!(records.iter().any(|(lane, _)| *lane == LaneId::D2H));
    assert!(lanes.finish().iter().all(Result::is_ok));
}
