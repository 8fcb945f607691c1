//! Hand-computed pipelines, contention, sums, and random programs against a naive executor.

use model::ops::{Op, Value};

use crate::ir::{
    At, BufferId, Compute, Copy, Instruction, LaneProgram, Moved, Program, ProgramId, ProgramShape,
    Region, Rows, TimelineWait,
};
use crate::kv_owner::AttentionSide;
use crate::topology::{LaneId, LaneSet, Topology};

use super::{
    LaneUsage, MeasuredCosts, Place, SimulateError, SimulationCosts, Span, simulate, simulate_ends,
};

/// Costs taken from the program itself: an instruction's work is `layer` nanoseconds.
struct ByLayer {
    wake_ns: f64,
    /// Rate of the CPU and host-to-device lanes while the other one is busy.
    beside: f64,
}

const ALONE: ByLayer = ByLayer { wake_ns: 0.0, beside: 1.0 };

impl SimulationCosts for ByLayer {
    fn work_ns(&self, _: Place, instruction: &Instruction, _: u32) -> f64 {
        f64::from(instruction.at().unwrap().layer.unwrap())
    }

    fn rate(&self, Place { lane, .. }: Place, busy: LaneSet) -> f64 {
        let other = match lane {
            LaneId::CPU_COMPUTE => LaneId::H2D_WEIGHTS,
            LaneId::H2D_WEIGHTS => LaneId::CPU_COMPUTE,
            _ => return 1.0,
        };
        if busy.contains(other) { self.beside } else { 1.0 }
    }

    fn wake_ns(&self) -> f64 {
        self.wake_ns
    }
}

fn work(ns: u16) -> Instruction {
    let region = Region::whole(BufferId(0));
    let at = At { layer: Some(ns), batch: 0, stream: 0 };
    let moved = Moved::Value(Value::Hidden);
    Instruction::Copy(Copy { moved, at, chunk: None, from: region, to: region, table: None })
}

fn sample(ns: u16) -> Instruction {
    Instruction::Compute(Compute {
        op: Op::Sample,
        at: At { layer: Some(ns), batch: 0, stream: 0 },
        chunk: None,
        inputs: vec![Region::whole(BufferId(0))],
        caches: Vec::new(),
        weights: Vec::new(),
        output: None,
        table: Region::whole(BufferId(1)),
    })
}

/// One sequence, one row.
const SHAPE: ProgramShape = ProgramShape {
    rows: Rows::Single,
    streams: 1,
    sequences: 1,
    stream_rows: 1,
    logits_rows: 1,
    next: ProgramId::DECODE,
    attention_side: AttentionSide::Mapped,
};

fn wait(lane: LaneId, offset: u32, previous_step: bool) -> Instruction {
    Instruction::Wait(TimelineWait { lane, offset, previous_step })
}

fn program(lanes: Vec<(LaneId, Vec<Instruction>)>) -> Program {
    let lanes = lanes
        .into_iter()
        .map(|(lane, instructions)| {
            let signals = instructions.iter().filter(|i| **i == Instruction::Signal).count();
            LaneProgram { lane, instructions, signals_per_step: signals as u32 }
        })
        .collect();
    Program { id: ProgramId::DECODE, shape: SHAPE, lanes }
}

fn times(spans: &[Span], lane: LaneId) -> Vec<(u64, u64)> {
    let mut own: Vec<&Span> = spans.iter().filter(|span| span.lane == lane).collect();
    own.sort_by_key(|span| (span.step, span.instruction));
    own.into_iter().map(|span| (span.start_ns, span.end_ns)).collect()
}

/// Returns a pipeline of transfer, GPU and CPU: in each step the transfer lane brings two inputs,
/// the GPU works on each, and the CPU on each result; the transfer lane may refill a slot once the
/// GPU has read it.
fn pipeline() -> Program {
    use Instruction::Signal;
    let (h2d, gpu, cpu) = (LaneId::H2D_WEIGHTS, LaneId::GPU_COMPUTE, LaneId::CPU_COMPUTE);
    program(vec![
        (h2d, vec![wait(gpu, 1, true), work(10), Signal, wait(gpu, 2, true), work(10), Signal]),
        (gpu, vec![wait(h2d, 1, false), work(4), Signal, wait(h2d, 2, false), work(7), Signal]),
        (cpu, vec![wait(gpu, 1, false), work(20), wait(gpu, 2, false), work(5)]),
    ])
}

