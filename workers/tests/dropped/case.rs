//! Compiled plans, and plans that lack one instruction.

use model::config::{Dtype, ModelConfig};
use model::ops::Op;
use model::source::dummy::DummySource;
use planner::policy::{DefaultTiers, Policy, device_map};
use planner::split::{parse_chunking, parse_split};
use program::compile::compile;
use program::ir::{Instruction, LaneProgram, Moved, ProgramId, Region, TimelineWait};
use program::plan::{Plan, RunShape};
use program::topology::{MemoryId, SegmentId};
use program::validate::{describe, validate};
use workers::testing::{GenerationRequest, PlacedRequest};

use crate::common;

/// Number of new tokens of every sequence.
pub const NEW: u32 = 5;

/// Location of an instruction in a plan.
#[derive(Debug, Clone, Copy)]
pub struct Site {
    program: ProgramId,
    /// Index among the program's lanes.
    list: usize,
    /// Index in the lane's list.
    index: usize,
}

/// A two-split plan with two batches on the emulated device.
#[derive(Debug, Clone)]
pub struct Case {
    pub config: ModelConfig,
    pub plan: Plan,
}

impl Case {
    fn new(config: ModelConfig, dtype: Dtype, chunks: Option<&str>, split: &str) -> Case {
        let shape = RunShape {
            batches: 2,
            batch_size: 2,
            max_prompt: 5,
            shared_prompt: 0,
            max_context: 5 + NEW,
            max_new: NEW,
            logprobs: 0,
            micro_sequences: 1,
            prefill_chunk: 0,
            serves: false,
            page_positions: 0,
            kv_pages: 0,
            checkpoints: 0,
            logits_rows: 0,
            device_slots: 0,
            dtype,
        };
        let chunking = chunks.map(|text| parse_chunking(text).expect("a chunking"));
        let split = parse_split(split, &config, chunking).expect("a split");
        let policy = Policy::TwoSplit { split, chunking };
        let homes = DefaultTiers { kv: MemoryId::DRAM, prefill_hidden: MemoryId::VRAM };
        let map = device_map(&policy, &config, true, homes);
        let plan = compile(&config, &shape, &map).expect("compiles");
        validate(&plan).expect("the whole plan is valid");
        Case { config, plan }
    }

    /// Returns a case with whole attention in bf16, and one with one of two chunks of attention on
    /// the device, in f32.
    pub fn all() -> [Case; 2] {
        let three_layers = |config| ModelConfig { num_layers: 3, ..config };
        let (llama, opt) = (three_layers(common::llama()), three_layers(common::opt()));
        [
            Case::new(llama, Dtype::Bf16, None, "scores:norm1"),
            Case::new(opt, Dtype::F32, Some("attention=2"), "scores.1:ln1"),
        ]
    }

    pub fn source(&self) -> DummySource {
        DummySource::new(self.config.clone(), 5)
    }

    /// Returns a group of sequences that all run to the last step, with prompts of different
    /// lengths.
    pub fn group(&self) -> Vec<PlacedRequest> {
        (0..4u32)
            .map(|i| {
                let prompt = (0..2 + i).map(|j| (i * 11 + j * 7 + 1) % 41).collect();
                let (batch, slot) = (i as usize / 2, i as usize % 2);
                PlacedRequest { batch, slot, request: GenerationRequest::greedy(prompt, NEW) }
            })
            .collect()
    }

    /// Returns the locations of all instructions of a kind.
    pub fn sites(&self, kind: fn(&Instruction) -> bool) -> Vec<Site> {
        let mut sites = Vec::new();
        for program in &self.plan.programs {
            for (list, lane) in program.lanes.iter().enumerate() {
                for (index, instruction) in lane.instructions.iter().enumerate() {
                    if kind(instruction) {
                        sites.push(Site { program: program.id, list, index });
                    }
                }
            }
        }
        sites
    }

