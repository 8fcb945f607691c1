//! Errors of the validator if a read would find content other than it needs.

use crate::common::{Choices, PLAIN, llama, opt, shape, split};
use model::ops::{Kv, Op, Value};
use model::quantized_format::{Grouped, WeightFormat};
use program::compile::compile;
use program::ir::{Instruction, Moved, Program, ProgramId};
use program::map::{ComputeDevice, layer_list};
use program::pinned::copied_ranges;
use program::plan::{Plan, ResidentSource};
use program::topology::{LaneId, MemoryId, SegmentId};
use program::validate::{ValidateError, validate};
use program::weights::Weights;

/// All layers on the GPU, weights and KV streamed through two slots.
fn gpu_only() -> Plan {
    let config = opt();
    let entries = layer_list(&config, 0, None).len();
    let choices = Choices { outer: ComputeDevice::Gpu, ..PLAIN };
    compile(&config, &shape(2, 2), &split(&config, 0, entries, choices)).unwrap()
}

fn position(program: &Program, lane: LaneId, wanted: impl Fn(&Instruction) -> bool) -> usize {
    program.lane(lane).unwrap().instructions.iter().position(wanted).unwrap()
}

fn instructions(program: &mut Program, lane: LaneId) -> &mut Vec<Instruction> {
    let list = program.lanes.iter_mut().find(|list| list.lane == lane);
    &mut list.unwrap().instructions
}

fn copies(moved: Moved, layer: u16, batch: u16) -> impl Fn(&Instruction) -> bool {
    move |instruction| {
        matches!(instruction, Instruction::Copy(copy) if copy.moved == moved
            && copy.at.layer == Some(layer) && copy.at.batch == batch)
    }
}

fn without_copy(moved: Moved, layer: u16, batch: u16) -> String {
    let mut plan = gpu_only();
    let lane = match moved {
        Moved::Value(_) | Moved::Deferred(_) => LaneId::D2H,
        Moved::Weights(_) | Moved::Cache(_) | Moved::Sequences(_) => LaneId::H2D_WEIGHTS,
    };
    let index = position(plan.decode(), lane, copies(moved, layer, batch));
    instructions(plan.program_mut(ProgramId::DECODE), lane).remove(index);
    validate(&plan).unwrap_err().to_string()
}

#[test]
fn a_slot_that_holds_another_layer() {
    let text = without_copy(Moved::Weights(Op::Q), 2, 0);
    assert!(text.contains("(q, layer 2, batch 0) in step 0 needs weights.layer2.q"), "{text}");
    assert!(text.contains("but finds weights.layer0.q, left there by decode"), "{text}");
    // Layer 1 has the second slot to itself: in the first step it is empty.
    let text = without_copy(Moved::Weights(Op::Q), 1, 0);
    assert!(text.contains("which nothing wrote; it needs weights.layer1.q"), "{text}");
    let text = without_copy(Moved::Cache(Kv::K), 2, 1);
    assert!(text.contains("needs the K cache of layer 2 for batch 1"), "{text}");
    let text = without_copy(Moved::Value(Value::Key), 1, 0);
    assert!(text.contains("needs Key of layer 1 for batch 0.0 in step 0"), "{text}");
}

