//! Failures that must be reported: a lane that never arrives, weights that do not fit the plan, and
//! memory that a worker must not access. Also checks that an emulated slow link is slow.

use std::sync::Arc;
use std::time::Duration;

use half::bf16;
use kernels::{PoolOptions, Variant};
use model::config::{Dtype, ModelConfig};
use model::known;
use model::ops::Op;
use model::source::dummy::DummySource;
use model::source::{SourceError, TensorId, TensorPart, WeightSource};
use planner::policy::{DefaultTiers, Policy, device_map};
use planner::split::parse_split;
use program::compile::compile;
use program::ir::{Instruction, LaneProgram, ProgramId};
use program::plan::{Plan, RunShape};
use program::topology::{LaneId, MemoryId, SegmentId};
use shm::Mapping;
use workers::error::{LaneError, WorkerError};
use workers::load::{LoadError, load};
use workers::memory::Memories;
use workers::setup::LaneOptions;
use workers::testing::{BATCH_STAGES, GenerationRequest, InProcess, PlacedRequest, fill};

fn config() -> ModelConfig {
    let mut config = known::find_known("qwen2.5-0.5b").expect("a known model").config;
    config.num_layers = 2;
    config.hidden_size = 32;
    config.ffn_size = 48;
    config.vocab_size = 300;
    config.num_heads = 4;
    config.num_kv_heads = 2;
    config.head_dim = 8;
    config.max_positions = 64;
    config
}

fn plan(dtype: Dtype) -> Plan {
    let config = config();
    let shape = RunShape {
        batches: 2,
        batch_size: 2,
        max_prompt: 8,
        shared_prompt: 0,
        max_context: 16,
        max_new: 8,
        logprobs: 0,
        micro_sequences: 2,
        prefill_chunk: 0,
        serves: false,
        page_positions: 0,
        kv_pages: 0,
        checkpoints: 0,
        logits_rows: 0,
        device_slots: 0,
        dtype,
    };
    let split = parse_split("scores:out", &config, None).expect("a split");
    let policy = Policy::TwoSplit { split, chunking: None };
    let homes = DefaultTiers { kv: MemoryId::DRAM, prefill_hidden: MemoryId::VRAM };
    compile(&config, &shape, &device_map(&policy, &config, true, homes)).expect("compiles")
}

fn options() -> LaneOptions {
    LaneOptions {
        variant: Variant::best(),
        pool: PoolOptions::unpinned(1),
        link_bytes_per_s: None,
        wait_timeout: Duration::from_millis(300),
        grammars: None,
        routes_randomly: false,
        select_text: Vec::new(),
        drafter: None,
    }
}

fn group() -> Vec<PlacedRequest> {
    (0..4)
        .map(|i: usize| {
            let prompt = (0..i as u32 + 2).collect();
            PlacedRequest {
                batch: i / 2,
                slot: i % 2,
                request: GenerationRequest::greedy(prompt, 4),
            }
        })
        .collect()
}

#[test]
fn a_lost_signal_is_told_by_a_lane_that_waited_and_ends_all_lanes() {
    let mut plan = plan(Dtype::F32);
    let lists = &mut plan.program_mut(ProgramId::DECODE).lanes;
    let d2h = lists.iter_mut().find(|list| list.lane == LaneId::D2H).expect("d2h");
    let lost = d2h.instructions.iter().rposition(|i| matches!(i, Instruction::Signal));
    d2h.instructions.remove(lost.expect("a signal"));
    let source = DummySource::new(config(), 1);
    let lanes = InProcess::start(plan, &source, options()).expect("starts");
    fill(lanes.table(), lanes.plan(), &group());
    lanes.control().release(&BATCH_STAGES, 3);
    let (control, limit) = (lanes.control().clone(), Duration::from_secs(60));
    let decode = lanes.plan().decode().clone();
    assert!(control.drained().wait_until(1, control.poison(), limit).is_err());
    let ended = lanes.finish();
    assert!(ended.iter().all(Result::is_err), "{ended:?}");
    let stderr: Vec<String> = ended
        .iter()
        .filter_map(|ended| match ended {
            Err(error @ LaneError::TimedOut { .. }) => Some(error.to_string()),
            _ => None,
        })
        .collect();
    // The lanes wait for one another in a chain, and any of them may be the first whose time is up.
    assert!(stderr.iter().any(|text| text.contains("decode step")), "{stderr:?}");
    // The positions of the lanes lead to the culprit: one of them waits for it.
    let waits_for_d2h = |list: &LaneProgram| {
        let position = control.lane(list.lane.index()).position();
        let instruction = list.instructions.get(position.instruction as usize);
        position.program == u32::from(ProgramId::DECODE.0)
            && matches!(instruction, Some(Instruction::Wait(wait)) if wait.lane == LaneId::D2H)
    };
    assert!(decode.lanes.iter().any(waits_for_d2h), "{stderr:?}");
}

#[test]
fn a_slow_link_is_slow_for_copies_only() {
    let plan = plan(Dtype::F32);
    let source = DummySource::new(config(), 1);
    let bytes_per_s = 20_000_000u64;
    let slow = LaneOptions {
        link_bytes_per_s: Some(bytes_per_s),
        wait_timeout: Duration::from_secs(60),
        ..options()
    };
    let mut lanes = InProcess::start(plan, &source, slow).expect("starts");
    lanes.run_group(&group());
    let mut copies = 0;
    for (lane, record) in lanes.drain_trace() {
        let program = lanes.plan().program(ProgramId(record.program as u8));
        let list = program.lane(lane).expect("a list");
        if let Instruction::Copy(_) = list.instructions[record.instruction as usize] {
            copies += 1;
            let least_ns = record.bytes * 1_000_000_000 / bytes_per_s;
            assert!(record.end_ns - record.start_ns >= least_ns, "{record:?}");
        }
    }
    assert!(copies > 10);
    assert!(lanes.finish().iter().all(Result::is_ok));
}