/// At rate 1, no wake-up: h2d: 0-10, 10-20; then step 1: gpu's first signal (14) is given at 20, so
/// 20-30; its second comes
///      at 27, before 30, so 30-40.
/// gpu: 10-14, 20-27; step 1: 30-34, 40-47. cpu: 14-34, then 27 has passed, 34-39; step 1: its
/// input came at 34, so 39-59; 59-64.
#[test]
fn three_lanes_by_hand() {
    let timeline = simulate(&pipeline(), &ALONE, 2).unwrap();
    let of = |lane| times(&timeline.spans, lane);
    assert_eq!(of(LaneId::H2D_WEIGHTS), [(0, 10), (10, 20), (20, 30), (30, 40)]);
    assert_eq!(of(LaneId::GPU_COMPUTE), [(10, 14), (20, 27), (30, 34), (40, 47)]);
    assert_eq!(of(LaneId::CPU_COMPUTE), [(14, 34), (34, 39), (39, 59), (59, 64)]);
    assert_eq!((timeline.total_ns, timeline.step_end_ns), (64.0, vec![39.0, 64.0]));
}

/// Three lanes by hand, with a wake-up latency of 3 ns:
/// h2d: nothing blocks: 0-10, 10-20; step 1 finds gpu's first signal (17, below): 20-30. The second
///      is given at 30, the instant at which it is needed: 30-40.
/// gpu: blocked until 10, awake 13-17; blocked until 20, awake 23-30; step 1: the input came at 30,
///      the instant of asking: 30-34; blocked until 40, awake 43-50.
/// cpu: blocked until 17, awake 20-40; 30 has passed: 40-45; 34 has passed: 45-65; 65-70.
#[test]
fn waking_up_costs() {
    let costs = ByLayer { wake_ns: 3.0, ..ALONE };
    let timeline = simulate(&pipeline(), &costs, 2).unwrap();
    let of = |lane| times(&timeline.spans, lane);
    assert_eq!(of(LaneId::H2D_WEIGHTS), [(0, 10), (10, 20), (20, 30), (30, 40)]);
    assert_eq!(of(LaneId::GPU_COMPUTE), [(13, 17), (23, 30), (30, 34), (43, 50)]);
    assert_eq!(of(LaneId::CPU_COMPUTE), [(20, 40), (40, 45), (45, 65), (65, 70)]);
}

/// The CPU has 30 ns of work, the copy 10; run concurrently, both advance at half speed. The copy
/// ends at 20; the CPU has then done 10 and does the remaining 20 alone, until 40.
#[test]
fn contention_slows_both() {
    let both =
        program(vec![(LaneId::CPU_COMPUTE, vec![work(30)]), (LaneId::H2D_WEIGHTS, vec![work(10)])]);
    let costs = ByLayer { beside: 0.5, ..ALONE };
    let timeline = simulate(&both, &costs, 1).unwrap();
    assert_eq!(times(&timeline.spans, LaneId::H2D_WEIGHTS), [(0, 20)]);
    assert_eq!(times(&timeline.spans, LaneId::CPU_COMPUTE), [(0, 40)]);
    let usage = timeline.usage(&Topology::with_device());
    assert_eq!((usage.total_ns, usage.h2d_busy_ns, usage.h2d_and_cpu_ns), (40, 20, 20));
    assert_eq!((usage.overlap(), usage.time_outside()), (Some(1.0), 0.0));
}

/// A lane without waits stays at most one step ahead of the sampling: its step 2 starts when step 0
/// is sampled (10), step 3 when step 1 is (20).
#[test]
fn run_ahead_is_one_step() {
    let free = program(vec![
        (LaneId::CPU_COMPUTE, vec![work(6), sample(4)]),
        (LaneId::H2D_WEIGHTS, vec![work(1)]),
    ]);
    let timeline = simulate(&free, &ALONE, 4).unwrap();
    assert_eq!(times(&timeline.spans, LaneId::H2D_WEIGHTS), [(0, 1), (1, 2), (10, 11), (20, 21)]);
}