#[test]
fn compressed_weights_are_multiplied_after_their_own_decompression() {
    let config = opt();
    let entries = layer_list(&config, 0, None).len();
    let format = WeightFormat::Grouped(Grouped::GGUF_Q2_K);
    let choices = Choices { outer: ComputeDevice::Gpu, format, ..PLAIN };
    let compiled = compile(&config, &shape(2, 2), &split(&config, 0, entries, choices)).unwrap();
    let of = |op, layer| {
        move |i: &Instruction| match i {
            Instruction::Decompress(d) => d.op == op && d.at.layer == Some(layer),
            _ => false,
        }
    };
    // Once per layer and step, whatever the number of batches; norms and the head have none.
    let list = &compiled.decode().lane(LaneId::GPU_DECOMPRESS).unwrap().instructions;
    let count = list.iter().filter(|i| matches!(i, Instruction::Decompress(_))).count();
    assert_eq!(count, 6 * config.num_layers);
    // The streamed format is the stored one, the multiplied format has 8 bits. Records have 256
    // inputs and 16.
    let index = list.iter().position(of(Op::Fc0, 1)).unwrap();
    let Instruction::Decompress(decompress) = &list[index] else { unreachable!() };
    let bytes = [decompress.from, decompress.to].map(|r| compiled.buffer(r.buffer).size_bytes);
    let bias = 4 * config.ffn_size as u64;
    let records = config.ffn_size as u64 / 16;
    assert_eq!(bytes, [1344 * records + bias, 384 * records + bias]);
    let mut plan = compiled.clone();
    instructions(plan.program_mut(ProgramId::DECODE), LaneId::GPU_DECOMPRESS).remove(index);
    let text = validate(&plan).unwrap_err().to_string();
    assert!(text.contains("weights.layer1.fc0, decompressed"), "{text}");
    // Multiplying the stored format itself is refused.
    let mut plan = compiled.clone();
    let from = decompress.from;
    let is = |i: &Instruction| match i {
        Instruction::Compute(c) => c.op == Op::Fc0 && c.at.layer == Some(1),
        _ => false,
    };
    let at = position(plan.decode(), LaneId::GPU_COMPUTE, is);
    let Instruction::Compute(compute) =
        &mut instructions(plan.program_mut(ProgramId::DECODE), LaneId::GPU_COMPUTE)[at]
    else {
        unreachable!()
    };
    compute.weights[0] = from;
    assert!(validate(&plan).is_err());
}

#[test]
fn four_bits_with_f16_scales_are_multiplied_as_they_are() {
    let config = opt();
    let entries = layer_list(&config, 0, None).len();
    for form in [Grouped::W4, Grouped::GGUF_Q4, Grouped::GGUF_Q8] {
        for weights in [MemoryId::DRAM, MemoryId::VRAM] {
            let format = WeightFormat::Grouped(form);
            let choices = Choices { outer: ComputeDevice::Gpu, format, weights, ..PLAIN };
            let map = split(&config, 0, entries, choices);
            let plan = compile(&config, &shape(2, 2), &map).unwrap();
            validate(&plan).unwrap();
            for program in &plan.programs {
                assert!(program.lane(LaneId::GPU_DECOMPRESS).is_none(), "{form}");
                let all = program.lanes.iter().flat_map(|list| &list.instructions);
                let decompresses = |one: &Instruction| matches!(one, Instruction::Decompress(_));
                assert!(!all.into_iter().any(decompresses), "{form}");
            }
            assert!(!plan.buffers.iter().any(|one| one.name.contains("wide")), "{form}");
        }
    }
}

#[test]
fn work_in_the_wrong_order_or_twice() {
    // The second addition to the residual stream before the first.
    let config = llama();
    let choices = Choices { prefill: ComputeDevice::Cpu, ..PLAIN };
    let compiled = compile(&config, &shape(1, 4), &split(&config, 0, 0, choices)).unwrap();
    let is = |op| move |i: &Instruction| matches!(i, Instruction::Compute(c) if c.op == op);
    let mut plan = compiled.clone();
    let norm = position(plan.decode(), LaneId::CPU_COMPUTE, is(Op::Norm1));
    let out = position(plan.decode(), LaneId::CPU_COMPUTE, is(Op::Out));
    instructions(plan.program_mut(ProgramId::DECODE), LaneId::CPU_COMPUTE).swap(out, norm);
    let text = validate(&plan).unwrap_err().to_string();
    assert!(text.contains("after 1 additions in step 0 in decode.value"), "{text}");
    assert!(text.contains("finds the residual stream of batch 0.0 after 0 additions"), "{text}");

    for (op, name) in [(Op::Sample, "step table"), (Op::Out, "additions")] {
        let mut plan = compiled.clone();
        let index = position(plan.decode(), LaneId::CPU_COMPUTE, is(op));
        let list = instructions(plan.program_mut(ProgramId::DECODE), LaneId::CPU_COMPUTE);
        list.insert(index, list[index].clone());
        let text = validate(&plan).unwrap_err().to_string();
        assert!(text.contains(name), "{text}");
    }
    let mut plan = compiled.clone();
    let appends = |i: &Instruction| matches!(i, Instruction::Append(_));
    let index = position(plan.decode(), LaneId::CPU_COMPUTE, appends);
    let list = instructions(plan.program_mut(ProgramId::DECODE), LaneId::CPU_COMPUTE);
    list.insert(index, list[index].clone());
    let text = validate(&plan).unwrap_err().to_string();
    assert!(text.contains("its rows were appended before"), "{text}");
}

