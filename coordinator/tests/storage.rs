//! Weights on two storages, each read by a worker and a lane of its own: compiled, proved,
//! simulated and run by real processes, with the tokens of the same plan without storages.
//!
//! The workers are started from this very program, as the engine starts them from the coordinator;
//! so it has a `main` of its own, which is a worker where it is asked to be one, and lists and runs
//! the tests as test runners ask otherwise.

use std::collections::BTreeSet;
use std::ops::ControlFlow;
use std::process::ExitCode;

use coordinator::boundary::engine::{
    Engine, EngineError, Finish, Generated, Observer, Sampling, Sequence, Verdict,
};
use coordinator::engine::RunEngine;
use coordinator::engine::launch::LaunchOptions;
use coordinator::setup::model::open_weights;
use model::config::{Activation, Dtype, Family, ModelConfig, Rope, RopeScaling};
use planner::policy::{Homes, Policy, device_map};
use planner::split::parse_split;
use program::compile::{compile, compile_on, machine_of};
use program::ir::{Instruction, Moved, Program, ProgramId};
use program::map::DeviceMap;
use program::plan::{Plan, RunShape};
use program::simulate::{Costs, Place, Span, simulate};
use program::topology::{LaneId, LaneKind, LaneSet, MemoryId};
use program::validate::{replay, validate};
use rustix::process::{Pid, Signal, kill_process};
use workers::shared::protocol::WeightsFrom;

const TESTS: [(&str, fn()); 4] = [
    ("a_killed_storage_worker_ends_the_run", a_killed_storage_worker_ends_the_run),
    ("storages_change_no_token", storages_change_no_token),
    ("reads_precede_streamed_weights", reads_precede_streamed_weights),
    ("every_signal_of_a_storage_is_needed", every_signal_of_a_storage_is_needed),
];

fn main() -> ExitCode {
    let args: Vec<String> = std::env::args().skip(1).collect();
    if let [first, _, channel] = &args[..]
        && first == "worker"
    {
        let channel = channel.parse().expect("the number of a channel");
        // SAFETY: needed to take over the inherited channel. The engine passes its number to this
        // process alone, and nothing has opened or closed descriptors before.
        return ExitCode::from(unsafe { workers::roles::worker_main(channel, &open_weights) });
    }
    let asked = |flag: &str| args.iter().any(|arg| arg == flag);
    if asked("--list") {
        // Runners ask for the ignored ones too: there are none.
        let listed = TESTS.iter().filter(|_| !asked("--ignored"));
        listed.for_each(|(name, _)| println!("{name}: test"));
        return ExitCode::SUCCESS;
    }
    let filters: Vec<&String> = args.iter().filter(|arg| !arg.starts_with('-')).collect();
    let wanted = |name: &str| filters.is_empty() || filters.iter().any(|part| name.contains(*part));
    for (name, test) in TESTS.iter().filter(|(name, _)| wanted(name)) {
        test();
        println!("test {name} ... ok");
    }
    ExitCode::SUCCESS
}

fn config() -> ModelConfig {
    ModelConfig {
        name: "tiny".to_owned(),
        family: Family::Llama,
        num_layers: 5,
        hidden_size: 64,
        num_heads: 4,
        num_kv_heads: 2,
        head_dim: 16,
        ffn_size: 96,
        vocab_size: 200,
        max_positions: 64,
        norm_eps: 1e-5,
        activation: Activation::Silu,
        rope: Some(Rope { theta: 10_000.0, scaling: RopeScaling::None }),
        position_offset: 0,
        qkv_bias: false,
        out_bias: false,
        ffn_bias: false,
        tied_embeddings: false,
        sliding_window: None,
        bos_token_id: None,
        eos_token_ids: vec![],
    }
}

fn shape(dtype: Dtype) -> RunShape {
    RunShape {
        batches: 2,
        batch_size: 2,
        max_prompt: 8,
        shared_prompt: 0,
        max_context: 20,
        max_new: 12,
        logprobs: 0,
        micro_sequences: 2,
        prefill_chunk: 0,
        dtype,
    }
}

/// Placements: the CPU alone, a split, and everything streamed to the device.
fn maps() -> Vec<DeviceMap> {
    let config = config();
    let split = parse_split("k:up", &config, None).expect("a split");
    let policies = [Policy::CpuOnly, Policy::TwoSplit { split, chunking: None }, Policy::GpuOnly];
    let homes = Homes { kv: MemoryId::DRAM, prefill_hidden: MemoryId::DRAM };
    policies.iter().map(|policy| device_map(policy, &config, true, homes)).collect()
}

