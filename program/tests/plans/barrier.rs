//! FlexGen's loop is proved, and is slower by exactly the cost of its barriers.

use crate::common::{Choices, PLAIN, opt, shape, split};
use model::ops::Op;
use program::compile::{CompileError, compile};
use program::ir::{Instruction, Moved};
use program::map::{ComputeDevice, Schedule, layer_list};
use program::simulate::{Place, SimulationCosts, simulate};
use program::topology::{LaneSet, MemoryId};
use program::validate::validate;

/// Costs: 60 per layer for its six matrices over the link, 20 for each batch's computation.
struct SixtyAndTwenty;

impl SimulationCosts for SixtyAndTwenty {
    fn work_ns(&self, _: Place, instruction: &Instruction, _: u32) -> f64 {
        match instruction {
            Instruction::Copy(copy) => match copy.moved {
                Moved::Weights(Op::Norm0 | Op::Norm1) => 0.0,
                Moved::Weights(_) => 10.0,
                _ => 0.0,
            },
            Instruction::Compute(compute) if compute.op == Op::Out => 20.0,
            _ => 0.0,
        }
    }

    fn rate(&self, _: Place, _: LaneSet) -> f64 {
        1.0
    }

    fn wake_ns(&self) -> f64 {
        0.0
    }
}

fn steady_step_ns(schedule: Schedule) -> f64 {
    let mut config = opt();
    // The six matrices have equal sizes, so four batches can share them evenly.
    config.ffn_size = config.hidden_size;
    // With an even number of layers the two slots alternate from step to step.
    config.num_layers = 4;
    let entries = layer_list(&config, 0, None).len();
    let choices = Choices { gpu_kv: MemoryId::VRAM, schedule, ..PLAIN };
    let plan = compile(&config, &shape(4, 1), &split(&config, 0, entries, choices)).unwrap();
    validate(&plan).unwrap_or_else(|error| panic!("{schedule:?}: {error}"));
    let run = simulate(plan.decode(), &SixtyAndTwenty, 6).unwrap();
    run.step_end_ns[5] - run.step_end_ns[4]
}

#[test]
fn a_layer_takes_its_weights_or_a_batch_and_then_the_other_batches() {
    // Four layers, four batches each: computation alone is 4 x 80.
    assert_eq!(steady_step_ns(Schedule::Overlapped), 320.0);
    // The first layer's weights during the embedding, 60. Layers 0 to 2: max(60, 20) + 3 x 20. The
    // last layer streams nothing: 80.
    assert_eq!(steady_step_ns(Schedule::Barrier), 60.0 + 3.0 * 120.0 + 80.0);
    // Six matrices over four batches: 10 or 20 during each batch's 20.
    assert_eq!(steady_step_ns(Schedule::BarrierSpread), 60.0 + 4.0 * 80.0);
}

#[test]
fn every_form_is_proved() {
    let config = opt();
    let entries = layer_list(&config, 0, None).len();
    for schedule in [Schedule::Barrier, Schedule::BarrierSpread] {
        for (gpu_kv, weights) in
            [(MemoryId::DRAM, MemoryId::DRAM), (MemoryId::VRAM, MemoryId::VRAM)]
        {
            for outer in [ComputeDevice::Cpu, ComputeDevice::Gpu] {
                for (from, to) in [(0, entries), (0, 4), (7, entries)] {
                    let choices = Choices { schedule, gpu_kv, weights, outer, ..PLAIN };
                    let map = split(&config, from, to, choices);
                    let plan = compile(&config, &shape(3, 2), &map).unwrap();
                    validate(&plan).unwrap_or_else(|error| panic!("{choices:?}: {error}"));
                }
            }
        }
    }
    let choices = Choices { schedule: Schedule::Barrier, slots: 1, ..PLAIN };
    let error = compile(&config, &shape(1, 1), &split(&config, 0, entries, choices)).unwrap_err();
    assert_eq!(error, CompileError::BarrierSlots);
}
