//! The validator refuses a plan that lacks any one of its copies, signals and waits
//! (`program/tests/dropped.rs`). Forced past it, such a plan must show: wrong logits or tokens, or
//! lanes that stand still and say so. All memory begins as NaN, so what is read too early shows.

use std::fmt::Write as _;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::mpsc::{RecvTimeoutError, channel};
use std::time::Duration;

use kernels::Variant;
use model::config::{Activation, Dtype, Family, ModelConfig, Rope, RopeScaling};
use model::source::dummy::DummySource;
use planner::policy::{Homes, Policy, device_map};
use planner::split::{parse_chunking, parse_split};
use program::compile::compile;
use program::ir::{Instruction, Lane, Phase, Wait};
use program::map::Home;
use program::plan::{Plan, RunShape};
use program::validate::{describe, validate};
use workers::error::LaneError;
use workers::setup::LaneOptions;
use workers::testing::{InProcess, Interleaved, Outcome, Placed, Request, Sampled};

const NEW: u32 = 5;

fn llama() -> ModelConfig {
    ModelConfig {
        name: "tiny-llama".to_owned(),
        family: Family::Llama,
        num_layers: 3,
        hidden_size: 16,
        num_heads: 4,
        num_kv_heads: 2,
        head_dim: 4,
        ffn_size: 24,
        vocab_size: 41,
        max_positions: 32,
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

fn opt() -> ModelConfig {
    ModelConfig {
        name: "tiny-opt".to_owned(),
        family: Family::Opt,
        num_kv_heads: 4,
        activation: Activation::Relu,
        rope: None,
        position_offset: 2,
        qkv_bias: true,
        out_bias: true,
        ffn_bias: true,
        tied_embeddings: true,
        ..llama()
    }
}

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
        [
            Case::new(llama(), Dtype::Bf16, None, "scores:norm1"),
            Case::new(opt(), Dtype::F32, Some("attention=2"), "scores.1:ln1"),
        ]
    }

    fn source(&self) -> DummySource {
        DummySource::new(self.config.clone(), 5)
    }

    fn group(&self) -> Vec<Placed> {
        (0..4)
            .map(|i: usize| {
                let prompt = (0..2 + i as u32 % 4).map(|j| (i as u32 * 11 + j * 7 + 1) % 41);
                Placed { batch: i / 2, slot: i % 2, request: Request::greedy(prompt.collect(), NEW) }
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

    fn lane_and_instruction(&self, site: Site) -> (Lane, &Instruction) {
        let program = match site.phase {
            Phase::Prefill => &self.plan.prefill,
            Phase::Decode => &self.plan.decode,
        };
        let list = &program.lanes[site.list];
        (list.lane, &list.instructions[site.index])
    }

    fn describe(&self, site: Site) -> String {
        let (lane, instruction) = self.lane_and_instruction(site);
        let program = match site.phase {
            Phase::Prefill => &self.plan.prefill,
            Phase::Decode => &self.plan.decode,
        };
        let rest = &program.lanes[site.list].instructions[site.index..];
        let before = rest.iter().find(|other| other.is_work());
        let before = before.map_or_else(String::new, |i| describe(i, self.config.family));
        let what = describe(instruction, self.config.family);
        format!("{:?} {} {}: {what}, before {before}", site.phase, lane.name(), site.index)
    }
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
    let mut all: Vec<_> = sampled
        .iter()
        .map(|one| (one.step, one.batch, one.slot, bits(&one.logits)))
        .collect();
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

/// Runs a plan lane by lane in one order. `None`: the lanes stand still, or one of them panicked.
fn interleaved(case: &Case, plan: Plan, mut schedule: Schedule) -> Option<Seen> {
    let run = || {
        let limit = Duration::from_secs(60);
        let mut lanes = Interleaved::start(plan, &case.source(), options(limit)).expect("starts");
        lanes.run_group(&case.group(), &mut |ready| schedule.choose(ready)).ok()
    };
    catch_unwind(AssertUnwindSafe(run)).ok().flatten().map(seen)
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

fn wait_at(case: &Case, site: Site) -> (Lane, Wait) {
    match case.lane_and_instruction(site) {
        (lane, Instruction::Wait(wait)) => (lane, *wait),
        (_, other) => panic!("{other:?} is not a wait"),
    }
}

#[test]
fn a_missing_wait_shows() {
    watched(|| {
        for case in Case::all() {
            let expected = whole(&case);
            let (mut shown, mut hidden) = (0, String::new());
            for site in case.sites(is_wait) {
                let (lane, wait) = wait_at(&case, site);
                let schedule = Schedule::Favour { first: lane, last: wait.lane };
                assert_eq!(
                    interleaved(&case, case.plan.clone(), schedule).as_ref(),
                    Some(&expected)
                );
                let plan = case.without(site);
                if interleaved(&case, plan, schedule).as_ref() == Some(&expected) {
                    writeln!(hidden, "{}", case.describe(site)).expect("a string");
                } else {
                    shown += 1;
                }
            }
            println!("{}: {shown} shown, {} hidden\n{hidden}", case.config.name, hidden.lines().count());
        }
    });
}

#[test]
fn a_missing_copy_shows() {
    watched(|| {
        for case in Case::all() {
            let expected = whole(&case);
            let run = |plan: Plan| {
                let options = options(Duration::from_secs(60));
                let mut lanes = InProcess::start(plan, &case.source(), options).expect("starts");
                let outcomes = lanes.run_group(&case.group());
                assert!(lanes.finish().iter().all(Result::is_ok));
                outcomes
            };
            assert_eq!(run(case.plan.clone()), expected.0);
            for site in case.sites(is_copy) {
                let plan = case.without(site);
                let tokens = run(plan.clone()) != expected.0;
                let found = interleaved(&case, plan, Schedule::Random(2));
                println!("{tokens} {} {}", found.as_ref() != Some(&expected), case.describe(site));
            }
        }
    });
}

#[test]
fn a_lost_signal_shows() {
    watched(|| {
        for case in Case::all() {
            let expected = whole(&case);
            for site in case.sites(is_signal) {
                let plan = case.without(site);
                let found = interleaved(&case, plan.clone(), Schedule::Random(3));
                assert_ne!(found.as_ref(), Some(&expected));
                println!("{} {}", found.is_none(), case.describe(site));
                let mut lanes = InProcess::start(
                    plan,
                    &case.source(),
                    options(Duration::from_millis(20)),
                )
                .expect("starts");
                assert!(lanes.try_group(&case.group()).is_err(), "{}", case.describe(site));
                let ended = lanes.finish();
                let told = |ended: &Result<(), LaneError>| {
                    matches!(ended, Err(LaneError::TimedOut { .. }))
                };
                assert!(ended.iter().any(told), "{ended:?}");
            }
        }
    });
}
