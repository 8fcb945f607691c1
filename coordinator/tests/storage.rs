//! Weights on two storages, each read by a worker and a lane of its own: compiled, proved,
//! simulated and run by real processes, with the tokens of the same plan without storages, also
//! where a storage is lost on the way.
//!
//! The workers are started from this very program, as the engine starts them from the coordinator;
//! so it has a `main` of its own, which is a worker where it is asked to be one, and lists and runs
//! the tests as test runners ask otherwise.

use std::collections::BTreeSet;
use std::ops::ControlFlow;
use std::path::Path;
use std::process::ExitCode;

use coordinator::boundary::engine::{
    Engine, EngineError, Finish, Generated, Observer, Sampling, Sequence, Verdict,
};
use coordinator::engine::launch::{LaunchError, LaunchOptions};
use coordinator::engine::{Measured, RunEngine};
use coordinator::setup::model::open_weights;
use kernels::Variant;
use model::config::{Activation, Dtype, Family, ModelConfig, Rope, RopeScaling};
use planner::policy::{Homes, Policy, device_map};
use planner::split::parse_split;
use program::compile::compile;
use program::ir::{Instruction, Moved, Program, ProgramId};
use program::map::DeviceMap;
use program::plan::{Plan, RunShape};
use program::shares::ReadShares;
use program::simulate::{Costs, Place, Span, simulate};
use program::topology::{LaneId, LaneKind, LaneSet, MemoryId};
use program::validate::{replay, validate};
use program::weights::Weights;
use rustix::process::{Pid, Signal, kill_process};
use staging::{AlignedBuffer, BlobSize, Identity, Writer};
use workers::load::Encoded;
use workers::shared::protocol::{StagedAt, WeightsFrom};

const TESTS: [(&str, fn()); 10] = [
    ("storages_change_no_token", storages_change_no_token),
    ("another_storage_goes_on_for_one_that_fails", another_storage_goes_on_for_one_that_fails),
    (
        "another_goes_on_reading_straight_to_the_device",
        another_goes_on_reading_straight_to_the_device,
    ),
    ("another_storage_goes_on_for_a_killed_one", another_storage_goes_on_for_a_killed_one),
    ("any_of_three_storages_can_be_the_last", any_of_three_storages_can_be_the_last),
    ("without_any_storage_the_run_ends", without_any_storage_the_run_ends),
    (
        "a_cut_file_or_a_removed_folder_costs_a_storage",
        a_cut_file_or_a_removed_folder_costs_a_storage,
    ),
    ("another_staging_is_refused", another_staging_is_refused),
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
        hidden_size: 256,
        num_heads: 4,
        num_kv_heads: 2,
        head_dim: 64,
        ffn_size: 768,
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

/// The map's plan on its machine with so many storages, on which all weights of its layers and
/// around them live, read to the host or straight to the device.
fn on_storages(map: &DeviceMap, dtype: Dtype, storages: u32, to: To) -> Plan {
    let mut map = map.clone();
    map.direct_reads = to == To::Device;
    map.weights.iter_mut().flatten().for_each(|home| *home = MemoryId::STORAGES);
    map.outer_weights = MemoryId::STORAGES;
    map.shares = ReadShares::new((1..=storages).collect());
    let plan = compile(&config(), &shape(dtype), &map).expect("compiles");
    validate(&plan).expect("it is proved");
    plan
}

/// Where weights that the GPU multiplies are read to.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum To {
    Host,
    Device,
}

/// Both.
const WAYS: [To; 2] = [To::Host, To::Device];

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

/// A staging of all weights of a plan's storages for each of them.
struct Stagings {
    directory: tempfile::TempDir,
    at: Vec<StagedAt>,
}

const SEED: u64 = 11;