#[test]
fn sums_of_spans() {
    let span = |lane, start_ns, end_ns| Span {
        lane,
        program: ProgramId::DECODE,
        step: 0,
        instruction: 0,
        start_ns,
        end_ns,
    };
    let spans = [
        span(LaneId::CPU_COMPUTE, 100, 130),
        span(LaneId::H2D_WEIGHTS, 110, 120),
        // Overlaps the previous copy on the other lane: that time counts once.
        span(LaneId::H2D_ACTIVATIONS, 115, 140),
        span(LaneId::CPU_COMPUTE, 130, 135),
        span(LaneId::D2H, 180, 200),
    ];
    let usage = LaneUsage::from_spans(&spans, &Topology::with_device());
    assert_eq!(usage.total_ns, 100);
    assert_eq!(usage.busy_ns[LaneId::CPU_COMPUTE.index()], 35);
    assert_eq!((usage.h2d_busy_ns, usage.h2d_and_cpu_ns, usage.idle_ns), (30, 25, 40));
    assert_eq!((usage.overlap(), usage.time_outside()), (Some(25.0 / 30.0), 0.4));
    let nothing = LaneUsage::from_spans(&[], &Topology::with_device());
    assert_eq!((nothing.overlap(), nothing.time_outside()), (None, 0.0));
}

#[test]
fn medians_predict_what_was_measured() {
    let list = pipeline();
    let timeline = simulate(&list, &ALONE, 5).unwrap();
    let mut spans = timeline.spans.clone();
    // One outlier in five does not change a median.
    spans[0].start_ns = 0;
    spans[0].end_ns = 5000;
    let costs = MeasuredCosts::new(&[&list], &spans, 0.0).unwrap();
    assert_eq!(simulate(&list, &costs, 5).unwrap(), timeline);
    let without: Vec<Span> =
        spans.into_iter().filter(|span| span.lane != LaneId::GPU_COMPUTE).collect();
    let missing = MeasuredCosts::new(&[&list], &without, 0.0).unwrap_err();
    assert_eq!((missing.0.lane, missing.0.instruction), (LaneId::GPU_COMPUTE, 1));
}

#[test]
fn bad_costs_are_refused() {
    struct Bad(f64, f64);
    impl SimulationCosts for Bad {
        fn work_ns(&self, _: Place, _: &Instruction, _: u32) -> f64 {
            self.0
        }
        fn rate(&self, _: Place, _: LaneSet) -> f64 {
            self.1
        }
        fn wake_ns(&self) -> f64 {
            0.0
        }
    }
    let run = |work, rate| simulate(&pipeline(), &Bad(work, rate), 1).unwrap_err();
    assert!(matches!(run(f64::NAN, 1.0), SimulateError::Work { .. }));
    assert!(matches!(run(-1.0, 1.0), SimulateError::Work { .. }));
    assert!(matches!(run(1.0, 0.0), SimulateError::Rate { .. }));
}

/// Computes start and end of each instruction of each step by iterating the definitions to a fixed
/// point: a lane continues when its previous instruction has ended; a wait ends when its signal is
/// given, plus a wake-up latency if it had blocked; a step starts when the step before the previous
/// one is sampled.
fn naive(program: &Program, costs: &ByLayer, steps: usize) -> Vec<Span> {
    let lanes = &program.lanes;
    let mut ends: Vec<Vec<Option<f64>>> =
        lanes.iter().map(|lane| vec![None; lane.instructions.len() * steps]).collect();
    let released = |asked: f64, given: f64| {
        if given > asked { given + costs.wake_ns } else { asked }
    };
    let mut spans = Vec::new();
    loop {
        let before = ends.clone();
        spans.clear();
        for (l, lane) in lanes.iter().enumerate() {
            let count = lane.instructions.len();
            for number in 0..count * steps {
                let (step, index) = (number / count, number % count);
                let mut asked = match number {
                    0 => Some(0.0),
                    _ => ends[l][number - 1],
                };
                let sampled = sampling(program, &ends, step.wrapping_sub(2), steps);
                if index == 0 && step >= 2 {
                    asked = asked.zip(sampled).map(|(asked, given)| released(asked, given));
                }
                let Some(asked) = asked else { continue };
                ends[l][number] = match &lane.instructions[index] {
                    Instruction::Signal => Some(asked),
                    Instruction::Wait(wait) => {
                        signalled(program, &ends, wait, step).map(|given| released(asked, given))
                    }
                    work => {
                        let ns = f64::from(work.at().unwrap().layer.unwrap());
                        spans.push(Span {
                            lane: lane.lane,
                            program: program.id,
                            step: step as u32,
                            instruction: index as u32,
                            start_ns: asked as u64,
                            end_ns: (asked + ns) as u64,
                        });
                        Some(asked + ns)
                    }
                };
            }
        }
        if ends == before {
            break;
        }
    }
    assert!(ends.iter().flatten().all(Option::is_some), "a legal program finishes");
    spans.sort_by_key(|span| (span.start_ns, span.end_ns, span.lane));
    spans
}