    /// Returns the plan without one instruction. If it was a signal, the lanes still count on it.
    pub fn without(&self, site: Site) -> Plan {
        let mut plan = self.plan.clone();
        let program = plan.program_mut(site.program);
        program.lanes[site.list].instructions.remove(site.index);
        plan
    }

    fn lists(&self, program: ProgramId) -> &[LaneProgram] {
        &self.plan.program(program).lanes
    }

    /// Returns the list that contains the instruction.
    pub fn list(&self, site: Site) -> &LaneProgram {
        &self.lists(site.program)[site.list]
    }

    /// Returns the instruction, which must be a wait.
    pub fn wait(&self, site: Site) -> TimelineWait {
        match &self.list(site).instructions[site.index] {
            Instruction::Wait(wait) => *wait,
            other => panic!("{other:?} is not a wait"),
        }
    }

    /// Returns the work that a wait is for, and the work that it delays.
    fn ends(&self, site: Site) -> (&Instruction, &Instruction) {
        let wait = self.wait(site);
        let lists = self.lists(site.program);
        let awaited = lists.iter().find(|list| list.lane == wait.lane).expect("a lane");
        let signals: Vec<usize> = (0..awaited.instructions.len())
            .filter(|index| is_signal(&awaited.instructions[*index]))
            .collect();
        let signal = signals[wait.offset as usize - 1];
        let mut before = awaited.instructions[..signal].iter().rev();
        let mut behind = self.list(site).instructions[site.index..].iter();
        let work = |instruction: &&Instruction| instruction.is_work();
        (before.find(work).expect("work"), behind.find(work).expect("work"))
    }

    /// Returns a description of the location and the effect of the instruction.
    pub fn describe(&self, site: Site) -> String {
        let list = self.list(site);
        let what =
            describe(&list.instructions[site.index], self.config.family, &self.plan.topology);
        format!(
            "{} {} {}: {what}",
            self.plan.program(site.program).name(),
            self.plan.lane_name(list.lane),
            site.index
        )
    }

    /// Returns the reason why a missing wait changes no value in any order of the lanes, or `None`
    /// if it must change one.
    pub fn cannot_show(&self, site: Site) -> Option<&'static str> {
        if site.program == ProgramId::PREFILL && self.wait(site).previous_step {
            return Some("prefill is one step a group, and groups do not overlap");
        }
        let (awaited, held) = self.ends(site);
        if site.program == ProgramId::PREFILL
            && conflicts(awaited, held)
                .iter()
                .all(|region| self.plan.buffer(region.buffer).segment == SegmentId::CONTROL)
            && (is_sample(awaited) || is_sample(held))
        {
            return Some("prefill reads nothing of the step table that sampling changes");
        }
        if let (Instruction::Copy(copy), Instruction::Append(_)) = (awaited, held)
            && matches!(copy.moved, Moved::Cache(_))
        {
            return Some("the positions streamed end before the one appended");
        }
        None
    }
}

/// Returns the regions that two instructions both access, at least one of them writing.
fn conflicts(a: &Instruction, b: &Instruction) -> Vec<Region> {
    let touched = |i: &Instruction| [i.reads(), i.writes()].concat();
    let mut found = Vec::new();
    for (writer, other) in [(a, b), (b, a)] {
        let others = touched(other);
        let hit = |region: &Region| others.iter().any(|other| other.overlaps(region));
        found.extend(writer.writes().into_iter().filter(hit));
    }
    assert!(!found.is_empty(), "a wait orders {a:?} and {b:?}");
    found
}

fn is_sample(instruction: &Instruction) -> bool {
    matches!(instruction, Instruction::Compute(compute) if compute.op == Op::Sample)
}

pub fn is_wait(instruction: &Instruction) -> bool {
    matches!(instruction, Instruction::Wait(_))
}

pub fn is_signal(instruction: &Instruction) -> bool {
    matches!(instruction, Instruction::Signal)
}

pub fn is_copy(instruction: &Instruction) -> bool {
    matches!(instruction, Instruction::Copy(_))
}