impl Stagings {
    fn of(plan: &Plan) -> Stagings {
        let directory = tempfile::tempdir().expect("a folder");
        let config = &plan.config;
        let formats = &plan.map.weight_formats;
        let encoded = Encoded { config, dtype: plan.shape.dtype, formats };
        let mut stored: Vec<Weights> = Vec::new();
        for placed in &plan.weights {
            let is_stored = plan.topology.is_storage(plan.buffer(placed.buffer).segment.memory);
            if is_stored && !stored.contains(&placed.weights) {
                stored.push(placed.weights);
            }
        }
        let blobs: Vec<BlobSize> = stored
            .iter()
            .map(|weights| BlobSize {
                name: weights.name(config),
                size_bytes: encoded.size_bytes(*weights) as u64,
            })
            .collect();
        let identity = Identity {
            name: "tiny".to_owned(),
            model: "tiny".to_owned(),
            weights: "dummy".to_owned(),
            form: plan.shape.dtype.name().to_owned(),
            description: Vec::new(),
        };
        let source = open_weights(&WeightsFrom::Dummy { seed: SEED }, config).expect("weights");
        let stage = |(number, _)| {
            let path = directory.path().join(format!("{number}"));
            std::fs::create_dir(&path).expect("a folder");
            let mut writer = Writer::begin(&path, &identity, &blobs).expect("a staging");
            for (index, weights) in stored.iter().enumerate() {
                let size_bytes = encoded.size_bytes(*weights);
                let mut buffer = AlignedBuffer::new(size_bytes);
                let bytes = &mut buffer.bytes_mut()[..size_bytes];
                let how = (Variant::best(), 1);
                encoded.blob(*weights, source.as_ref(), how, bytes).expect("a weight");
                writer.write(index, bytes).expect("it is written");
            }
            let staged = writer.finish().expect("it is whole");
            StagedAt {
                path: staged.path().display().to_string(),
                uses_threads: number % 2 == 1,
                silence_ms: 10_000,
                faults: String::new(),
            }
        };
        let at = plan.topology.storages().into_iter().enumerate().map(stage).collect();
        Stagings { directory, at }
    }

    /// The same with faults of some of them.
    fn with(&self, faults: &[(usize, &str)]) -> Vec<StagedAt> {
        let mut at = self.at.clone();
        for (storage, faults) in faults {
            at[*storage].faults = (*faults).to_owned();
            if faults.contains("silence") {
                at[*storage].silence_ms = 300;
            }
        }
        at
    }
}

