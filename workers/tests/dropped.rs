//! The validator refuses a plan that lacks any one of its copies, signals and waits
//! (`program/tests/dropped.rs`). Forced past it, such a plan must show: wrong logits or tokens, or
//! lanes that stand still and say so. All memory begins as NaN, so what is read too early shows.

mod common;

use std::sync::mpsc::{RecvTimeoutError, channel};
use std::time::Duration;

use kernels::Variant;
use model::config::{Dtype, ModelConfig};
use model::ops::Op;
use model::source::dummy::DummySource;
use planner::policy::{Homes, Policy, device_map};
use planner::split::{parse_chunking, parse_split};
use program::compile::compile;
use program::ir::{Instruction, Lane, LaneProgram, Moved, Phase, Region, Wait};
use program::map::Home;
use program::plan::{Memory, Plan, RunShape};
use program::validate::{describe, validate};
use workers::error::LaneError;
use workers::setup::LaneOptions;
use workers::testing::{InProcess, Interleaved, Outcome, Placed, Request, Sampled};

const NEW: u32 = 5;

/// A two-split plan with two batches on the emulated device.
#[derive(Debug, Clone)]
struct Case {
    config: ModelConfig,
    plan: Plan,
}

impl Case {
    fn new(config: ModelConfig, dtype: Dtype, chunks: Option<&str>, split: &str) -> Case {
        let shape = RunShape {
            batches: 2,
            batch_size: 2,
            max_prompt: 5,
            max_context: 5 + NEW,
            max_new: NEW,
            micro_sequences: 1,
            dtype,
        };
        let chunking = chunks.map(|text| parse_chunking(text).expect("a chunking"));
        let split = parse_split(split, &config, chunking).expect("a split");
        let policy = Policy::TwoSplit { split, chunking };
        let homes = Homes { kv: Home::Host, prefill_hidden: Home::Vram };
        let map = device_map(&policy, &config, true, homes);
        let plan = compile(&config, &shape, &map).expect("compiles");
        validate(&plan).expect("the whole plan is valid");
        Case { config, plan }
    }

    fn all() -> [Case; 2] {
        let three_layers = |config| ModelConfig { num_layers: 3, ..config };
        let (llama, opt) = (three_layers(common::llama()), three_layers(common::opt()));
        [
            Case::new(llama, Dtype::Bf16, None, "scores:norm1"),
            Case::new(opt, Dtype::F32, Some("attention=2"), "scores.1:ln1"),
        ]
    }

    fn source(&self) -> DummySource {
        DummySource::new(self.config.clone(), 5)
    }

    /// All sequences run to the last step, with prompts of different lengths.
    fn group(&self) -> Vec<Placed> {
        (0..4u32)
            .map(|i| {
                let prompt = (0..2 + i).map(|j| (i * 11 + j * 7 + 1) % 41).collect();
                let (batch, slot) = (i as usize / 2, i as usize % 2);
                Placed { batch, slot, request: Request::greedy(prompt, NEW) }
            })
            .collect()
    }

    /// Every instruction of a kind: phase, index among the phase's lanes, index in the lane's list.
    fn sites(&self, kind: fn(&Instruction) -> bool) -> Vec<Site> {
        let mut sites = Vec::new();
        for program in [&self.plan.prefill, &self.plan.decode] {
            for (list, lane) in program.lanes.iter().enumerate() {
                for (index, instruction) in lane.instructions.iter().enumerate() {
                    if kind(instruction) {
                        sites.push(Site { phase: program.phase, list, index });
                    }
                }
            }
        }
        sites
    }

    /// The plan without one instruction. Lanes still count on the signal if it was one.
    fn without(&self, site: Site) -> Plan {
        let mut plan = self.plan.clone();
        let program = match site.phase {
            Phase::Prefill => &mut plan.prefill,
            Phase::Decode => &mut plan.decode,
        };
        program.lanes[site.list].instructions.remove(site.index);
        plan
    }

    fn lists(&self, phase: Phase) -> &[LaneProgram] {
        match phase {
            Phase::Prefill => &self.plan.prefill.lanes,
            Phase::Decode => &self.plan.decode.lanes,
        }
    }

    fn list(&self, site: Site) -> &LaneProgram {
        &self.lists(site.phase)[site.list]
    }

    fn wait(&self, site: Site) -> Wait {
        match &self.list(site).instructions[site.index] {
            Instruction::Wait(wait) => *wait,
            other => panic!("{other:?} is not a wait"),
        }
    }

