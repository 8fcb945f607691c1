//! All lanes of a plan as threads of one process, over real segments: for tests here and for tests
//! of placement elsewhere. The gpu worker's lane gets the device's memory only, as in its process.

use std::sync::Arc;
use std::thread::JoinHandle;
use std::time::Duration;

use model::ops::{Op, Value};
use model::source::WeightSource;
use program::ir::{Instruction, Lane, Phase};
use program::plan::{Memory, Plan};
use program::step_table::{Field, Finish, balance_units};
use shm::{Control, Segment, TraceReader, TraceRecord, TraceSegment};

use crate::error::{LaneError, WorkerError};
use crate::load::{load, load_resident};
use crate::memory::{Memories, View};
use crate::protocol::{EXIT, Role};
use crate::setup::{LaneOptions, build_lanes};
use crate::table::StepTable;

/// A run that takes longer is stuck.
const WATCHDOG: Duration = Duration::from_secs(120);

/// A sequence to generate.
#[derive(Debug, Clone, PartialEq)]
pub struct Request {
    pub prompt: Vec<u32>,
    pub max_new: u32,
    /// 0 is greedy.
    pub temperature: f32,
    pub top_p: f32,
    pub seed: u64,
    pub id_hash: u64,
    pub ignore_eos: bool,
}

impl Request {
    /// A greedy request that EOS does not end.
    pub fn greedy(prompt: Vec<u32>, max_new: u32) -> Request {
        Request {
            prompt,
            max_new,
            temperature: 0.0,
            top_p: 1.0,
            seed: 0,
            id_hash: 0,
            ignore_eos: true,
        }
    }
}

/// A request and its place in the group.
#[derive(Debug, Clone, PartialEq)]
pub struct Placed {
    pub batch: usize,
    pub slot: usize,
    pub request: Request,
}

/// What a sequence came to; a final EOS is part of the tokens.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Outcome {
    pub tokens: Vec<u32>,
    /// A [`Finish`] code.
    pub finish: u32,
}

/// A running set of lanes.
#[derive(Debug)]
pub struct InProcess {
    plan: Arc<Plan>,
    control: Control,
    table: StepTable,
    view: View,
    readers: Vec<(Lane, TraceReader)>,
    threads: Vec<JoinHandle<Result<(), LaneError>>>,
}

impl InProcess {
    /// Creates the segments, loads weights from `source` and starts all lanes.
    ///
    /// # Errors
    /// What a worker would have reported.
    pub fn start(
        plan: Plan,
        source: &dyn WeightSource,
        options: LaneOptions,
    ) -> Result<InProcess, WorkerError> {
        let plan = Arc::new(plan);
        let lanes = plan.lanes();
        let control = Control::create(lanes.len() as u32, plan.table.words() * 4)?;
        let trace = TraceSegment::create(Lane::ALL.len(), 1 << 16)?;
        let mut segments = Vec::new();
        for memory in Memory::SEGMENTS {
            let size_bytes = plan.memory_bytes(memory).max(4096) as usize;
            segments.push((memory, Arc::new(Segment::create("tandem-test", size_bytes)?)));
        }
        let all = Arc::new(Memories::new(&plan, segments.clone())?);
        load(&plan, &all, source, 2, &|_, _| {})?;
        load_resident(&plan, &all);
        let mut threads = Vec::new();
        for role in Role::ALL {
            let mapped = segments.iter().filter(|(memory, _)| role.memories().contains(memory));
            let memories = Arc::new(Memories::new(&plan, mapped.cloned().collect())?);
            // SAFETY: the harness is for compiled plans; each role is built once, and the weights
            // are in place.
            let runners =
                unsafe { build_lanes(role, &plan, &memories, &control, &trace, options) }?;
            for mut runner in runners {
                let control = control.clone();
                let thread = std::thread::Builder::new()
                    .name(runner.lane().name().to_owned())
                    .spawn(move || {
                        let ended = runner.run();
                        if let Err(LaneError::TimedOut { .. }) = &ended {
                            control.stop(runner.lane().index() as u32, 1);
                        }
                        ended
                    })
                    .map_err(WorkerError::Thread)?;
                threads.push(thread);
            }
        }
        let mut readers = Vec::new();
        for lane in lanes {
            readers.push((lane, trace.reader(lane.index())?));
        }
        let table = StepTable::new(control.extra(0, plan.table.words()), &plan);
        // SAFETY: the harness reads values only between groups, after all lanes have drained.
        let view = unsafe { View::new(all) };
        Ok(InProcess { plan, control, table, view, readers, threads })
    }

    /// The plan in use.
    pub fn plan(&self) -> &Plan {
        &self.plan
    }