/// Real processes for a plan.
fn start(plan: Plan, staged: &[StagedAt]) -> Result<RunEngine, LaunchError> {
    let options = LaunchOptions {
        weights: WeightsFrom::Dummy { seed: SEED },
        cpu_threads: 2,
        gpu_threads: 1,
        link_bytes_per_s: None,
        cpus: Vec::new(),
        spin_us: 0,
        durations: None,
        cuda: None,
        grammars: None,
        staged: staged.to_vec(),
    };
    let interrupt = Box::new(|| false);
    RunEngine::start(plan, &options, None, interrupt, &mut |_, _| true)
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

/// The tokens of some groups, the spans of the last one, and what was measured.
fn run_groups(
    plan: Plan,
    staged: &[StagedAt],
    groups: usize,
) -> (Vec<Vec<u32>>, Vec<Span>, Measured) {
    let mut engine = start(plan, staged).expect("the workers start");
    let prompts = prompts();
    let mut tokens = Tokens::default();
    for _ in 0..groups {
        engine.run(&sequences(&prompts), &mut tokens).expect("a group");
    }
    let spans = engine.spans();
    let measured = engine.finish().expect("no trace file");
    assert_eq!(measured.totals.lost, 0);
    tokens.0.sort();
    let tokens = tokens.0.into_iter().map(|(_, tokens)| tokens).collect();
    (tokens, spans, measured)
}

/// Twice: the second group begins with what the first has left in slots.
const GROUPS: usize = 2;

/// What the map computes without storages.
fn expected(map: &DeviceMap, dtype: Dtype, groups: usize) -> Vec<Vec<u32>> {
    let plain = compile(&config(), &shape(dtype), map).expect("compiles");
    run_groups(plain, &[], groups).0
}

fn storages_change_no_token() {
    for dtype in [Dtype::Bf16, Dtype::F32] {
        for map in maps() {
            let plain = compile(&config(), &shape(dtype), &map).expect("compiles");
            let (expected, _, alone) = run_groups(plain, &[], GROUPS);
            assert_eq!(expected.len(), 8, "four sequences, twice");
            let distinct: BTreeSet<u32> = expected.iter().flatten().copied().collect();
            assert!(distinct.len() > 5, "tokens tell nothing: {distinct:?}");
            for to in WAYS {
                let plan = on_storages(&map, dtype, 2, to);
                let what = format!("{} in {dtype:?} to {to:?}", map.policy);
                let stagings = Stagings::of(&plan);
                let (found, spans, measured) = run_groups(plan.clone(), &stagings.at, GROUPS);
                assert_eq!(found, expected, "{what}");
                let workers = alone.kernel_variants.len() + 2;
                assert_eq!(measured.kernel_variants.len(), workers, "{what}");
                assert!(measured.lost_storages.is_empty(), "{:?}", measured.lost_storages);
                replay(&plan, &spans).expect("what ran is what was proved");
                read_in_every_step(&plan, &spans, &what);
            }
        }
    }
}

fn read_in_every_step(plan: &Plan, spans: &[Span], what: &str) {
    for lane in plan.lanes().into_iter().filter(|lane| reads(plan, *lane)) {
        let of_lane = spans.iter().filter(|span| span.lane == lane);
        let steps: BTreeSet<(bool, u32)> =
            of_lane.map(|span| (span.program == ProgramId::DECODE, span.step)).collect();
        // Prefill, and the eleven decode steps of the longest answer.
        assert_eq!(steps.len(), 12, "{what} {}", plan.lane_name(lane));
    }
}

/// Requests of prefill and of steps after it, so that faults fall into prefill, early decode and
/// late decode of a group, or into the second group.
const FAULTY_REQUESTS: [u64; 4] = [3, 40, 150, 250];

fn another_storage_goes_on_for_one_that_fails() {
    goes_on(&maps()[0], To::Host, &FAULTY_REQUESTS);
}

fn another_goes_on_reading_straight_to_the_device() {
    for map in &maps()[1..] {
        goes_on(map, To::Device, &FAULTY_REQUESTS[1..3]);
    }
}

fn goes_on(map: &DeviceMap, to: To, requests: &[u64]) {
    let expected = expected(map, Dtype::Bf16, GROUPS);
    let plan = on_storages(map, Dtype::Bf16, 2, to);
    let stagings = Stagings::of(&plan);
    for (fault, said) in
        [("eio", "Input/output error"), ("flip", "checksum"), ("silence", "has not answered")]
    {
        for request in requests {
            for storage in [0, 1] {
                let staged = stagings.with(&[(storage, &format!("{fault}@{request}"))]);
                let (found, spans, measured) = run_groups(plan.clone(), &staged, GROUPS);
                let what = format!("{fault}@{request} of storage {storage} to {to:?}");
                assert_eq!(found, expected, "{what}");
                replay(&plan, &spans).unwrap_or_else(|error| panic!("{what}: {error}"));
                let [lost] = &measured.lost_storages[..] else {
                    panic!("{what}: {:?}", measured.lost_storages)
                };
                assert!(lost.reason.contains(said), "{what}: {}", lost.reason);
                assert_eq!(lost.worker, format!("storage worker {storage}"), "{what}");
                assert_eq!(lost.successor, format!("storage worker {}", 1 - storage), "{what}");
            }
        }
    }
}

fn any_of_three_storages_can_be_the_last() {
    let map = &maps()[1];
    let expected = expected(map, Dtype::F32, GROUPS);
    let plans = WAYS.map(|to| on_storages(map, Dtype::F32, 3, to));
    let stagings = Stagings::of(&plans[0]);
    let both = [(0, 1), (1, 0), (1, 2), (2, 0)].into_iter().zip(plans.iter().cycle());
    for ((first, second), plan) in both {
        let staged = stagings.with(&[(first, "eio@30"), (second, "flip@160")]);
        let (found, _, measured) = run_groups(plan.clone(), &staged, GROUPS);
        assert_eq!(found, expected, "{first}, {second}");
        assert_eq!(measured.lost_storages.len(), 2, "{:?}", measured.lost_storages);
    }
}

fn without_any_storage_the_run_ends() {
    let plan = on_storages(&maps()[0], Dtype::Bf16, 2, To::Host);
    let stagings = Stagings::of(&plan);
    let mut engine =
        start(plan, &stagings.with(&[(0, "eio@5"), (1, "eio@90")])).expect("the workers start");
    let prompts = prompts();
    let mut tokens = Tokens::default();
    let failed = (0..50).find_map(|_| engine.run(&sequences(&prompts), &mut tokens).err());
    let EngineError::Failed(said) = failed.expect("nobody reads any more") else {
        panic!("interrupted")
    };
    assert!(said.contains("Input/output error") && said.contains("storage worker"), "{said}");
}

fn a_cut_file_or_a_removed_folder_costs_a_storage() {
    let map = &maps()[0];
    let expected = expected(map, Dtype::Bf16, GROUPS);
    let plan = on_storages(map, Dtype::Bf16, 2, To::Host);
    // A file that was cut before the run is refused, with what to do.
    let stagings = Stagings::of(&plan);
    let file = Path::new(&stagings.at[1].path).join("weights.bin");
    let cut = |bytes| {
        let file = std::fs::File::options().write(true).open(&file).expect("the file");
        file.set_len(bytes).expect("it can be cut");
    };
    cut(4096);
    let error = start(plan.clone(), &stagings.at).expect_err("a file that is cut").to_string();
    assert!(error.contains("weights.bin") && error.contains("stage"), "{error}");
    // One that is cut while it is read costs its storage; the removed folder of one that is open
    // costs nothing.
    let stagings = Stagings::of(&plan);
    let file = Path::new(&stagings.at[1].path).join("weights.bin");
    let mut engine = start(plan, &stagings.at).expect("the workers start");
    let prompts = prompts();
    let mut tokens = Tokens::default();
    engine.run(&sequences(&prompts), &mut tokens).expect("a group");
    std::fs::remove_dir_all(stagings.directory.path().join("0")).expect("it can be removed");
    std::fs::File::options().write(true).open(&file).expect("the file").set_len(0).expect("cut");
    engine.run(&sequences(&prompts), &mut tokens).expect("a group");
    let measured = engine.finish().expect("no trace file");
    tokens.0.sort();
    let found: Vec<Vec<u32>> = tokens.0.into_iter().map(|(_, tokens)| tokens).collect();
    assert_eq!(found, expected);
    let [lost] = &measured.lost_storages[..] else { panic!("{:?}", measured.lost_storages) };
    assert!(lost.worker == "storage worker 1" && lost.reason.contains("cut"), "{}", lost.reason);
}

fn another_staging_is_refused() {
    let map = &maps()[0];
    let stagings = Stagings::of(&on_storages(map, Dtype::Bf16, 2, To::Host));
    let plan = on_storages(map, Dtype::F32, 2, To::Host);
    let error = start(plan, &stagings.at).expect_err("another form").to_string();
    assert!(error.contains("stage the model in this form"), "{error}");
}

/// Kills a worker of this process at the first token.
struct Killer {
    worker: &'static str,
    signal: Signal,
    killed: Option<Pid>,
    tokens: Tokens,
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
            kill_process(pid, self.signal).expect("it lives");
            self.killed = Some(pid);
        }
        Verdict::Continue
    }

    fn finished(&mut self, sequence: usize, generated: Generated) -> ControlFlow<()> {
        self.tokens.finished(sequence, generated)
    }
}

