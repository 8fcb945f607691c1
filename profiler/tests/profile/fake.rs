//! A machine that is a function: programs run in the simulator, and work takes what the test says.

use std::rc::Rc;

use profiler::key::{ProfiledWork, WorkKey};
use profiler::{ComputeThreads, Runner, RunnerError, RunnerSession};
use program::ir::{Instruction, Program};
use program::plan::Plan;
use program::simulate::{Place, SimulationCosts, simulate};
use program::topology::{LaneId, LaneSet};
use protocol::group::PlacedRequest;
use shm::TraceRecord;

/// Work that is to be given a time.
#[derive(Debug, Clone, Copy)]
pub struct Call {
    pub work: ProfiledWork,
    pub lane: LaneId,
    pub sequences: u32,
    /// Positions of each sequence: the prompt's in prefill, cached ones in decode.
    pub positions: u32,
    pub vocabulary: usize,
    /// Number of threads of the CPU worker.
    pub threads: u16,
    /// Workers started so far, these included.
    pub session: usize,
    /// Groups that they ran before this one.
    pub group: usize,
}

type Ns = Rc<dyn Fn(Call) -> f64>;

/// Starts such machines.
pub struct FakeRunner {
    pub ns: Ns,
    pub started: usize,
}

impl FakeRunner {
    pub fn new(ns: impl Fn(Call) -> f64 + 'static) -> FakeRunner {
        FakeRunner { ns: Rc::new(ns), started: 0 }
    }
}

struct FakeSession {
    plan: Plan,
    ns: Ns,
    threads: u16,
    session: usize,
    group: usize,
    now_ns: u64,
}

impl Runner for FakeRunner {
    fn start(
        &mut self,
        plan: Plan,
        threads: ComputeThreads,
    ) -> Result<Box<dyn RunnerSession>, RunnerError> {
        self.started += 1;
        Ok(Box::new(FakeSession {
            plan,
            ns: Rc::clone(&self.ns),
            threads: threads.cpu,
            session: self.started,
            group: 0,
            now_ns: 0,
        }))
    }
}

struct FakeCosts<'a> {
    session: &'a FakeSession,
    program: &'a Program,
    sequences: u32,
    prompt: u32,
}

impl SimulationCosts for FakeCosts<'_> {
    fn work_ns(&self, place: Place, instruction: &Instruction, step: u32) -> f64 {
        let FakeSession { plan, ns, threads, session, group, .. } = self.session;
        let phase = self.program.shape.rows.phase();
        let key = WorkKey::from_instruction(plan, phase, place.lane, instruction)
            .expect("work has a key");
        ns(Call {
            work: key.work,
            lane: key.lane,
            sequences: self.sequences,
            positions: self.prompt + step,
            vocabulary: plan.config.vocab_size,
            threads: *threads,
            session: *session,
            group: *group,
        })
    }

    fn rate(&self, _: Place, _: LaneSet) -> f64 {
        1.0
    }

    fn wake_ns(&self) -> f64 {
        1.0
    }
}

impl RunnerSession for FakeSession {
    fn run(&mut self, group: &[PlacedRequest]) -> Result<Vec<(LaneId, TraceRecord)>, RunnerError> {
        let sequences = group.iter().filter(|placed| placed.batch == 0).count() as u32;
        let prompt = group[0].request.prompt.len() as u32;
        let steps = group[0].request.max_new - 1;
        let mut records = Vec::new();
        let mut end_ns = self.now_ns;
        for (program, steps) in [(self.plan.prefill(), 1), (self.plan.decode(), steps)] {
            let begun_ns = end_ns;
            let costs = FakeCosts { session: self, program, sequences, prompt };
            let timeline = simulate(program, &costs, steps).expect("a plan without deadlocks");
            for span in timeline.spans {
                let instruction = &program.lane(span.lane).expect("a lane").instructions
                    [span.instruction as usize];
                // Of the profiler's own plans only the first batch has sequences.
                let is_empty = self.plan.shape.batches > 1
                    && self.plan.map.policy == "profile"
                    && instruction.at().is_some_and(|at| at.batch > 0);
                end_ns = end_ns.max(begun_ns + span.end_ns);
                let record = TraceRecord {
                    start_ns: begun_ns + span.start_ns,
                    end_ns: begun_ns + span.end_ns,
                    bytes: 0,
                    rows: if is_empty { 0 } else { sequences },
                    instruction: span.instruction,
                    step: span.step,
                    program: program.id.0.into(),
                };
                records.push((span.lane, record));
            }
        }
        (self.now_ns, self.group) = (end_ns, self.group + 1);
        Ok(records)
    }
}
