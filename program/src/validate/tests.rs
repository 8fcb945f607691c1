//! Hand-written programs, each with one defect.

use model::config::{Family, ModelConfig};
use model::known::find_known;
use model::ops::{Op, Value};

use crate::ir::{
    At, BufferId, Compute, Copy, Instruction, LaneProgram, Moved, Program, ProgramId, ProgramShape,
    Region, Rows, TimelineWait,
};
use crate::kv_owner::AttentionSide;
use crate::map::Chunk;
use crate::plan::Buffer;
use crate::simulate::{Place, SimulationCosts, simulate};
use crate::topology::{LaneId, LaneSet, SegmentId, Topology};

use super::{NamedLane, ValidateError, describe, validate_program};

const TABLE: u32 = 0;
const HOST_WEIGHTS: u32 = 1;
const HOST_NORMED: u32 = 2;
const HOST_QUERY: u32 = 3;
const DEVICE_WEIGHTS: u32 = 4;
const DEVICE_NORMED: u32 = 5;
const DEVICE_QUERY: u32 = 6;

/// A configuration of the LLaMA family.
fn config() -> ModelConfig {
    find_known("llama-2-7b").expect("a known model").config
}

fn buffers() -> Vec<Buffer> {
    let names = [
        ("table", SegmentId::CONTROL),
        ("weights.q", SegmentId::HOST_WEIGHTS),
        ("host.normed", SegmentId::HOST_ACTIVATIONS),
        ("host.query", SegmentId::HOST_ACTIVATIONS),
        ("slot.q", SegmentId::DEVICE),
        ("device.normed", SegmentId::DEVICE),
        ("device.query", SegmentId::DEVICE),
    ];
    let buffer = |(i, (name, segment)): (usize, (&str, SegmentId))| Buffer {
        name: name.to_owned(),
        segment,
        offset_bytes: 64 * i as u64,
        size_bytes: 64,
    };
    names.into_iter().enumerate().map(buffer).collect()
}

fn at() -> At {
    At { layer: Some(0), batch: 0, stream: 0 }
}

fn region(buffer: u32) -> Region {
    Region::whole(BufferId(buffer))
}

fn copy(moved: Moved, from: u32, to: u32) -> Instruction {
    let table = (!matches!(moved, Moved::Weights(_))).then_some(region(TABLE));
    let (from, to) = (region(from), region(to));
    Instruction::Copy(Copy { moved, at: at(), chunk: None, from, to, table })
}

fn q_on_device() -> Instruction {
    Instruction::Compute(Compute {
        op: Op::Q,
        at: at(),
        chunk: None,
        inputs: vec![region(DEVICE_NORMED)],
        caches: Vec::new(),
        weights: vec![region(DEVICE_WEIGHTS)],
        output: Some(region(DEVICE_QUERY)),
        table: region(TABLE),
    })
}

fn wait(lane: LaneId, offset: u32) -> Instruction {
    Instruction::Wait(TimelineWait { lane, offset, previous_step: false })
}