fn another_storage_goes_on_for_a_killed_one() {
    let map = &maps()[0];
    const MORE: usize = 6;
    let expected = expected(map, Dtype::Bf16, MORE);
    for signal in [Signal::KILL, Signal::STOP] {
        let plan = on_storages(map, Dtype::Bf16, 2, To::Host);
        let stagings = Stagings::of(&plan);
        let mut engine = start(plan, &stagings.at).expect("the workers start");
        let prompts = prompts();
        let tokens = Tokens::default();
        let mut killer = Killer { worker: "storage worker 1", signal, killed: None, tokens };
        // A group may have ended before it is noticed; the next one has not.
        for _ in 0..MORE {
            engine.run(&sequences(&prompts), &mut killer).expect("a group");
        }
        assert_eq!(killer.find(), None, "the lost worker is gone");
        let measured = engine.finish().expect("no trace file");
        let [lost] = &measured.lost_storages[..] else { panic!("{:?}", measured.lost_storages) };
        assert!(lost.reason.contains("signal"), "{}", lost.reason);
        killer.tokens.0.sort();
        let found: Vec<_> = killer.tokens.0.into_iter().map(|(_, tokens)| tokens).collect();
        assert_eq!(found, expected, "{signal:?}");
    }
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
        let plan = on_storages(&map, Dtype::Bf16, 2, To::Host);
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
    for (map, to) in maps().into_iter().flat_map(|map| WAYS.map(|to| (map.clone(), to))) {
        let plan = on_storages(&map, Dtype::Bf16, 2, to);
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
