//! A worker process from start to exit: handshake, segments, weights, lanes.
//!
//! A worker ends in one of three ways: with the last group (exit code 0); with an error, which it
//! reports over the channel before it poisons the run (1); or because another process poisoned the
//! run, silently, after giving the coordinator time to identify the failed worker (1). A panic
//! aborts: a process that lost a lane must not signal anything again.

use std::os::fd::{AsFd, OwnedFd, RawFd};
use std::panic::PanicHookInfo;
use std::sync::Arc;
use std::time::Duration;

use cuda::CudaError;
use kernels::{PoolOptions, Variant};
use program::checkpoints::CheckpointLayout;
use program::plan::Plan;
use program::topology::{Holds, LaneId, Role, SegmentId, Topology, WorkerId};
use protocol::grammar_source::{GrammarSource, ReadyGrammars};
use protocol::messages::{
    CudaConfig, FailureKind, FromWorker, ToWorker, WeightsOrigin, WorkerSetup,
};
use rustix::process::{Signal, getppid, set_parent_process_death_signal};
use shm::WorkerState;
use shm::{Access, Channel, Control, Mapping, Segment, TraceSegment};

use crate::alloc_counter;
use crate::background::BackgroundTasks;
use crate::checkpoint_copies::CheckpointCopies;
use crate::device::{ArenaHandle, Device, check};
use crate::draft_model::start_drafter;
use crate::error::{LaneError, PoisonCode, WorkerError};
use crate::grammar_compiler::WorkerGrammarCompiler;
use crate::heartbeat::{self, Heartbeat};
use crate::load::OpenWeights;
use crate::memory::Memories;
use crate::messages::{receive, receive_setup, report_failure, send, unexpected};
use crate::page_copies::PageCopies;
use crate::page_transfers::PageTransferQueue;
use crate::prefix_transfers::PrefixTransfers;
use crate::process::{WorkerLanes, WorkerRuntime};
use crate::setup::{
    LaneBuildContext, LaneOptions, build_device_lanes, build_lanes, build_storage_lanes,
    build_timed_lanes,
};

/// Time for which a worker that only follows another's failure stays alive, so that the coordinator
/// finds the failed worker dead first.
const LINGER: Duration = Duration::from_secs(20);
/// Environment variable that makes a panic print one line to stderr, whatever its value.
const DEBUG_ENV: &str = "TANDEM_DEBUG";
/// Minimum size of a segment: a plan may need no bytes of a memory, but a mapping needs a page.
const SEGMENT_BYTES_MIN: u64 = 4096;
/// Number of pages of a mapping that are checked to be on the specified nodes.
const CHECKED_PAGES_MAX: usize = 4096;

/// Runs a worker over the inherited descriptor `channel_number`, on the main thread, and returns
/// the exit code of the process.
///
/// # Safety
/// `channel_number` was inherited from the coordinator and nothing else in this process owns it.
pub unsafe fn worker_main(channel_number: RawFd, open: &OpenWeights) -> u8 {
    if arm_parent_death_signal().is_err() {
        return 1;
    }
    // SAFETY: the caller guarantees that the number is ours.
    let Ok(channel) = (unsafe { Channel::from_number(channel_number) }) else { return 1 };
    let channel = Arc::new(channel);
    install_panic_hook(&channel);
    match run(&channel, open) {
        Ok(()) => 0,
        Err(WorkerError::Lane(LaneError::Poisoned)) => {
            // No message is expected; the coordinator kills this process or closes the channel.
            let _ = channel.recv(LINGER);
            1
        }
        Err(_) => 1,
    }
}

/// Requests SIGKILL for the death of the coordinator. If it died before, its end of the channel is
/// closed, which the first message detects.
fn arm_parent_death_signal() -> Result<(), WorkerError> {
    let parent = getppid();
    set_parent_process_death_signal(Some(Signal::KILL))
        .map_err(|errno| WorkerError::Parent(errno.into()))?;
    if getppid() == parent { Ok(()) } else { Err(WorkerError::Orphaned) }
}

fn install_panic_hook(channel: &Arc<Channel>) {
    let channel = Arc::clone(channel);
    std::panic::set_hook(Box::new(move |info: &PanicHookInfo<'_>| {
        let message =
            format!("A worker met a defect in Tandem and aborted: {info}.").replace('\n', " ");
        if std::env::var_os(DEBUG_ENV).is_some() {
            eprintln!("{message}");
        }
        // If the coordinator cannot be reached, it observes the abort.
        let kind = FailureKind::Other;
        let _ = send(&channel, &FromWorker::Failed { kind, message }, &[]);
        std::process::abort();
    }));
}