    /// The work that a wait is for, and the work that it holds back.
    fn ends(&self, site: Site) -> (&Instruction, &Instruction) {
        let wait = self.wait(site);
        let lists = self.lists(site.phase);
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

    fn describe(&self, site: Site) -> String {
        let list = self.list(site);
        let what = describe(&list.instructions[site.index], self.config.family);
        format!("{:?} {} {}: {what}", site.phase, list.lane.name(), site.index)
    }

    /// Why the lack of a wait changes no value, whatever the order of the lanes; `None` when it
    /// must.
    fn cannot_show(&self, site: Site) -> Option<&'static str> {
        if site.phase == Phase::Prefill && self.wait(site).previous_step {
            return Some("prefill is one step a group, and groups do not overlap");
        }
        let (awaited, held) = self.ends(site);
        if site.phase == Phase::Prefill
            && conflicts(awaited, held)
                .iter()
                .all(|region| self.plan.buffer(region.buffer).memory == Memory::Control)
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

/// What two instructions both touch, one of them writing.
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

#[derive(Debug, Clone, Copy)]
struct Site {
    phase: Phase,
    list: usize,
    index: usize,
}

fn options(wait_timeout: Duration) -> LaneOptions {
    LaneOptions { variant: Variant::best(), threads: 1, link_bytes_per_s: None, wait_timeout }
}

/// Tokens, and the bits of all logits that they were drawn from, by place and step.
type Seen = (Vec<Outcome>, Vec<(u32, usize, usize, Vec<u32>)>);

fn seen((outcomes, sampled): (Vec<Outcome>, Vec<Sampled>)) -> Seen {
    let bits = |logits: &[f32]| logits.iter().map(|logit| logit.to_bits()).collect();
    let mut all: Vec<_> =
        sampled.iter().map(|one| (one.step, one.batch, one.slot, bits(&one.logits))).collect();
    // The order of batches is the schedule's.
    all.sort();
    (outcomes, all)
}

/// Which lane goes on when several can.
#[derive(Debug, Clone, Copy)]
enum Schedule {
    /// One lane whenever it can, another only when no other can.
    Favour { first: Lane, last: Lane },
    /// A seeded choice.
    Random(u64),
}

impl Schedule {
    fn choose(&mut self, ready: &[Lane]) -> usize {
        match self {
            Schedule::Favour { first, last } => {
                let rank = |lane: &Lane| {
                    if lane == first {
                        0
                    } else if lane == last {
                        2
                    } else {
                        1
                    }
                };
                (0..ready.len()).min_by_key(|i| rank(&ready[*i])).expect("one is ready")
            }
            Schedule::Random(state) => {
                *state = state.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1);
                (*state >> 33) as usize % ready.len()
            }
        }
    }
}

/// Runs a plan on one thread in one order. `None`: the lanes stand still.
fn interleaved(case: &Case, plan: Plan, mut schedule: Schedule) -> Option<Seen> {
    let limit = Duration::from_secs(60);
    let mut lanes = Interleaved::start(plan, &case.source(), options(limit)).expect("starts");
    lanes.run_group(&case.group(), &mut |ready| schedule.choose(ready)).ok().map(seen)
}

/// The undisturbed run.
fn whole(case: &Case) -> Seen {
    let seen = interleaved(case, case.plan.clone(), Schedule::Random(1)).expect("it drains");
    assert_eq!(seen.1.len(), 4 * NEW as usize);
    let finite = |(_, _, _, bits): &(u32, usize, usize, Vec<u32>)| {
        bits.iter().all(|bits| f32::from_bits(*bits).is_finite())
    };
    assert!(seen.1.iter().all(finite));
    seen
}

/// Fails the test when it takes far longer than it could on any machine.
fn watched(test: impl FnOnce() + Send + 'static) {
    let (done, finished) = channel();
    let thread = std::thread::spawn(move || {
        test();
        // Nobody listens any more if the time was up.
        let _ = done.send(());
    });
    match finished.recv_timeout(Duration::from_secs(300)) {
        Err(RecvTimeoutError::Timeout) => panic!("the test hangs"),
        _ => {
            if let Err(panic) = thread.join() {
                std::panic::resume_unwind(panic);
            }
        }
    }
}

fn is_wait(instruction: &Instruction) -> bool {
    matches!(instruction, Instruction::Wait(_))
}

fn is_signal(instruction: &Instruction) -> bool {
    matches!(instruction, Instruction::Signal)
}

fn is_copy(instruction: &Instruction) -> bool {
    matches!(instruction, Instruction::Copy(_))
}

#[test]
fn every_order_of_the_lanes_gives_the_same_bits() {
    watched(|| {
        for case in Case::all() {
            let expected = whole(&case);
            let pairs = Lane::ALL.into_iter().flat_map(|first| Lane::ALL.map(|last| (first, last)));
            let favours = pairs.map(|(first, last)| Schedule::Favour { first, last });
            for schedule in favours.chain((0..30).map(Schedule::Random)) {
                let found = interleaved(&case, case.plan.clone(), schedule);
                assert!(found.as_ref() == Some(&expected), "{} {schedule:?}", case.config.name);
            }
        }
    });
}

/// The lane that lost its wait runs ahead and the one that it would have waited for comes last, as
/// if it were delayed at every instruction.
#[test]
fn a_missing_wait_shows() {
    watched(|| {
        for case in Case::all() {
            let expected = whole(&case);
            let (mut shown, mut hidden) = (0, 0);
            for site in case.sites(is_wait) {
                let (first, last) = (case.list(site).lane, case.wait(site).lane);
                let found =
                    interleaved(&case, case.without(site), Schedule::Favour { first, last });
                if found.as_ref() != Some(&expected) {
                    shown += 1;
                } else if let Some(_reason) = case.cannot_show(site) {
                    hidden += 1;
                } else {
                    panic!("{} does not show: {}", case.config.name, case.describe(site));
                }
            }
            println!("{}: {shown} missing waits show, {hidden} cannot", case.config.name);
            assert!(shown > 200 && hidden < shown / 5, "{shown} {hidden}");
        }
    });
}

/// Tokens of the workers' own lanes, and the bits of the last logits of both batches; or how the
/// lanes ended.
fn threads(
    case: &Case,
    plan: Plan,
    wait_timeout: Duration,
) -> Result<(Vec<Outcome>, Vec<u32>), Vec<Result<(), LaneError>>> {
    let mut lanes = InProcess::start(plan, &case.source(), options(wait_timeout)).expect("starts");
    match lanes.try_group(&case.group()) {
        Err(_) => Err(lanes.finish()),
        Ok(outcomes) => {
            let logits = [0, 1].map(|batch| lanes.logits(Phase::Decode, batch, 0, 2)).concat();
            assert!(lanes.finish().iter().all(Result::is_ok));
            Ok((outcomes, logits.into_iter().map(f32::to_bits).collect()))
        }
    }
}

#[test]
fn a_missing_copy_shows() {
    watched(|| {
        let limit = Duration::from_secs(60);
        for case in Case::all() {
            let expected = threads(&case, case.plan.clone(), limit);
            assert_eq!(expected.as_ref().map(|found| &found.0), Ok(&whole(&case).0));
            let sites = case.sites(is_copy);
            for site in &sites {
                let found = threads(&case, case.without(*site), limit);
                assert!(found != expected, "{}: {}", case.config.name, case.describe(*site));
            }
            println!("{}: {} missing copies show", case.config.name, sites.len());
            assert!(sites.len() > 90, "{}", sites.len());
        }
    });
}

#[test]
fn a_lost_signal_stops_the_lanes() {
    watched(|| {
        for case in Case::all() {
            let sites = case.sites(is_signal);
            for site in &sites {
                let found = interleaved(&case, case.without(*site), Schedule::Random(3));
                assert!(found.is_none(), "{}: {}", case.config.name, case.describe(*site));
            }
            println!("{}: {} lost signals show", case.config.name, sites.len());
            assert!(sites.len() > 150, "{}", sites.len());
            // The lanes sleep until their time is up: many runs at once take no longer than one.
            std::thread::scope(|scope| {
                for share in sites.chunks(sites.len().div_ceil(8)) {
                    let case = &case;
                    scope.spawn(move || share.iter().for_each(|site| told_by_a_lane(case, *site)));
                }
            });
        }
    });
}

/// In the workers' own lanes, one that waited in vain says so.
fn told_by_a_lane(case: &Case, site: Site) {
    match threads(case, case.without(site), Duration::from_millis(20)) {
        Ok(_) => panic!("{}: {} was not missed", case.config.name, case.describe(site)),
        Err(ended) => assert!(
            ended.iter().any(|ended| matches!(ended, Err(LaneError::TimedOut { .. }))),
            "{ended:?}"
        ),
    }
}
