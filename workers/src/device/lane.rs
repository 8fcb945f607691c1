//! One lane on the device, which enqueues instructions on its stream.

use std::sync::Arc;

use cuda::{Context, CudaError, DeviceAddress, PinnedBuffer, Stream};
use cuda_kernels::argmax;
use model::ops::{Op, Value};
use program::ir::{Compute, Instruction, ProgramId};
use program::plan::Plan;
use program::topology::{LaneId, LaneKind};
use protocol::table::StepTable;
use shm::{Control, StepOfGroup, Timeline, TraceWriter};

use super::completion::{CompletionSetup, CompletionTracker, InstructionRun, shorten_sleeps};
use super::compute::ComputeContext;
use super::depth::Marks;
use super::open::Device;
use super::transfer::TransferContext;
use super::uploads::Uploads;
use crate::error::{LaneError, WorkerError};
use crate::execute::pooling::pools_any;
use crate::execute::{ComputeState, RowLogits, SampledRows, needs_logits};
use crate::lane_executor::{LaneExecutor, Task, WorkAmount};
use crate::memory::View;
use crate::stall::StallBounds;
use crate::work_items::row_counts;

/// Arguments of a device lane.
#[derive(Debug)]
pub struct DeviceLaneSetup {
    pub lane: LaneId,
    pub plan: Arc<Plan>,
    pub device: Arc<Device>,
    /// Host segments of this worker, for copies.
    pub view: View,
    pub control: Control,
    pub trace: TraceWriter,
    pub stall_bounds: StallBounds,
    /// Sampler, for the lane that computes.
    pub sampler: Option<ComputeState>,
}

/// The sampler and the host memory of the rows from which it samples.
#[derive(Debug)]
struct Sampling {
    state: ComputeState,
    /// f32 `[rows, vocab]`.
    logits: PinnedBuffer,
    /// The most likely token of each row, u32.
    tokens: PinnedBuffer,
    /// `[rows, hidden_size]` in the run's dtype, if the run pools hidden states.
    hidden: Option<PinnedBuffer>,
}

impl Sampling {
    fn new(state: ComputeState, plan: &Plan, context: &Context) -> Result<Sampling, WorkerError> {
        let rows = plan.programs.iter().map(|program| program.shape.logits_rows as usize).max();
        let row_bytes = |value| row_bytes(plan, value);
        let allocate =
            |value| PinnedBuffer::allocate(context, rows.unwrap_or(0) * row_bytes(value));
        let pools = plan.shape.pools();
        let hidden = pools.then(|| allocate(Value::LastNormed)).transpose()?;
        let tokens = PinnedBuffer::allocate(context, rows.unwrap_or(0) * size_of::<u32>())?;
        Ok(Sampling { state, logits: allocate(Value::Logits)?, tokens, hidden })
    }
}

/// Returns the bytes of a row of a value.
fn row_bytes(plan: &Plan, value: Value) -> usize {
    value.row_elements(&plan.config).unwrap_or(0) * value.element_bytes(plan.shape.dtype)
}

/// Enqueues the most likely token of each row of `logits`, f32 `[rows, vocab]`, and the copy of
/// these tokens to `to`.
fn enqueue_greedy(
    device: &Device,
    stream: &Stream,
    [rows, vocab]: [usize; 2],
    logits: DeviceAddress,
    to: &PinnedBuffer,
) -> Result<(), CudaError> {
    let (size_bytes, range) = (rows * size_of::<u32>(), device.scratch().tokens);
    let fits = size_bytes as u64 <= range.size_bytes && size_bytes <= to.size_bytes();
    assert!(fits, "the tokens fit their buffers");
    let tokens = device.scratch_address(range);
    // SAFETY: needed to determine the tokens. The caller checked the logits against their buffer,
    // the tokens fit (asserted), and only the lane that samples uses that scratch and the pinned
    // buffer.
    unsafe {
        device.launch(stream, argmax(rows as u32, vocab as u32, logits, tokens))?;
        stream.copy_to_host(to.base(), tokens, size_bytes)
    }
}

/// A lane on the device. A separate thread completes the work that it enqueues.
#[derive(Debug)]
pub struct DeviceLane {
    // Fields drop in order: no work may be in flight when its memory is released.
    tracker: CompletionTracker,
    marks: Marks,
    stream: Stream,
    uploads: Option<Uploads>,
    sampling: Option<Sampling>,
    plan: Arc<Plan>,
    view: View,
    table: StepTable,
    device: Arc<Device>,
}