#[test]
fn a_program_leaves_what_others_rely_on() {
    let mut plan = gpu_only();
    let of_k = |i: &Instruction| {
        matches!(i, Instruction::Append(a)
            if (a.kv, a.at.layer, a.at.batch) == (Kv::K, Some(0), 0))
    };
    // Prefill reads no caches: only other programs miss these rows.
    instructions(plan.program_mut(ProgramId::PREFILL), LaneId::CPU_APPEND).retain(|i| !of_k(i));
    let error = validate(&plan).unwrap_err();
    assert!(
        matches!(error, ValidateError::Incomplete { program, .. }
            if program.id == ProgramId::PREFILL),
        "{error}"
    );
    let text = error.to_string();
    assert!(text.contains("cache.K.layer0.batch0.0of1 must hold"), "{text}");
    assert!(text.contains("with the rows of 2 steps and 0 streams, but holds"), "{text}");
}

#[test]
fn prefill_must_fill_what_decode_reads() {
    let mut plan = gpu_only();
    let appends = |i: &Instruction| matches!(i, Instruction::Append(a) if a.at.stream == 1);
    let lane = LaneId::CPU_APPEND;
    let index = position(plan.prefill(), lane, appends);
    instructions(plan.program_mut(ProgramId::PREFILL), lane).remove(index);
    let error = validate(&plan).unwrap_err();
    assert!(matches!(error, ValidateError::Stale { .. }), "{error}");
    assert!(error.to_string().contains("with the rows of 0 steps and 1 streams"), "{error}");
}

#[test]
fn wrong_weights_or_places() {
    let mut plan = gpu_only();
    let swapped = |weights| match weights {
        Weights::Layer { layer: 0, op: Op::K } => Weights::Layer { layer: 0, op: Op::V },
        Weights::Layer { layer: 0, op: Op::V } => Weights::Layer { layer: 0, op: Op::K },
        other => other,
    };
    plan.weights.iter_mut().for_each(|placed| placed.weights = swapped(placed.weights));
    let text = validate(&plan).unwrap_err().to_string();
    assert!(text.contains("finds weights.layer0.v"), "{text}");

    // Two activations of decode at one address: prefill's buffers may be there, these may not.
    let plan = gpu_only();
    let of_decode: Vec<usize> = (0..plan.buffers.len())
        .filter(|i| plan.buffers[*i].segment == SegmentId::DEVICE)
        .filter(|i| plan.buffers[*i].name.starts_with("decode."))
        .collect();
    let mut moved = plan.clone();
    moved.buffers[of_decode[1]].offset_bytes = plan.buffers[of_decode[0]].offset_bytes;
    let error = validate(&moved).unwrap_err();
    assert!(
        matches!(error, ValidateError::Overlap { program, .. } if program.id == ProgramId::DECODE),
        "{error}"
    );
    // Caches persist through both phases, even if only one phase uses them.
    let cache =
        plan.buffers.iter().position(|buffer| buffer.segment == SegmentId::HOST_KV).unwrap();
    let mut moved = plan.clone();
    moved.buffers[cache].offset_bytes = plan.buffers[cache + 1].offset_bytes;
    let error = validate(&moved).unwrap_err();
    assert!(matches!(error, ValidateError::Overlap { .. }), "{error}");
    let mut moved = plan;
    moved.buffers[cache].offset_bytes = u64::MAX;
    let error = validate(&moved).unwrap_err();
    assert!(matches!(error, ValidateError::BufferRange { .. }), "{error}");
}

/// The size of a real run, so that a check that compares all pairs would be noticed by its
/// duration.
#[test]
fn a_plan_of_48_layers_and_4_batches() {
    let mut config = opt();
    config.num_layers = 48;
    let choices = Choices { slots: 1, ..PLAIN };
    let plan = compile(&config, &shape(4, 4), &split(&config, 2, 9, choices)).unwrap();
    let started = std::time::Instant::now();
    let proof = validate(&plan).unwrap();
    println!("{proof:?} in {:?}", started.elapsed());
    assert!(proof.of(ProgramId::DECODE).work > 4 * 48 * 11, "{proof:?}");
}

/// Returns a plan with all layers on the GPU in decode and their weights in its memory.
fn resident(prefill: ComputeDevice, outer: ComputeDevice) -> Plan {
    let config = llama();
    let entries = layer_list(&config, 0, None).len();
    let choices = Choices { prefill, outer, weights: MemoryId::VRAM, ..PLAIN };
    crate::common::proved(&config, &shape(2, 2), &split(&config, 0, entries, choices))
}