/// Source that forwards to another one, with one tensor missing or of another shape.
#[derive(Debug)]
struct Damaged {
    source: DummySource,
    tensor: TensorId,
    missing: bool,
}

impl WeightSource for Damaged {
    fn shape(&self, id: TensorId) -> Result<(usize, usize), SourceError> {
        let (rows, columns) = self.source.shape(id)?;
        match (id == self.tensor, self.missing) {
            (false, _) => Ok((rows, columns)),
            (true, false) => Ok((rows + 1, columns)),
            (true, true) => Err(SourceError::Missing {
                path: "model.safetensors".to_owned(),
                tensor: "model.layers.1.self_attn.q_proj.bias".to_owned(),
            }),
        }
    }

    fn read_bf16(
        &self,
        id: TensorId,
        first_row: usize,
        out: &mut [bf16],
    ) -> Result<(), SourceError> {
        self.source.read_bf16(id, first_row, out)
    }

    fn read_f32(&self, id: TensorId, first_row: usize, out: &mut [f32]) -> Result<(), SourceError> {
        self.source.read_f32(id, first_row, out)
    }
}

#[test]
fn missing_and_misshapen_weights_are_errors() {
    for (part, missing) in [(TensorPart::Bias, true), (TensorPart::Matrix, false)] {
        let tensor = TensorId::Layer { layer: 1, op: Op::Q, part };
        let source = Damaged { source: DummySource::new(config(), 1), tensor, missing };
        let Err(error) = InProcess::start(plan(Dtype::Bf16), &source, options()) else {
            panic!("{part:?} was not needed")
        };
        let text = error.to_string();
        match (missing, error) {
            (true, WorkerError::Load(LoadError::Source(SourceError::Missing { .. }))) => {}
            (false, WorkerError::Load(LoadError::Shape { found, expected, .. })) => {
                assert_eq!((found, expected), ((33, 32), (32, 32)));
            }
            (_, other) => panic!("{other:?}"),
        }
        assert!(text.contains("q_proj.bias") || text.contains("[33, 32]"), "{text}");
    }
}

/// Loads the host weights of a plan and returns all their bytes.
fn loaded(plan: &Plan, threads: usize) -> Vec<u8> {
    let size_bytes = plan.segment_bytes(SegmentId::HOST_WEIGHTS) as usize;
    let mapping = Arc::new(Mapping::private(size_bytes).expect("memory"));
    let mappings = vec![(SegmentId::HOST_WEIGHTS, Arc::clone(&mapping))];
    let memories = Arc::new(Memories::new(plan, mappings).expect("fits"));
    let last = std::sync::Mutex::new((0, 0));
    let progress = |done, total| {
        let mut last = last.lock().expect("no thread panics");
        assert!(done >= last.0, "progress does not go back");
        *last = (done, total);
    };
    load(plan, &memories, &DummySource::new(config(), 9), Variant::best(), threads, &progress)
        .expect("loads");
    let (done, total) = *last.lock().expect("no thread panics");
    assert!(done == total && done > 0, "{done} of {total}");
    // SAFETY: loading is over, nothing else has this mapping.
    unsafe { mapping.slice::<u8>(0, size_bytes) }.to_vec()
}

#[test]
fn loading_gives_the_same_bytes_with_any_number_of_threads() {
    for dtype in [Dtype::Bf16, Dtype::F32] {
        let plan = plan(dtype);
        let one = loaded(&plan, 1);
        assert_eq!(one, loaded(&plan, 3));
        // Biases are stored after the matrix as f32, in either dtype.
        let weights = program::weights::Weights::Layer { layer: 1, op: Op::Q };
        let placed = plan.weights.iter().find(|placement| placement.weights == weights);
        let buffer = plan.buffer(placed.expect("q has weights").buffer);
        let layout = Op::Q
            .weights(&plan.config)
            .expect("q has weights")
            .layout(dtype, model::quantized_format::WeightFormat::Plain);
        let at = buffer.offset_bytes as usize + layout.vector_offsets[0];
        let mut expected = vec![0.0f32; plan.config.q_size()];
        let id = TensorId::Layer { layer: 1, op: Op::Q, part: TensorPart::Bias };
        DummySource::new(config(), 9).read_f32(id, 0, &mut expected).expect("a bias");
        let found: Vec<f32> = one[at..at + expected.len() * 4]
            .chunks_exact(4)
            .map(|bytes| f32::from_le_bytes([bytes[0], bytes[1], bytes[2], bytes[3]]))
            .collect();
        assert_eq!(found, expected);
    }
}

#[test]
fn memory_smaller_than_its_buffers_is_refused() {
    let plan = plan(Dtype::Bf16);
    let size_bytes = plan.segment_bytes(SegmentId::DEVICE) as usize;
    let mapping = Arc::new(Mapping::private(size_bytes - 64).expect("memory"));
    let error = Memories::new(&plan, vec![(SegmentId::DEVICE, mapping)]).expect_err("too small");
    assert!(error.to_string().contains(&size_bytes.to_string()), "{error}");
}