/// Faults in the pages that are used from the start, and checks that they are on the specified
/// nodes.
fn populate(setup: &WorkerSetup, memories: &Memories) -> Result<(), WorkerError> {
    if setup.durations.is_none() {
        memories.populate();
    }
    for (segment, mapping) in memories.mappings() {
        mapping.check_nodes(setup.nodes.for_segment(*segment), CHECKED_PAGES_MAX)?;
    }
    Ok(())
}

/// Runs a worker once the channel is open. An error has been reported and has poisoned the run.
fn run(channel: &Channel, open: &OpenWeights) -> Result<(), WorkerError> {
    let (setup, descriptors) =
        receive_setup(channel).inspect_err(|error| report_failure(channel, error))?;
    let mut descriptors = descriptors.into_iter();
    let mut next = || {
        descriptors.next().ok_or(WorkerError::Unexpected {
            found: "a setup without its segments",
            expected: "a descriptor per segment",
        })
    };
    let control = match next().and_then(|fd| Ok(Control::attach(fd, setup.control_bytes as usize)?))
    {
        Ok(control) => control,
        Err(error) => {
            report_failure(channel, &error);
            return Err(error);
        }
    };
    let role = setup.plan.topology.worker(setup.worker).role;
    let worker = WorkerRuntime { channel, control: &control, id: setup.worker, role };
    let culprit = setup_culprit(&setup.plan, setup.worker);
    let outcome = worker.run_states(setup, next, open);
    if let Err(error) = &outcome {
        worker.report(error, PoisonCode::Setup, culprit);
    }
    control.worker(worker.id.index()).set_state(WorkerState::Exit);
    outcome
}

/// Returns the lanes of a worker with a CUDA device.
fn device_lanes(topology: &Topology, worker: WorkerId, cuda: Option<CudaConfig>) -> Vec<LaneId> {
    let mut lanes = topology.lanes_of(worker);
    let copies = cuda.is_some_and(|cuda| cuda.copies_in_gpu_worker);
    if topology.worker(worker).role == Role::Gpu && copies {
        let transfer_workers = topology.workers_of(Role::Transfer);
        lanes.extend(transfer_workers.flat_map(|other| topology.lanes_of(other)));
    }
    lanes
}

/// Returns the source from which lanes take grammars, and the compiler of those that arrive later.
/// Takes the grammars out of the setup.
fn take_grammars(
    setup: &mut WorkerSetup,
) -> (Option<GrammarSource>, Option<WorkerGrammarCompiler>) {
    let grammars = setup.grammars.take().map(Arc::new);
    if !setup.plan.shape.serves {
        return (grammars.map(GrammarSource::Preloaded), None);
    }
    let Some(grammars) = grammars else { return (None, None) };
    let ready = Arc::new(ReadyGrammars::default());
    (
        Some(GrammarSource::Dynamic(Arc::clone(&ready))),
        Some(WorkerGrammarCompiler::new(grammars, ready)),
    )
}

/// Returns the background tasks of a worker.
fn background_tasks(
    setup: &WorkerSetup,
    grammars: Option<WorkerGrammarCompiler>,
    memories: &Arc<Memories>,
) -> Result<BackgroundTasks, WorkerError> {
    let keeps =
        setup.plan.shape.serves && setup.plan.topology.worker(setup.worker).role == Role::Cpu;
    // SAFETY: the coordinator determines which pages belong to which user (`engine/serving` there).
    let copies = keeps.then(|| unsafe { PageCopies::from_plan(&setup.plan, memories) }).flatten();
    // SAFETY: as for pages, the coordinator determines which slots and checkpoints are in use.
    let checkpoints =
        keeps.then(|| unsafe { CheckpointCopies::from_plan(&setup.plan, memories) }).flatten();
    let prefixes = match (&setup.prompts, &copies) {
        (Some(at), Some(copies)) => {
            let orders = PageTransferQueue::new().map_err(WorkerError::Thread)?;
            let (view, runs) = copies.pages();
            let layouts = CheckpointLayout::of_batches(&setup.plan);
            Some(PrefixTransfers::new(at.clone(), view, runs, layouts, Arc::new(orders)))
        }
        _ => None,
    };
    let caches = (keeps && setup.durations.is_none()).then(|| Arc::clone(memories));
    Ok(BackgroundTasks { grammars, copies, checkpoints, prefixes, caches })
}

/// Returns the options of a worker's lanes according to the setup.
fn lane_options(setup: &WorkerSetup, variant: Variant) -> LaneOptions {
    LaneOptions {
        variant,
        pool: PoolOptions {
            threads: usize::from(setup.threads.max(1)),
            cpus: setup.cpus.iter().map(|cpu| *cpu as usize).collect(),
            spin: Duration::from_micros(u64::from(setup.spin_us)),
        },
        link_bytes_per_s: setup.link_bytes_per_s,
        wait_timeout: Duration::from_millis(setup.wait_timeout_ms),
        grammars: None,
        routes_randomly: matches!(setup.weights, WeightsOrigin::DummyRandomRouting { .. }),
        select_text: setup.select_text.clone(),
        drafter: None,
    }
}