impl DeviceLane {
    /// Creates the stream, its events and all memory that the lane will need.
    ///
    /// # Errors
    /// Returns the driver's error, or an error if no thread can be started.
    pub fn new(setup: DeviceLaneSetup) -> Result<DeviceLane, WorkerError> {
        let DeviceLaneSetup { lane, plan, device, view, control, trace, stall_bounds, sampler } =
            setup;
        let context = device.context().clone();
        let stream = Stream::new(&context)?;
        device.begin_stream(&stream)?;
        let computes = plan.topology.lane(lane).kind == LaneKind::Compute;
        let uploads = if computes { Some(Uploads::new(&device)?) } else { None };
        let sampling = sampler.map(|state| Sampling::new(state, &plan, &context)).transpose()?;
        let marks = Marks::new(&context, control.clone())?;
        let tracker = CompletionSetup {
            lane,
            plan: Arc::clone(&plan),
            context,
            control: control.clone(),
            trace,
            stall_bounds,
        };
        let tracker = CompletionTracker::start(tracker)?.map_err(WorkerError::Thread)?;
        let table = StepTable::new(control.extra(0, plan.table.words()), &plan);
        Ok(DeviceLane { tracker, marks, stream, uploads, sampling, plan, view, table, device })
    }

    fn enqueue(
        &mut self,
        program: ProgramId,
        instruction: &Instruction,
    ) -> Result<WorkAmount, CudaError> {
        let context = TransferContext {
            plan: &self.plan,
            device: &self.device,
            stream: &self.stream,
            view: &self.view,
            table: &self.table,
            program,
            marks: &self.marks,
        };
        match instruction {
            Instruction::Compute(compute) => {
                let Some(uploads) = &mut self.uploads else {
                    panic!("{} on a lane without kernels", compute.op.name(self.plan.config.family))
                };
                let (plan, device) = (&*self.plan, &*self.device);
                let (stream, table) = (&self.stream, &self.table);
                ComputeContext { plan, device, stream, table, program, uploads }.run(compute)
            }
            Instruction::Append(append) => {
                let Some(uploads) = &mut self.uploads else { panic!("an append without units") };
                context.append(append, uploads)
            }
            Instruction::Copy(copy) => context.copy(copy),
            Instruction::Decompress(decompress) => context.decompress(decompress),
            Instruction::Read(_) => panic!("a read on a lane of a device"),
            Instruction::Wait(_) | Instruction::Signal => Ok(WorkAmount::default()),
        }
    }