/// The map's plan on its machine with two more storages, on which its weights live in turn.
fn on_storages(map: &DeviceMap, dtype: Dtype) -> Plan {
    let mut topology = machine_of(map);
    let storages = [topology.add_storage(), topology.add_storage()];
    let mut map = map.clone();
    for (layer, homes) in map.weights.iter_mut().enumerate() {
        for (place, home) in homes.iter_mut().enumerate() {
            *home = storages[(layer + place) % 2];
        }
    }
    map.outer_weights = storages[1];
    let plan = compile_on(&topology, &config(), &shape(dtype), &map).expect("compiles");
    validate(&plan).expect("it is proved");
    plan
}

fn reads(plan: &Plan, lane: LaneId) -> bool {
    plan.topology.lane(lane).kind == LaneKind::Read
}

#[derive(Default)]
struct Tokens(Vec<(usize, Vec<u32>)>);

impl Observer for Tokens {
    fn token(&mut self, _: usize, _: u32) -> Verdict {
        Verdict::Continue
    }

    fn finished(&mut self, sequence: usize, generated: Generated) -> ControlFlow<()> {
        assert_eq!(generated.finish, Finish::Length);
        self.0.push((sequence, generated.tokens));
        ControlFlow::Continue(())
    }
}

/// Real processes for a plan.
fn start(plan: Plan) -> RunEngine {
    let options = LaunchOptions {
        weights: WeightsFrom::Dummy { seed: 11 },
        cpu_threads: 2,
        gpu_threads: 1,
        link_bytes_per_s: None,
        cpus: Vec::new(),
        spin_us: 0,
        durations: None,
        cuda: None,
        grammars: None,
    };
    let interrupt = Box::new(|| false);
    RunEngine::start(plan, &options, None, interrupt, &mut |_, _| true).expect("the workers start")
}

fn prompts() -> Vec<Vec<u32>> {
    (0..4u32).map(|index| (0..2 * index + 1).map(|i| 11 * i + index).collect()).collect()
}

fn sequences(prompts: &[Vec<u32>]) -> Vec<Sequence<'_>> {
    prompts
        .iter()
        .zip(0..)
        .map(|(prompt, index)| Sequence {
            prompt,
            max_new: 3 + 3 * index as u32,
            sampling: Sampling::GREEDY,
            seed: 0,
            id_hash: index,
            ignore_eos: true,
            logprobs: 0,
            grammar: 0,
        })
        .collect()
}

/// The tokens of two groups, the spans of the last one, and the number of workers.
fn run(plan: Plan) -> (Vec<Vec<u32>>, Vec<Span>, usize) {
    let mut engine = start(plan);
    let prompts = prompts();
    let mut tokens = Tokens::default();
    // Twice: the second group begins with what the first has left in slots.
    for _ in 0..2 {
        engine.run(&sequences(&prompts), &mut tokens).expect("a group");
    }
    let spans = engine.spans();
    let measured = engine.finish().expect("no trace file");
    assert_eq!(measured.totals.lost, 0);
    tokens.0.sort();
    let tokens = tokens.0.into_iter().map(|(_, tokens)| tokens).collect();
    (tokens, spans, measured.kernel_variants.len())
}

fn storages_change_no_token() {
    for dtype in [Dtype::Bf16, Dtype::F32] {
        for map in maps() {
            let plain = compile(&config(), &shape(dtype), &map).expect("compiles");
            let (expected, _, workers) = run(plain);
            assert_eq!(expected.len(), 8, "four sequences, twice");
            let distinct: BTreeSet<u32> = expected.iter().flatten().copied().collect();
            assert!(distinct.len() > 5, "tokens tell nothing: {distinct:?}");
            let plan = on_storages(&map, dtype);
            let (found, spans, with_storages) = run(plan.clone());
            assert_eq!(found, expected, "{} in {dtype:?}", map.policy);
            assert_eq!(with_storages, workers + 2, "{}", map.policy);
            replay(&plan, &spans).expect("what ran is what was proved");
            for lane in plan.lanes().into_iter().filter(|lane| reads(&plan, *lane)) {
                let steps: BTreeSet<(bool, u32)> = spans
                    .iter()
                    .filter(|span| span.lane == lane)
                    .map(|span| (span.program == ProgramId::DECODE, span.step))
                    .collect();
                // Prefill, and the eleven decode steps of the longest answer.
                assert_eq!(steps.len(), 12, "{} {}", map.policy, plan.lane_name(lane));
            }
        }
    }
}

/// Kills a worker of this process at the first token.
struct Killer {
    worker: &'static str,
    killed: Option<Pid>,
}

