//! Construction of a worker's lanes from a `WorkerSetup`, shared by processes and in-process tests.

use std::sync::Arc;
use std::time::Duration;

use kernels::{PoolOptions, Variant};
use program::ir::Instruction;
use program::plan::Plan;
use program::topology::{LaneId, LaneKind, WorkerId};
use protocol::grammar_source::GrammarSource;
use protocol::messages::TimedDurations;
use shm::{Control, TraceSegment, TraceWriter};

use crate::calibrate::calibrate;
use crate::checkpoint::LaneCheckpoint;
use crate::device::{Device, DeviceLane, DeviceLaneSetup, DirectDevice};
use crate::error::WorkerError;
use crate::execute::{ComputeState, Executor};
use crate::hidden_store::SharedHiddenStore;
use crate::lane::{LaneRunner, LaneSetup};
use crate::lane_executor::LaneExecutor;
use crate::memory::{Memories, View};
use crate::process::WorkerLanes;
use crate::read_watchdog::ReadWatchdog;
use crate::shared_drafter::SharedDrafter;
use crate::skew::Skew;
use crate::stall::StallBounds;
use crate::standby::Standby;
use crate::storage::{StagedBlobs, StorageLane};
use crate::timed::TimedLane;

/// Settings of the lanes of one worker.
#[derive(Debug, Clone)]
pub struct LaneOptions {
    pub variant: Variant,
    /// Compute threads of each lane that computes.
    pub pool: PoolOptions,
    pub link_bytes_per_s: Option<u64>,
    pub wait_timeout: Duration,
    /// Grammars that answers may have to follow.
    pub grammars: Option<GrammarSource>,
    /// Routers select experts at random, all of them equally often.
    pub routes_randomly: bool,
    /// Tokens of the text by which a plan selects positions; empty if it does not select.
    pub select_text: Vec<u32>,
    /// Source of drafted tokens; `None` for prompt lookup.
    pub drafter: Option<SharedDrafter>,
}

impl LaneOptions {
    /// Creates the state of a lane that runs operations.
    pub(crate) fn compute_state(
        &self,
        plan: &Plan,
        lane: LaneId,
    ) -> Result<ComputeState, WorkerError> {
        let list = plan.prefill().lane(lane);
        let samples = list.is_some_and(|list| list.instructions.iter().any(Instruction::is_sample));
        let grammars = self.grammars.as_ref().filter(|_| samples);
        let state = ComputeState::new(plan, self.variant, &self.pool, grammars)?;
        let state = match self.drafter.as_ref().filter(|_| samples) {
            Some(drafter) => state.with_drafter(Arc::clone(drafter)),
            None => state,
        };
        Ok(if self.routes_randomly { state.with_random_routing() } else { state })
    }
}

/// Everything that the lanes of a worker share.
#[derive(Debug, Clone, Copy)]
pub struct LaneBuildContext<'a> {
    pub worker: WorkerId,
    pub plan: &'a Arc<Plan>,
    pub control: &'a Control,
    pub trace: &'a TraceSegment,
    /// Maximum time without progress of any lane in the first steps; `None` to use the bound of
    /// later steps.
    pub start_timeout: Option<Duration>,
}

impl LaneBuildContext<'_> {
    /// Returns those of `lanes` that have work in the plan.
    fn with_work(&self, lanes: Vec<LaneId>) -> impl Iterator<Item = LaneId> + use<> {
        let with_work = self.plan.lanes();
        lanes.into_iter().filter(move |lane| with_work.contains(lane))
    }

    fn stall_bounds(&self, wait_timeout: Duration) -> StallBounds {
        StallBounds { run: wait_timeout, start: self.start_timeout }
    }

    fn setup(&self, lane: LaneId, trace: Option<TraceWriter>, wait_timeout: Duration) -> LaneSetup {
        LaneSetup {
            lane,
            worker: self.worker,
            plan: Arc::clone(self.plan),
            control: self.control.clone(),
            trace,
            stall_bounds: self.stall_bounds(wait_timeout),
            link_bytes_per_s: None,
            checkpoint: None,
        }
    }
}