    /// Copies the logits, and the rows that are pooled, to the host and runs the same sampler as on
    /// every other device. If it needs the most likely tokens alone, the device determines them and
    /// no logits are copied.
    fn sample(&mut self, run: InstructionRun, compute: &Compute) -> Result<(), LaneError> {
        let (rows, _) = row_counts(&self.table, run.program, compute.at);
        let vocab = self.plan.config.vocab_size;
        let Some(sampling) = &mut self.sampling else { panic!("a sample without a sampler") };
        let pools = pools_any(&self.table, run.program, compute.at);
        let hidden = sampling.hidden.as_ref().filter(|_| pools);
        let wants_logits = needs_logits(&self.table, run.program, compute.at);
        let logits = wants_logits.then_some(&sampling.logits);
        let copies = [(Value::Logits, logits), (Value::LastNormed, hidden)];
        // Opened even if there are no logits: all work that the stream waits for reads the table
        // that is written here.
        let open = self.tracker.open(&self.stream, run)?;
        for ((value, to), input) in copies.into_iter().zip(&compute.inputs) {
            let size_bytes = rows * row_bytes(&self.plan, value);
            let Some(to) = to.filter(|_| size_bytes > 0) else { continue };
            assert!(size_bytes <= to.size_bytes(), "the rows fit their buffer");
            let from = self.device.buffer_addresses().address(input.buffer, 0, size_bytes);
            // SAFETY: needed to copy the rows to the host. Both ranges were checked; the pinned
            // one is this lane's own, and it is read only after the stream is done.
            let copied = unsafe { self.stream.copy_to_host(to.base(), from, size_bytes) };
            copied.map_err(|error| self.tracker.cuda(run, error))?;
        }
        if !wants_logits && rows > 0 {
            let size_bytes = rows * row_bytes(&self.plan, Value::Logits);
            let from =
                self.device.buffer_addresses().address(compute.inputs[0].buffer, 0, size_bytes);
            enqueue_greedy(&self.device, &self.stream, [rows, vocab], from, &sampling.tokens)
                .map_err(|error| self.tracker.cuda(run, error))?;
        }
        let work = WorkAmount { bytes: 0, rows: rows as u32 };
        self.tracker.close(&self.stream, open, work)?;
        self.tracker.wait_until_complete()?;
        let (values, tokens) = (sampling.logits.base(), sampling.tokens.base());
        // SAFETY: needed to read the logits or the tokens. This number of them was just written,
        // whole numbers of four bytes on a page boundary, and nothing is in flight on this lane.
        let logits = unsafe {
            if wants_logits {
                let values = values.cast::<f32>();
                RowLogits::Values(std::slice::from_raw_parts(values, rows * vocab))
            } else {
                RowLogits::Greedy(std::slice::from_raw_parts(tokens.cast::<u32>(), rows))
            }
        };
        let hidden = hidden.map(|pinned| -> &[u8] {
            let size_bytes = rows * row_bytes(&self.plan, Value::LastNormed);
            // SAFETY: needed to read the rows after the final norm. This number of bytes was just
            // written, and nothing is in flight on this lane.
            unsafe { std::slice::from_raw_parts(pinned.base().cast::<u8>(), size_bytes) }
        });
        let rows = SampledRows { logits, hidden };
        let (plan, view, table) = (&*self.plan, &self.view, &self.table);
        sampling.state.sample(plan, view, table, run.program, compute, rows);
        Ok(())
    }

    fn failed(&self, run: InstructionRun, error: CudaError) -> LaneError {
        let error = self.tracker.cuda(run, error);
        self.tracker.poison_run();
        error
    }
}

impl LaneExecutor for DeviceLane {
    fn begin(&mut self) -> Result<(), LaneError> {
        shorten_sleeps();
        let run = InstructionRun { program: ProgramId::PREFILL, step: 0, instruction: 0 };
        self.device.context().make_current().map_err(|error| self.failed(run, error))
    }

    fn begin_list(&mut self, _: StepOfGroup) {
        if let Some(uploads) = &mut self.uploads {
            uploads.next_run();
        }
    }

    /// Enqueues the instruction; `Sample` is complete when this returns.
    ///
    /// # Panics
    /// Panics in the same cases as [`crate::execute::Executor`].
    fn execute(&mut self, task: Task<'_>) -> Result<Option<WorkAmount>, LaneError> {
        let Task { program, step, index, instruction } = task;
        let run = InstructionRun { program, step, instruction: index as u32 };
        if let Instruction::Compute(compute) = instruction
            && compute.op == Op::Sample
        {
            return self.sample(run, compute).map(|()| None);
        }
        let open = self.tracker.open(&self.stream, run)?;
        let work = self.enqueue(program, instruction).map_err(|error| self.failed(run, error))?;
        self.tracker.close(&self.stream, open, work).map(|()| None)
    }

    fn signal(&self, _: &Timeline) {
        self.tracker.signal();
    }

    fn order_after(&self, lane: LaneId, target: u32) -> Result<bool, LaneError> {
        let Some(word) = self.device.timeline(lane) else { return Ok(false) };
        let topology = &self.plan.topology;
        let reads = topology.lane(lane).kind == LaneKind::Read && topology.reads_directly();
        // SAFETY: needed to order the stream after the lane. The word is in the control segment,
        // which is registered for as long as the device is open.
        let waited = unsafe {
            match reads {
                true => self.stream.wait_value_of_device(word, target),
                false => self.stream.wait_value(word, target),
            }
        };
        let run = InstructionRun { program: ProgramId::PREFILL, step: 0, instruction: 0 };
        waited.map_err(|error| self.failed(run, error))?;
        Ok(true)
    }

    fn wait_until_complete(&self) -> Result<(), LaneError> {
        self.tracker.wait_until_complete()
    }

    fn own_failure(&self) -> Option<LaneError> {
        self.tracker.own_failure()
    }

    fn is_asynchronous(&self) -> bool {
        true
    }
}