/// Returns the lane that poison blames for a failure outside the lanes: the worker's first lane.
fn setup_culprit(plan: &Plan, worker: WorkerId) -> LaneId {
    plan.topology.lanes_of(worker).first().copied().unwrap_or(LaneId(0))
}

/// Returns true if the worker of a storage reads to a device too.
fn reads_to_device(plan: &Plan, worker: WorkerId) -> bool {
    plan.topology.device().is_some_and(|device| plan.topology.maps(worker, device))
}

/// Returns the reason why a second process cannot use the device, for reports.
fn describe_sharing_failure(error: &CudaError) -> String {
    match error.is_about_ipc() {
        true => "CUDA IPC is refused here".to_owned(),
        false => {
            let reason = error.to_string();
            format!("a second process cannot use the device: {}", reason.trim_end_matches('.'))
        }
    }
}

/// Returns the arena of a device whose memory the worker maps.
fn arena(plan: &Plan, worker: WorkerId) -> SegmentId {
    let topology = &plan.topology;
    let arena_memory =
        topology.worker(worker).memories.iter().find(|memory| topology.is_vram(**memory));
    let segments = arena_memory.map_or_else(Vec::new, |memory| topology.segments_of(*memory));
    segments.first().copied().unwrap_or(SegmentId::DEVICE)
}

