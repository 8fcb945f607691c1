//! Overlap on a device: resident layers need no copy, and a weight is decompressed as soon as it
//! has arrived, without waiting for later copies.

use model::config::{Dtype, ModelConfig};
use model::quantized_format::{Grouped, WeightFormat};
use planner::policy::{
    DefaultTiers, Formats, Placement, Policy, Residency, ResidentAttention, device_map,
};
use program::compile::compile;
use program::formats::{KvFormat, WeightFormats};
use program::ir::{Instruction, Moved, ProgramId};
use program::plan::Plan;
use program::topology::{LaneId, MemoryId};

use crate::case::{group, llama, on_cpu_with, plan, shape};
use crate::harness::{Setting, Workers};

/// Returns a plan with everything on the device, caches on the host, and these resident layers.
fn streaming(config: &ModelConfig, stays: &Residency, formats: Option<&Formats>) -> Plan {
    let homes = DefaultTiers { kv: MemoryId::DRAM, prefill_hidden: MemoryId::VRAM };
    let residency = stays.clone();
    let placement = Placement { residency, ..Placement::from_policy(Policy::GpuOnly) };
    let mut map = placement.map(config, true, homes);
    if let Some(formats) = formats {
        formats.apply(&mut map);
    }
    compile(config, &shape(Dtype::F32), &map).expect("compiles")
}

/// Returns the layers whose weights are copied in a program.
fn streamed_layers(plan: &Plan, program: ProgramId) -> Vec<u16> {
    let program = plan.program(program);
    let list = program.lane(LaneId::H2D_WEIGHTS).map_or(&[][..], |list| &list.instructions);
    let mut layers: Vec<u16> = list
        .iter()
        .filter_map(|instruction| match instruction {
            Instruction::Copy(copy) if matches!(copy.moved, Moved::Weights(_)) => copy.at.layer,
            _ => None,
        })
        .collect();
    layers.dedup();
    layers
}

#[test]
fn a_layer_that_stays_is_never_copied_again_and_gives_the_tokens_of_the_cpu() {
    let config = llama();
    let expected = on_cpu_with(&config, plan(&config, Dtype::F32, None, None, MemoryId::DRAM));
    for attention in ResidentAttention::ALL {
        let stays = Residency { layers: vec![0], attention, head: false };
        let plan = streaming(&config, &stays, None);
        for program in [ProgramId::PREFILL, ProgramId::DECODE] {
            let streamed = streamed_layers(&plan, program);
            assert!(!streamed.contains(&0) && streamed.contains(&1), "{program:?}: {streamed:?}");
        }
        let workers = Workers::start(&plan, &Setting::default()).expect("the workers start");
        for _ in 0..2 {
            assert_eq!(workers.run_group(&group()).as_ref(), Ok(&expected), "{attention:?}");
        }
        workers.finish().expect("they end well");
    }
}

/// Returns the instructions of a lane before the signal that advances its timeline to `offset`.
fn until(list: &[Instruction], offset: u32) -> &[Instruction] {
    let mut signals = 0;
    let end = list.iter().position(|instruction| {
        signals += u32::from(matches!(instruction, Instruction::Signal));
        signals == offset
    });
    &list[..end.expect("so many signals")]
}

#[test]
fn a_weight_is_decompressed_once_it_has_arrived_and_waits_for_no_later_one() {
    let config = ModelConfig { hidden_size: 64, head_dim: 16, ffn_size: 128, ..llama() };
    let widened = WeightFormats::with_layers(&config, WeightFormat::Grouped(Grouped::GGUF_Q2_K));
    let formats = Formats { weights: widened, kv: KvFormat::Plain, kv_select: None };
    let plan = streaming(&config, &Residency::NONE, Some(&formats));
    let mut seen = 0;
    for program in &plan.programs {
        let list = |lane| &program.lane(lane).expect("the lane has work").instructions;
        let (copies, decompressions) = (list(LaneId::H2D_WEIGHTS), list(LaneId::GPU_DECOMPRESS));
        // Offset of the latest copy of this step that was waited for.
        let mut arrived = 0;
        for instruction in decompressions {
            match instruction {
                Instruction::Wait(wait)
                    if wait.lane == LaneId::H2D_WEIGHTS && !wait.previous_step =>
                {
                    arrived = arrived.max(wait.offset);
                }
                Instruction::Decompress(decompress) => {
                    seen += 1;
                    let last = until(copies, arrived).iter().rev().find_map(|copy| match copy {
                        Instruction::Copy(copy) => Some(copy),
                        _ => None,
                    });
                    let last = last.expect("something has arrived");
                    assert_eq!(
                        (last.moved, last.at.layer),
                        (Moved::Weights(decompress.op), decompress.at.layer),
                        "{:?}: its own weight is the last that it waits for",
                        program.id
                    );
                }
                _ => {}
            }
        }
    }
    // Seven linears of two layers in two programs.
    assert_eq!(seen, 2 * 7 * 2);

    let mut on_cpu = device_map(
        &Policy::CpuOnly,
        &config,
        true,
        DefaultTiers { kv: MemoryId::DRAM, prefill_hidden: MemoryId::VRAM },
    );
    formats.apply(&mut on_cpu);
    let on_cpu = compile(&config, &shape(Dtype::F32), &on_cpu).expect("compiles");
    let expected = on_cpu_with(&config, on_cpu);
    for seed in ["1", "2", "3"] {
        let variables = vec![("STANDIN_CUDA_SEED", seed.to_owned())];
        let setting = Setting { variables, ..Setting::default() };
        let workers = Workers::start(&plan, &setting).expect("the workers start");
        assert_eq!(workers.run_group(&group()).as_ref(), Ok(&expected), "seed {seed}");
        workers.finish().expect("they end well");
    }
}