/// Returns the time at which a step is sampled; zero for a program that never samples.
fn sampling(
    program: &Program,
    ends: &[Vec<Option<f64>>],
    step: usize,
    steps: usize,
) -> Option<f64> {
    if step >= steps {
        return None;
    }
    for (lane, ends) in program.lanes.iter().zip(ends) {
        let is_sample =
            |i: &Instruction| matches!(i, Instruction::Compute(c) if c.op == Op::Sample);
        if let Some(index) = lane.instructions.iter().rposition(is_sample) {
            return ends[step * lane.instructions.len() + index];
        }
    }
    Some(0.0)
}

/// Returns the time at which the signal of a wait is given.
fn signalled(
    program: &Program,
    ends: &[Vec<Option<f64>>],
    wait: &TimelineWait,
    step: usize,
) -> Option<f64> {
    let Some(step) = step.checked_sub(usize::from(wait.previous_step)) else { return Some(0.0) };
    let l = program.lanes.iter().position(|lane| lane.lane == wait.lane)?;
    let instructions = &program.lanes[l].instructions;
    let signals = instructions.iter().enumerate().filter(|(_, i)| **i == Instruction::Signal);
    let (index, _) = signals.clone().nth(wait.offset as usize - 1)?;
    ends[l][step * instructions.len() + index]
}

/// A splitmix generator, so that tests are reproducible.
struct Random(u64);

impl Random {
    fn below(&mut self, n: u64) -> u64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mut z = self.0;
        z = (z ^ (z >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        (z ^ (z >> 31)) % n
    }
}

/// Generates a program from one global order, in which all waits point backwards.
fn legal_program(random: &mut Random) -> Program {
    let lane_count = 1 + random.below(6) as usize;
    let mut lists: Vec<Vec<Instruction>> = vec![Vec::new(); lane_count];
    let mut signals = vec![0u32; lane_count];
    for _ in 0..5 + random.below(30) {
        let lane = random.below(lane_count as u64) as usize;
        let other = random.below(lane_count as u64) as usize;
        let instruction = match random.below(4) {
            0 if signals[other] > 0 => {
                let offset = 1 + random.below(u64::from(signals[other])) as u32;
                wait(LaneId(other as u8), offset, false)
            }
            1 => {
                signals[lane] += 1;
                Instruction::Signal
            }
            _ => work(random.below(9) as u16),
        };
        lists[lane].push(instruction);
    }
    for list in &mut lists {
        let other = random.below(lane_count as u64) as usize;
        if signals[other] > 0 {
            let offset = 1 + random.below(u64::from(signals[other])) as u32;
            let place = random.below(list.len() as u64 + 1) as usize;
            list.insert(place, wait(LaneId(other as u8), offset, true));
        }
    }
    if random.below(2) == 0 {
        lists[0].push(sample(3));
    }
    let lanes = (0..).map(LaneId).zip(lists);
    program(lanes.filter(|(_, list)| !list.is_empty()).collect())
}

#[test]
fn random_programs_equal_the_naive_executor() {
    let mut spans = 0;
    for seed in 0..400 {
        let mut random = Random(seed);
        let list = legal_program(&mut random);
        let costs = ByLayer { wake_ns: random.below(4) as f64, ..ALONE };
        let timeline = simulate(&list, &costs, 4).unwrap();
        assert_eq!(timeline.spans, naive(&list, &costs, 4), "seed {seed}: {list:?}");
        let ends = simulate_ends(&list, &costs, 4).unwrap();
        assert_eq!((ends.total_ns, &ends.step_end_ns), (timeline.total_ns, &timeline.step_end_ns));
        assert!(ends.spans.is_empty(), "{ends:?}");
        let end_ns = timeline.spans.iter().map(|span| span.end_ns).max().unwrap_or(0);
        assert_eq!(timeline.total_ns, end_ns as f64, "seed {seed}");
        spans += timeline.spans.len();
    }
    assert!(spans > 10_000, "{spans}");
}