impl Killer {
    fn find(&self) -> Option<Pid> {
        let tasks = std::fs::read_dir("/proc/self/task").ok()?;
        let children = tasks
            .filter_map(|task| std::fs::read_to_string(task.ok()?.path().join("children")).ok())
            .collect::<String>();
        let pids = children.split_whitespace().filter_map(|pid| pid.parse::<i32>().ok());
        let named = |pid: &i32| {
            let line = std::fs::read(format!("/proc/{pid}/cmdline")).unwrap_or_default();
            String::from_utf8_lossy(&line).contains(self.worker)
        };
        Pid::from_raw(pids.into_iter().find(named)?)
    }
}

impl Observer for Killer {
    fn token(&mut self, _: usize, _: u32) -> Verdict {
        if self.killed.is_none() {
            let pid = self.find().expect("the worker runs");
            kill_process(pid, Signal::KILL).expect("it lives");
            self.killed = Some(pid);
        }
        Verdict::Continue
    }

    fn finished(&mut self, _: usize, _: Generated) -> ControlFlow<()> {
        ControlFlow::Continue(())
    }
}

fn a_killed_storage_worker_ends_the_run() {
    let mut engine = start(on_storages(&maps()[0], Dtype::Bf16));
    let prompts = prompts();
    let mut killer = Killer { worker: "storage worker 1", killed: None };
    // A group may have ended before it is noticed; the next one has not.
    let failed = (0..50).find_map(|_| engine.run(&sequences(&prompts), &mut killer).err());
    let EngineError::Failed(said) = failed.expect("a worker is gone") else {
        panic!("interrupted")
    };
    assert!(said.contains("storage worker 1") && said.contains("signal 9"), "{said}");
    drop(engine);
    assert_eq!(killer.find(), None, "no worker is left");
}

/// A read takes longer than anything else, so that whoever does not wait for it is early.
struct SlowReads;

impl Costs for SlowReads {
    fn work_ns(&self, _: Place, instruction: &Instruction, _: u32) -> f64 {
        if matches!(instruction, Instruction::Read(_)) { 1000.0 } else { 10.0 }
    }

    fn rate(&self, _: Place, _: LaneSet) -> f64 {
        1.0
    }

    fn wake_ns(&self) -> f64 {
        0.0
    }
}

fn reads_precede_streamed_weights() {
    for map in maps() {
        let plan = on_storages(&map, Dtype::Bf16);
        for program in &plan.programs {
            let timeline = simulate(program, &SlowReads, 3).expect("it runs to its end");
            let at = |span: &Span| instruction(program, span);
            let mut streamed = 0;
            for span in &timeline.spans {
                let Instruction::Copy(copy) = at(span) else { continue };
                let Moved::Weights(op) = copy.moved else { continue };
                let read = timeline.spans.iter().find(|other| {
                    let Instruction::Read(read) = at(other) else { return false };
                    other.step == span.step && (read.op, read.at) == (op, copy.at)
                });
                let read = read.expect("what is streamed was read in the step");
                assert!(read.end_ns <= span.start_ns, "{read:?} {span:?}");
                streamed += 1;
            }
            assert_eq!(streamed > 0, map.uses_gpu(), "{} {:?}", map.policy, program.id);
            let reads = timeline.spans.iter().filter(|span| reads(&plan, span.lane)).count();
            assert!(reads > 3 * config().num_layers, "{}: {reads}", map.policy);
        }
    }
}

fn instruction<'a>(program: &'a Program, span: &Span) -> &'a Instruction {
    let list = program.lane(span.lane).expect("a lane with work");
    &list.instructions[span.instruction as usize]
}

fn every_signal_of_a_storage_is_needed() {
    for map in maps() {
        let plan = on_storages(&map, Dtype::Bf16);
        let mut by_lane = BTreeSet::new();
        for id in [ProgramId::PREFILL, ProgramId::DECODE] {
            let program = plan.program(id);
            for (place, list) in program.lanes.iter().enumerate() {
                if !reads(&plan, list.lane) {
                    continue;
                }
                let signals = list.instructions.iter().enumerate();
                for (index, _) in signals.filter(|(_, found)| **found == Instruction::Signal) {
                    let mut changed = plan.clone();
                    let program = changed.program_mut(id);
                    // As if it had never been planned.
                    program.lanes[place].instructions.remove(index);
                    program.lanes[place].signals_per_step -= 1;
                    let name = plan.lane_name(list.lane);
                    assert!(validate(&changed).is_err(), "{} {id:?} {name} {index}", map.policy);
                    by_lane.insert((id, list.lane));
                }
            }
        }
        assert_eq!(by_lane.len(), 4, "{}: both lanes signal in both programs", map.policy);
    }
}
