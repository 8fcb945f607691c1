//! Timed lanes in one process: they keep the order that the program requires, last at least as long
//! as specified, and give every sequence its tokens.

use std::sync::Arc;
use std::time::Duration;

use planner::layer::table::OperationTable;
use planner::timed::TimedTablePlan as Programs;
use program::ir::ProgramId;
use program::simulate::Span;
use program::topology::LaneId;
use program::validate::replay;
use protocol::group::{BATCH_STAGES, GenerationRequest, PlacedRequest, fill, list_work};
use protocol::messages::TimedDurations;
use protocol::table::StepTable;
use shm::{Control, TraceSegment};
use workers::setup::{LaneBuildContext, build_timed_lanes};

const GEN_LEN: u32 = 5;
const TRACE_CAPACITY: usize = 1 << 14;
const LIMIT: Duration = Duration::from_secs(60);

/// Two batches whose layer runs on both devices, in fractions of a millisecond.
const TABLE: &str = r#"{"batches": 2, "ops": [
    {"name": "ln0", "cpu_ms": 0.01, "gpu_ms": 0.01},
    {"name": "q", "cpu_ms": 0.2, "gpu_ms": 0.02, "h2d_ms": 0.2},
    {"name": "scores.0", "cpu_ms": 0.3, "gpu_ms": 0.02, "h2d_ms": 0.1, "kv": true},
    {"name": "scores.1", "cpu_ms": 0.3, "gpu_ms": 0.02, "h2d_ms": 0.1, "kv": true},
    {"name": "wv", "cpu_ms": 0.6, "gpu_ms": 0.04, "h2d_ms": 0.2, "kv": true},
    {"name": "fc0", "cpu_ms": 0.6, "gpu_ms": 0.05, "h2d_ms": 0.8}]}"#;

fn programs() -> Programs {
    let table = OperationTable::from_json(TABLE).expect("a table");
    let programs = Programs::from_table(&table, 3, GEN_LEN).expect("compiles");
    assert!(programs.plan.map.uses_gpu());
    programs
}

fn span(lane: LaneId, record: &shm::TraceRecord) -> Span {
    Span {
        lane,
        program: ProgramId(record.program as u8),
        step: record.step,
        instruction: record.instruction,
        start_ns: record.start_ns,
        end_ns: record.end_ns,
    }
}

/// Returns the spans of two groups, and the step table after them.
fn run(programs: &Programs) -> (Vec<Vec<Span>>, StepTable) {
    let plan = Arc::new(programs.plan.clone());
    let lanes = plan.lanes();
    let control = Control::create(lanes.len() as u32, plan.table.words() * 4).expect("memory");
    let trace = TraceSegment::create(plan.topology.lanes.len(), TRACE_CAPACITY).expect("memory");
    let durations = TimedDurations::Decode(programs.times.lanes().to_vec());
    let mut threads = Vec::new();
    for worker in plan.topology.worker_ids() {
        let (plan, control, trace) = (&plan, &control, &trace);
        let building = LaneBuildContext { worker, plan, control, trace, start_timeout: None };
        let runners = build_timed_lanes(building, LIMIT, &durations);
        for mut runner in runners.expect("lanes") {
            threads.push(std::thread::spawn(move || runner.run()));
        }
    }
    let mut readers: Vec<_> =
        lanes.iter().map(|lane| (*lane, trace.reader(lane.index()).expect("a ring"))).collect();
    let table = StepTable::new(control.extra(0, plan.table.words()), &plan);
    let group: Vec<PlacedRequest> = (0..2)
        .map(|batch| PlacedRequest {
            batch,
            slot: 0,
            request: GenerationRequest::greedy(vec![1], GEN_LEN),
        })
        .collect();
    let mut groups = Vec::new();
    for number in 1..=2 {
        fill(&table, &plan, &group);
        control.release(&BATCH_STAGES, list_work(&table));
        control.drained().wait_until(number, control.poison(), LIMIT).expect("drains");
        let mut spans = Vec::new();
        for (lane, reader) in &mut readers {
            reader.drain(|record| spans.push(span(*lane, record)));
            assert_eq!(reader.lost(), 0);
        }
        groups.push(spans);
    }
    control.release(&[], 0);
    for thread in threads {
        thread.join().expect("no panic").expect("no error");
    }
    (groups, table)
}

#[test]
fn timed_lanes_keep_order_and_time() {
    let programs = programs();
    let (groups, table) = run(&programs);
    for spans in &groups {
        if let Err(error) = replay(&programs.plan, spans) {
            panic!("{error}");
        }
        for (lane, times) in programs.times.lanes() {
            let own = || spans.iter().filter(|s| s.lane == *lane && s.program == ProgramId::DECODE);
            let works = own().count() as u32;
            let list = programs.plan.decode().lane(*lane).expect("a list");
            let per_step = list.instructions.iter().filter(|work| work.is_work()).count() as u32;
            assert_eq!(works, per_step * (GEN_LEN - 1), "{lane:?}");
            let told_ns = times.iter().sum::<u64>() * u64::from(GEN_LEN - 1);
            let (Some(start), Some(end)) =
                (own().map(|s| s.start_ns).min(), own().map(|s| s.end_ns).max())
            else {
                continue;
            };
            assert!(end - start >= told_ns, "{lane:?}: {} of {told_ns} ns", end - start);
        }
    }
    for batch in 0..2 {
        let tokens: Vec<u32> =
            (0..GEN_LEN as usize).map(|place| table.output(batch, 0, place)).collect();
        assert_eq!(tokens, [0; GEN_LEN as usize]);
    }
}