impl WorkerRuntime<'_> {
    /// Runs the states Map, Load, Ready, Run and Drain.
    fn run_states(
        &self,
        mut setup: WorkerSetup,
        mut next: impl FnMut() -> Result<OwnedFd, WorkerError>,
        open: &OpenWeights,
    ) -> Result<(), WorkerError> {
        self.set_state(WorkerState::Map);
        let heartbeat = Heartbeat::start(self.control.clone(), self.id.index())?;
        let variant = Variant::from_env()?;
        let capacity = setup.trace_capacity as usize;
        let trace = TraceSegment::attach(next()?, setup.plan.topology.lanes.len(), capacity)?;
        let mut mappings = self.mappings(&setup, &mut next)?;
        let cuda = match setup.cuda {
            Some(cuda) => self.cuda(&setup.plan, cuda, &mappings)?,
            None => {
                if let Some((arena, device)) = self.device(&setup)? {
                    mappings.push((arena, Arc::new(device.into_mapping())));
                }
                None
            }
        };
        let memories = Arc::new(Memories::new(&setup.plan, mappings)?);
        self.set_state(WorkerState::Load);
        let store = self.load(&setup, &memories, cuda.as_deref(), variant, open)?;
        populate(&setup, &memories)?;
        let (grammars, compiler) = take_grammars(&mut setup);
        let background = background_tasks(&setup, compiler, &memories)?;
        let mut options = LaneOptions { grammars, ..lane_options(&setup, variant) };
        options.drafter = start_drafter(&mut setup, &options, open)?;
        let plan = Arc::new(setup.plan);
        let (worker, control) = (self.id, self.control);
        let start_timeout = setup.start_timeout_ms.map(Duration::from_millis);
        let context =
            LaneBuildContext { worker, plan: &plan, control, trace: &trace, start_timeout };
        let described = cuda.as_ref().map(|device| device.describe());
        let own_lanes = |runners| WorkerLanes { runners, ..WorkerLanes::default() };
        let description;
        let (lanes, kernels) = match (&setup.durations, &cuda, &store) {
            (Some(durations), ..) => {
                (own_lanes(build_timed_lanes(context, options.wait_timeout, durations)?), "timed")
            }
            (None, Some(device), None) => {
                let lanes = device_lanes(&plan.topology, self.id, setup.cuda);
                // SAFETY: as below.
                let lanes =
                    unsafe { build_device_lanes(context, lanes, device, &memories, &options) }?;
                (own_lanes(lanes), described.as_deref().unwrap_or_default())
            }
            (None, device, Some(store)) => {
                let device = device.as_ref();
                // SAFETY: as below; the coordinator hands a lane over once its worker has ended.
                let built =
                    unsafe { build_storage_lanes(context, &memories, store, device, &options) }?;
                description = built.1;
                (built.0, description.as_str())
            }
            (None, None, None) => {
                // SAFETY: the coordinator sends plans that the validator has accepted, starts each
                // of the plan's workers once, and releases groups only after all have reported that
                // they are ready.
                (own_lanes(unsafe { build_lanes(context, &memories, &options) }?), variant.name())
            }
        };
        self.run_lanes(WorkerLanes { background, ..lanes }, kernels, setup_culprit(&plan, worker))?;
        self.set_state(WorkerState::Drain);
        heartbeat::publish(self.control, self.id.index());
        alloc_counter::disarm();
        drop(heartbeat);
        Ok(())
    }

    /// Maps the host's memory: the private memory of this worker, and segments, one descriptor
    /// each.
    fn mappings(
        &self,
        setup: &WorkerSetup,
        next: &mut impl FnMut() -> Result<OwnedFd, WorkerError>,
    ) -> Result<Vec<(SegmentId, Arc<Mapping>)>, WorkerError> {
        let mut mappings = Vec::new();
        for (memory, size_bytes) in &setup.private {
            let mapping = Mapping::private(*size_bytes as usize)?;
            mapping.bind(setup.nodes.for_segment(*memory))?;
            mappings.push((*memory, Arc::new(mapping)));
        }
        for (memory, size_bytes) in &setup.memories {
            let access = match (self.role, memory.holds) {
                (Role::Transfer, Holds::Weights) => Access::ReadOnly,
                _ => Access::ReadWrite,
            };
            let segment = Segment::attach(next()?, *size_bytes as usize, access)?;
            segment.bind(setup.nodes.for_segment(*memory))?;
            mappings.push((*memory, Arc::new(segment.into_mapping())));
        }
        Ok(mappings)
    }

    /// Opens the CUDA device. The gpu worker creates its arena; workers that copy or read to the
    /// device open it. Workers that copy also pin their host memory.
    fn cuda(
        &self,
        plan: &Plan,
        cuda: CudaConfig,
        mappings: &[(SegmentId, Arc<Mapping>)],
    ) -> Result<Option<Arc<Device>>, WorkerError> {
        let mut device = match self.role {
            Role::Cpu => return Ok(None),
            Role::Storage if !reads_to_device(plan, self.id) => return Ok(None),
            Role::Gpu => {
                check(plan)?;
                // A closed channel is detected with the next message.
                let on_compile = || drop(send(self.channel, &FromWorker::CompilingKernels, &[]));
                let device = Device::create(plan, cuda, self.control, &on_compile)?;
                if !cuda.copies_in_gpu_worker {
                    // The coordinator handles a refused export, since it can do without.
                    let exported = device.export();
                    let message = FromWorker::ExportedDevice {
                        size_bytes: exported.as_ref().map_or(0, |exported| exported.size_bytes),
                        handle: exported
                            .map(|exported| exported.handle.to_vec())
                            .map_err(|error| describe_sharing_failure(&error)),
                    };
                    send(self.channel, &message, &[])?;
                }
                device
            }
            Role::Transfer | Role::Storage => match receive(self.channel)? {
                (ToWorker::AttachDevice { handle, size_bytes }, _) => {
                    let handle = handle.try_into().map_err(|_| WorkerError::Unexpected {
                        found: "a handle of a different size",
                        expected: "the device's handle",
                    })?;
                    let exported = ArenaHandle { handle, size_bytes };
                    let device = Device::open(plan, cuda, &exported, self.control);
                    // One process can do what two may not, so the coordinator handles the refusal.
                    let refusal = device.as_ref().err().map(describe_sharing_failure);
                    send(self.channel, &FromWorker::AttachedDevice { refusal }, &[])?;
                    device?
                }
                (other, _) => return Err(unexpected(&other, "the device's memory")),
            },
        };
        if self.role != Role::Storage {
            device.pin(plan, mappings)?;
        }
        Ok(Some(Arc::new(device)))
    }

    /// Maps the emulated device's memory. The gpu worker creates it; workers that copy or read to
    /// it attach it.
    fn device(&self, setup: &WorkerSetup) -> Result<Option<(SegmentId, Segment)>, WorkerError> {
        match self.role {
            Role::Cpu => Ok(None),
            Role::Storage if !reads_to_device(&setup.plan, self.id) => Ok(None),
            Role::Gpu => {
                let memory = arena(&setup.plan, self.id);
                let size_bytes = setup.plan.segment_bytes(memory).max(SEGMENT_BYTES_MIN);
                let segment = Segment::create("tandem-device", size_bytes as usize)?;
                let exported = FromWorker::Exported { memory, size_bytes };
                send(self.channel, &exported, &[segment.fd().as_fd()])?;
                Ok(Some((memory, segment)))
            }
            Role::Transfer | Role::Storage => match receive(self.channel)? {
                (ToWorker::Attach { memory, size_bytes }, mut descriptors)
                    if descriptors.len() == 1 =>
                {
                    let fd = descriptors.remove(0);
                    let segment = Segment::attach(fd, size_bytes as usize, Access::ReadWrite)?;
                    Ok(Some((memory, segment)))
                }
                (other, _) => Err(unexpected(&other, "the device's memory")),
            },
        }
    }
}