/// State that the lanes of a worker share in some runs.
#[derive(Debug, Clone, Copy, Default)]
pub(crate) struct SharedState<'a> {
    /// Present in a plan that selects positions.
    pub(crate) skew: Option<&'a Arc<Skew>>,
    /// Hidden states that are joined with embeddings, in a model for multi-token prediction.
    pub(crate) hidden: Option<&'a SharedHiddenStore>,
}

/// Creates the executor of a lane of the host or of an emulated device.
///
/// # Errors
/// Returns an error if no threads can be started.
///
/// # Safety
/// The requirements of [`build_lanes`] apply.
pub(crate) unsafe fn lane_executor(
    lane: LaneId,
    plan: &Arc<Plan>,
    memories: &Arc<Memories>,
    control: &Control,
    options: &LaneOptions,
    SharedState { skew, hidden }: SharedState<'_>,
) -> Result<Box<dyn LaneExecutor>, WorkerError> {
    // SAFETY: one view per lane; it executes its lane's list in order, waits included, and the plan
    // is valid (contract of this function).
    let view = unsafe { View::new(Arc::clone(memories)) };
    let plan = Arc::clone(plan);
    let compute = match plan.topology.lane(lane).kind {
        LaneKind::Read => {
            let reason = "Weights are on storages, which only storage workers read";
            return Err(WorkerError::Staging { reason: reason.to_owned() });
        }
        LaneKind::Compute => {
            let state = options.compute_state(&plan, lane)?;
            Some(match hidden {
                Some(store) => state.with_hidden(Arc::clone(store)),
                None => state,
            })
        }
        _ => None,
    };
    let executor = Executor::new(lane, plan, view, control, options.variant, compute);
    Ok(Box::new(executor.with_skew(skew.cloned())))
}

/// Computes the skew for a plan that selects positions, once the weights are in place.
///
/// # Errors
/// Returns an error if memory or threads are unavailable, or the text cannot be computed.
pub(crate) fn skew(
    plan: &Plan,
    memories: &Memories,
    options: &LaneOptions,
) -> Result<Option<Arc<Skew>>, WorkerError> {
    let LaneOptions { variant, pool, select_text, .. } = options;
    let find = || calibrate(plan, memories.mappings(), *variant, pool, select_text);
    let found = plan.map.kv_select.is_some().then(find).transpose()?;
    Ok(found.map(Arc::new))
}

/// Builds the lanes of a worker that have work in the plan. Everything that they will ever allocate
/// is allocated here.
///
/// # Errors
/// Returns an error if no threads can be started or trace rings are already in use.
///
/// # Safety
/// The plan is valid, every lane is built once in all processes, and the lanes run only after the
/// weights are in place.
pub unsafe fn build_lanes(
    context: LaneBuildContext<'_>,
    memories: &Arc<Memories>,
    options: &LaneOptions,
) -> Result<Vec<LaneRunner>, WorkerError> {
    let LaneBuildContext { worker, plan, control, trace, .. } = context;
    let worker_lanes = context.with_work(plan.topology.lanes_of(worker));
    let skew = skew(plan, memories, options)?;
    worker_lanes
        .map(|lane| {
            let shared = SharedState { skew: skew.as_ref(), hidden: None };
            // SAFETY: the contract of this function.
            let executor =
                unsafe { lane_executor(lane, plan, memories, control, options, shared) }?;
            let trace = Some(trace.writer(lane.index())?);
            let setup = LaneSetup {
                link_bytes_per_s: options.link_bytes_per_s,
                ..context.setup(lane, trace, options.wait_timeout)
            };
            Ok(LaneRunner::new(setup, executor))
        })
        .collect()
}