fn host_weights(plan: &Plan) -> Vec<Weights> {
    let placed = plan.weights.iter();
    let on_host = placed.filter(|one| plan.buffer(one.buffer).segment == SegmentId::HOST_WEIGHTS);
    on_host.map(|one| one.weights).collect()
}

/// Weights that the host does not read are in device memory alone, and the loader reads them from
/// the model.
#[test]
fn a_resident_weight_has_one_memory() {
    let (cpu, gpu) = (ComputeDevice::Cpu, ComputeDevice::Gpu);
    assert_eq!(host_weights(&resident(gpu, gpu)), [Weights::Embedding]);
    let outer = [Weights::Embedding, Weights::FinalNorm, Weights::Head];
    assert_eq!(host_weights(&resident(gpu, cpu)), outer);

    // The host computes prompts with its own copy of every layer.
    let both = resident(cpu, gpu);
    assert!(both.resident.iter().all(|one| match one.source {
        ResidentSource::Host(from) => plan_weights(&both, from).is_some(),
        ResidentSource::Model(weights) => matches!(weights, Weights::FinalNorm | Weights::Head),
    }));
    let layers = |plan: &Plan| {
        let all = host_weights(plan).into_iter();
        all.filter(|one| matches!(one, Weights::Layer { .. })).count()
    };
    assert_eq!(layers(&both), both.resident.len() - 2);

    // The GPU runs the last entries: only their weights leave the host.
    let config = llama();
    let entries = layer_list(&config, 0, None).len();
    let choices = Choices { weights: MemoryId::VRAM, outer: gpu, ..PLAIN };
    let map = split(&config, entries - 2, entries, choices);
    let some = crate::common::proved(&config, &shape(1, 1), &map);
    let on_device = |op: Op| !host_weights(&some).contains(&Weights::Layer { layer: 1, op });
    assert!(on_device(Op::Down) && !on_device(Op::Q) && !on_device(Op::Gate));
}

fn plan_weights(plan: &Plan, buffer: program::ir::BufferId) -> Option<Weights> {
    plan.weights.iter().find(|one| one.buffer == buffer).map(|one| one.weights)
}

/// The validator follows what the loader reads.
#[test]
fn other_resident_weights_are_refused() {
    let mut plan = resident(ComputeDevice::Gpu, ComputeDevice::Gpu);
    let layer = |layer| Weights::Layer { layer, op: Op::Q };
    let place = plan.resident.iter().position(|one| one.source == ResidentSource::Model(layer(1)));
    plan.resident[place.expect("layer 1 stays")].source = ResidentSource::Model(layer(2));
    let text = validate(&plan).unwrap_err().to_string();
    assert!(text.contains("needs weights.layer1.q"), "{text}");
}

/// Host memory that is copied is exactly the pinned memory; what the host alone reads is pageable.
#[test]
fn what_streams_is_pinned() {
    let config = llama();
    let entries = layer_list(&config, 0, None).len();
    let plan = crate::common::proved(&config, &shape(2, 2), &split(&config, 2, entries - 1, PLAIN));
    // Prompts are computed by the GPU, so that all weights of layers stream, but not the head.
    let ranges = copied_ranges(&plan, 64);
    let is_pinned = |id: program::ir::BufferId| {
        let buffer = plan.buffer(id);
        let (first, end) = (buffer.offset_bytes, buffer.offset_bytes + buffer.size_bytes);
        let of_segment = ranges.get(&buffer.segment).into_iter().flatten();
        of_segment.clone().any(|range| range.start <= first && end <= range.end)
    };
    for placed in &plan.weights {
        let streams = matches!(placed.weights, Weights::Layer { .. });
        assert_eq!(is_pinned(placed.buffer), streams, "{:?}", placed.weights);
    }
    let alone = split(&config, 0, 0, Choices { prefill: ComputeDevice::Cpu, ..PLAIN });
    assert!(copied_ranges(&crate::common::proved(&config, &shape(2, 2), &alone), 64).is_empty());
    // Pages are pinned whole, and ranges within one page are one range.
    let pages = copied_ranges(&plan, 4096);
    let all = pages.values().flatten();
    assert!(all.clone().all(|range| range.start % 4096 == 0 && range.end % 4096 == 0));
    assert!(pages.values().all(|ranges| ranges.windows(2).all(|two| two[0].end < two[1].start)));
}