    /// The control segment.
    pub fn control(&self) -> &Control {
        &self.control
    }

    /// The step table.
    pub fn table(&self) -> &StepTable {
        &self.table
    }

    /// Runs one group to its end.
    ///
    /// # Panics
    /// If the lanes do not drain within the watchdog's time, or one of them fails.
    pub fn run_group(&mut self, group: &[Placed]) -> Vec<Outcome> {
        fill(&self.table, &self.plan, group);
        let longest = group.iter().map(|placed| placed.request.max_new).max().unwrap_or(1);
        let drained = self.control.drained().value();
        self.control.set_last_step(Some(longest.saturating_sub(1)));
        self.control.groups().signal();
        let target = drained.wrapping_add(1);
        let waited = self.control.drained().wait_at_least(target, self.control.poison(), WATCHDOG);
        if let Err(error) = waited {
            self.control.stop(u32::from(u16::MAX), 1);
            panic!("the lanes did not drain: {error}");
        }
        group.iter().map(|placed| self.outcome(placed)).collect()
    }

    fn outcome(&self, placed: &Placed) -> Outcome {
        let (batch, slot) = (placed.batch, placed.slot);
        let generated = self.table.field(batch, slot, Field::Generated) as usize;
        let tokens = (0..generated).map(|i| self.table.output(batch, slot, i)).collect();
        Outcome { tokens, finish: self.table.field(batch, slot, Field::Finish) }
    }

    /// The first `rows` rows of the logits that the last `Sample` of `phase` for a batch (and
    /// micro-batch) read; valid between groups, until another step overwrites them.
    pub fn logits(&self, phase: Phase, batch: u16, micro: u16, rows: usize) -> Vec<f32> {
        let program = match phase {
            Phase::Prefill => &self.plan.prefill,
            Phase::Decode => &self.plan.decode,
        };
        let instructions = program.lanes.iter().flat_map(|list| &list.instructions);
        let region = instructions
            .filter_map(|instruction| match instruction {
                Instruction::Compute(compute) if compute.op == Op::Sample => Some(compute),
                _ => None,
            })
            .find(|compute| (compute.at.batch, compute.at.micro) == (batch, micro))
            .map(|compute| compute.inputs[0]);
        let elements = Value::Logits.row_elements(&self.plan.config).unwrap_or(0);
        region
            .map(|region| self.view.read::<f32>(region.buffer, 0, rows * elements).to_vec())
            .unwrap_or_default()
    }

    /// Trace records published since the last call.
    pub fn drain_trace(&mut self) -> Vec<(Lane, TraceRecord)> {
        let mut records = Vec::new();
        for (lane, reader) in &mut self.readers {
            reader.drain(|record| records.push((*lane, *record)));
        }
        records
    }

    /// Lets the lanes leave; how each ended.
    ///
    /// # Panics
    /// If a lane panicked.
    pub fn finish(self) -> Vec<Result<(), LaneError>> {
        self.control.set_last_step(Some(EXIT));
        self.control.groups().signal();
        self.threads
            .into_iter()
            .map(|thread| thread.join().unwrap_or_else(|_| panic!("a lane panicked")))
            .collect()
    }
}

/// Writes a group into the table, as the coordinator does.
pub fn fill(table: &StepTable, plan: &Plan, group: &[Placed]) {
    table.clear();
    for Placed { batch, slot, request } in group {
        let store = |field, value| table.set_field(*batch, *slot, field, value);
        table.set_prompt(*batch, *slot, &request.prompt);
        let prompt_len = request.prompt.len() as u32;
        store(Field::PromptLen, prompt_len);
        store(Field::Remaining, request.max_new);
        store(Field::KvCapacity, prompt_len + request.max_new);
        store(Field::Temperature, request.temperature.to_bits());
        store(Field::TopP, request.top_p.to_bits());
        store(Field::SeedLow, request.seed as u32);
        store(Field::SeedHigh, (request.seed >> 32) as u32);
        store(Field::IdHashLow, request.id_hash as u32);
        store(Field::IdHashHigh, (request.id_hash >> 32) as u32);
        store(Field::IgnoreEos, u32::from(request.ignore_eos));
        store(Field::Finish, Finish::Running as u32);
    }
    for batch in 0..table.batches() {
        let capacities: Vec<u32> = (0..table.batch_size())
            .map(|slot| table.field(batch, slot, Field::KvCapacity))
            .collect();
        let mut start = 0;
        for (slot, capacity) in capacities.iter().enumerate() {
            table.set_field(batch, slot, Field::KvStart, start);
            start += capacity;
        }
        let kv_heads = table.kv_heads() as u32;
        table.set_chunk_bounds(batch, &balance_units(&capacities, kv_heads, plan.table.chunks));
    }
}