/// Builds the lane of a storage worker and standby lanes for all other storages, and returns them
/// with a description of the reads. `device` is the CUDA device to which the worker reads directly,
/// if any.
///
/// # Errors
/// Returns an error in the same cases as [`build_lanes`], or if the staging cannot be read.
///
/// # Safety
/// The requirements of [`build_lanes`] apply; standby lanes run only once their own workers have
/// ended.
pub(crate) unsafe fn build_storage_lanes(
    context: LaneBuildContext<'_>,
    memories: &Arc<Memories>,
    store: &StagedBlobs,
    device: Option<&Arc<Device>>,
    options: &LaneOptions,
) -> Result<(WorkerLanes, String), WorkerError> {
    let direct = device.map(DirectDevice::open).transpose()?;
    let LaneBuildContext { worker, plan, control, trace, .. } = context;
    let mut description = String::new();
    let checkpoint = Arc::new(LaneCheckpoint::new(plan.topology.lanes.len()));
    let mut lanes = WorkerLanes { silence_max: store.silence_max, ..WorkerLanes::default() };
    let storages = plan.topology.storages().into_iter().map(|(_, lane)| lane);
    for lane in context.with_work(storages.collect()) {
        let watchdog = Arc::new(ReadWatchdog::default());
        let is_own = plan.topology.lane(lane).worker == worker;
        // SAFETY: one view per lane; it executes its lane's list in order, waits included, and the
        // plan is valid; lanes run only once all are built (contract of this function).
        let mut executor = unsafe {
            let view = View::new(Arc::clone(memories));
            let direct = direct.as_ref();
            StorageLane::new(lane, plan, control, view, store, &watchdog, direct)
        }?;
        lanes.watchdogs.push(watchdog);
        if is_own {
            // SAFETY: as above.
            unsafe { executor.read_pinned() }?;
            description = executor.describe();
        }
        let executor = Box::new(executor);
        let writer = if is_own { Some(trace.writer(lane.index())?) } else { None };
        let mut setup = context.setup(lane, writer, options.wait_timeout);
        if is_own {
            setup.checkpoint = Some(Arc::clone(&checkpoint));
            lanes.runners.push(LaneRunner::new(setup, executor));
        } else {
            let runner = LaneRunner::new(setup, executor);
            let (checkpoint, trace) = (Arc::clone(&checkpoint), trace.clone());
            lanes.standbys.push(Standby::new(worker, runner, checkpoint, control.clone(), trace));
        }
    }
    Ok((lanes, description))
}

/// Builds timed lanes, which only let time pass; they touch no memory except the step table.
///
/// # Errors
/// Returns an error if trace rings are already in use.
pub fn build_timed_lanes(
    context: LaneBuildContext<'_>,
    wait_timeout: Duration,
    durations: &TimedDurations,
) -> Result<Vec<LaneRunner>, WorkerError> {
    let LaneBuildContext { worker, plan, control, trace, .. } = context;
    let worker_lanes = context.with_work(plan.topology.lanes_of(worker));
    worker_lanes
        .map(|lane| {
            let timed = Box::new(TimedLane::new(durations, lane, plan, control));
            let trace = Some(trace.writer(lane.index())?);
            Ok(LaneRunner::new(context.setup(lane, trace, wait_timeout), timed))
        })
        .collect()
}

/// Builds those of `lanes` that have work in the plan, on a device. `memories` are the host
/// segments that this worker maps.
///
/// # Errors
/// Returns the driver's error, or an error if no threads can be started or trace rings are already
/// in use.
///
/// # Safety
/// The requirements of [`build_lanes`] apply.
pub unsafe fn build_device_lanes(
    context: LaneBuildContext<'_>,
    lanes: Vec<LaneId>,
    device: &Arc<Device>,
    memories: &Arc<Memories>,
    options: &LaneOptions,
) -> Result<Vec<LaneRunner>, WorkerError> {
    let LaneBuildContext { plan, control, trace, .. } = context;
    context
        .with_work(lanes)
        .map(|lane| {
            let sampler = match plan.topology.lane(lane).kind {
                LaneKind::Compute => Some(options.compute_state(plan, lane)?),
                _ => None,
            };
            let device_lane = DeviceLane::new(DeviceLaneSetup {
                lane,
                plan: Arc::clone(plan),
                device: Arc::clone(device),
                // SAFETY: one view per lane; it executes its list in order, waits included, and the
                // plan is valid (contract of this function).
                view: unsafe { View::new(Arc::clone(memories)) },
                control: control.clone(),
                trace: trace.writer(lane.index())?,
                stall_bounds: context.stall_bounds(options.wait_timeout),
                sampler,
            })?;
            let setup = context.setup(lane, None, options.wait_timeout);
            Ok(LaneRunner::new(setup, Box::new(device_lane)))
        })
        .collect()
}