fn wait_previous(lane: LaneId, offset: u32) -> Instruction {
    Instruction::Wait(TimelineWait { lane, offset, previous_step: true })
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

fn list(lane: LaneId, instructions: Vec<Instruction>) -> LaneProgram {
    let signals = instructions.iter().filter(|i| **i == Instruction::Signal).count();
    LaneProgram { lane, instructions, signals_per_step: signals as u32 }
}

/// Weights and input are copied to the device, `q` runs there, and its result is copied back.
fn offload() -> Program {
    Program {
        id: ProgramId::DECODE,
        shape: SHAPE,
        lanes: vec![
            list(
                LaneId::H2D_WEIGHTS,
                vec![
                    wait_previous(LaneId::GPU_COMPUTE, 1),
                    copy(Moved::Weights(Op::Q), HOST_WEIGHTS, DEVICE_WEIGHTS),
                    Instruction::Signal,
                ],
            ),
            list(
                LaneId::H2D_ACTIVATIONS,
                vec![
                    wait_previous(LaneId::GPU_COMPUTE, 1),
                    copy(Moved::Value(Value::Normed0), HOST_NORMED, DEVICE_NORMED),
                    Instruction::Signal,
                ],
            ),
            list(
                LaneId::GPU_COMPUTE,
                vec![
                    wait_previous(LaneId::D2H, 1),
                    wait(LaneId::H2D_WEIGHTS, 1),
                    wait(LaneId::H2D_ACTIVATIONS, 1),
                    q_on_device(),
                    Instruction::Signal,
                ],
            ),
            list(
                LaneId::D2H,
                vec![
                    wait(LaneId::GPU_COMPUTE, 1),
                    copy(Moved::Value(Value::Query), DEVICE_QUERY, HOST_QUERY),
                    Instruction::Signal,
                ],
            ),
        ],
    }
}

fn refused(program: &Program) -> ValidateError {
    validate_program(program, &buffers(), &Topology::with_device(), &config())
        .expect_err("a defect must be refused")
}

#[test]
fn a_correct_program_is_proved() {
    let proof =
        validate_program(&offload(), &buffers(), &Topology::with_device(), &config()).unwrap();
    assert_eq!((proof.work, proof.waits), (4, 6));
    // Step 0: both copies before `q`, `q` before the copy back. Step 1: each inbound copy after
    // `q`'s read and its own write (2 + 2), `q` after both copies, its own write and the copy back
    // (4), the copy back after `q` and its own write (2).
    assert_eq!(proof.conflicts, 3 + 4 + 4 + 2);
}

/// `q` and the copy of its weights alternate only by chance: the copy is much faster. No simulated
/// or measured time shows the race; the order of waits and signals does.
#[test]
fn a_race_that_timing_hides() {
    struct FastCopies;
    impl SimulationCosts for FastCopies {
        fn work_ns(&self, place: Place, _: &Instruction, _: u32) -> f64 {
            if place.lane == LaneId::H2D_WEIGHTS { 1.0 } else { 1000.0 }
        }
        fn rate(&self, _: Place, _: LaneSet) -> f64 {
            1.0
        }
        fn wake_ns(&self) -> f64 {
            0.0
        }
    }
    let mut program = offload();
    program.lanes[2].instructions.remove(1);
    let timeline = simulate(&program, &FastCopies, 1).unwrap();
    let end = |lane| timeline.spans.iter().find(|span| span.lane == lane).unwrap().end_ns;
    let q = timeline.spans.iter().find(|span| span.lane == LaneId::GPU_COMPUTE).unwrap();
    assert!(end(LaneId::H2D_WEIGHTS) <= q.start_ns);
    let ValidateError::Race { buffer, first, second } = refused(&program) else { panic!() };
    assert_eq!(&*buffer, "slot.q");
    assert_eq!((first.lane.id, second.lane.id), (LaneId::H2D_WEIGHTS, LaneId::GPU_COMPUTE));
    assert_eq!((first.step, second.step), (0, 0));
}

#[test]
fn a_hazard_between_steps() {
    let mut program = offload();
    // The next step's weights may arrive while `q` of this step still reads the slot.
    program.lanes[0].instructions.remove(0);
    let ValidateError::Race { buffer, first, second } = refused(&program) else { panic!() };
    assert_eq!(&*buffer, "slot.q");
    assert_ne!(first.step, second.step);
}

#[test]
fn a_deadlock() {
    let mut program = offload();
    // The input waits for the result that needs it.
    program.lanes[1].instructions[0] = wait(LaneId::D2H, 1);
    let error = refused(&program);
    let ValidateError::Deadlock { blocked } = &error else { panic!("{error}") };
    let lanes: Vec<LaneId> = blocked.iter().map(|blocked| blocked.site.lane.id).collect();
    assert_eq!(
        lanes,
        [LaneId::H2D_WEIGHTS, LaneId::H2D_ACTIVATIONS, LaneId::GPU_COMPUTE, LaneId::D2H],
        "{error}"
    );
    assert_eq!((blocked[1].waits_for.id, blocked[1].needed, blocked[1].given), (LaneId::D2H, 1, 0));
    assert!(simulate_is_stuck(&program));
}

fn simulate_is_stuck(program: &Program) -> bool {
    struct One;
    impl SimulationCosts for One {
        fn work_ns(&self, _: Place, _: &Instruction, _: u32) -> f64 {
            1.0
        }
        fn rate(&self, _: Place, _: LaneSet) -> f64 {
            1.0
        }
        fn wake_ns(&self) -> f64 {
            0.0
        }
    }
    simulate(program, &One, 1).is_err()
}

#[test]
fn a_lost_signal() {
    let mut program = offload();
    program.lanes[2].instructions.pop();
    let error = refused(&program);
    assert!(matches!(
        error,
        ValidateError::SignalCount {
            lane: NamedLane { id: LaneId::GPU_COMPUTE, .. },
            declared: 1,
            found: 0,
            ..
        }
    ));
    // Lost before it was counted: waits for it name a signal that is never given.
    program.lanes[2].signals_per_step = 0;
    let error = refused(&program);
    assert!(matches!(
        error,
        ValidateError::WaitOffset {
            lane: NamedLane { id: LaneId::GPU_COMPUTE, .. },
            signals: 0,
            ..
        }
    ));
}

#[test]
fn malformed_programs() {
    let change = |edit: &dyn Fn(&mut Program)| {
        let mut program = offload();
        edit(&mut program);
        refused(&program)
    };
    let twice = change(&|p| p.lanes[1].lane = LaneId::H2D_WEIGHTS);
    assert!(matches!(
        twice,
        ValidateError::DuplicateLane { lane: NamedLane { id: LaneId::H2D_WEIGHTS, .. }, .. }
    ));
    let absent = change(&|p| p.lanes[3].instructions[0] = wait(LaneId::CPU_APPEND, 1));
    assert!(matches!(
        absent,
        ValidateError::WaitLane { lane: NamedLane { id: LaneId::CPU_APPEND, .. }, .. }
    ));
    let zero = change(&|p| p.lanes[3].instructions[0] = wait(LaneId::GPU_COMPUTE, 0));
    assert!(matches!(zero, ValidateError::WaitOffset { signals: 1, .. }));
    let malformed = |error: ValidateError, text: &str| {
        let ValidateError::Malformed { problem, .. } = &error else { panic!("{error}") };
        assert!(problem.contains(text), "{problem}");
    };
    let normed = Moved::Value(Value::Normed0);
    malformed(change(&|p| p.lanes[1].instructions[1] = copy(normed, HOST_NORMED, 99)), "buffer 99");
    malformed(
        change(&|p| p.lanes[1].instructions[1] = copy(normed, HOST_NORMED, HOST_QUERY)),
        "its target is host.query in Dram { node: 0 }, among Activations",
    );
    malformed(change(&|p| p.lanes[3].instructions[1] = q_on_device()), "lane d2h cannot run it");
    malformed(
        change(&|p| {
            let Instruction::Compute(q) = &mut p.lanes[2].instructions[3] else { panic!() };
            q.inputs.clear();
        }),
        "it has 0 inputs",
    );
    malformed(
        change(&|p| {
            let Instruction::Copy(copy) = &mut p.lanes[3].instructions[1] else { panic!() };
            copy.chunk = Some(Chunk { index: 4, of: 4 });
        }),
        "chunk 4 of 4",
    );
}

/// Two chunks of one split do not conflict; a chunk and the whole do.
#[test]
fn chunks_conflict_only_where_they_overlap() {
    let half = |index, lane| {
        let chunk = Some(Chunk { index, of: 2 });
        let (from, to) = (BufferId(HOST_QUERY), BufferId(DEVICE_QUERY));
        let copy = Copy {
            moved: Moved::Value(Value::Attended),
            at: at(),
            chunk,
            from: Region::of_chunk(from, chunk),
            to: Region::of_chunk(to, chunk),
            table: Some(region(TABLE)),
        };
        list(lane, vec![Instruction::Copy(copy)])
    };
    let halves = |index| Program {
        id: ProgramId::DECODE,
        shape: SHAPE,
        lanes: vec![half(0, LaneId::H2D_WEIGHTS), half(index, LaneId::H2D_ACTIVATIONS)],
    };
    assert!(validate_program(&halves(1), &buffers(), &Topology::with_device(), &config()).is_ok());
    assert!(matches!(refused(&halves(0)), ValidateError::Race { .. }));
}

#[test]
fn errors_name_lane_operation_and_layer() {
    let mut program = offload();
    program.lanes[2].instructions.remove(1);
    let text = refused(&program).to_string();
    assert_eq!(
        text,
        "race on buffer slot.q: decode instruction 2 of lane gpu.compute (q, layer 0, batch 0) in \
         step 0 is not ordered after decode instruction 1 of lane h2d.weights (copy of q weights, \
         layer 0, batch 0) in step 0"
    );
    assert_eq!(
        describe(&wait_previous(LaneId::D2H, 3), Family::Opt, &Topology::with_device()),
        "wait for signal 3 of d2h of the previous step"
    );
}
