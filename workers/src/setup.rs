//! Construction of a worker's lanes from a `Setup`, shared by processes and in-process tests.

use std::sync::Arc;
use std::time::Duration;

use kernels::{PoolOptions, Variant};
use program::ir::Instruction;
use program::plan::Plan;
use program::topology::{LaneId, LaneKind, WorkerId};
use shm::{Control, TraceSegment, TraceWriter};

use crate::calibrate::calibrate;
use crate::device::{Device, DeviceLane, DeviceLaneSetup, DirectDevice};
use crate::error::WorkerError;
use crate::execute::{ComputeState, Executor};
use crate::lane::{LaneRunner, LaneSetup};
use crate::lane_executor::LaneExecutor;
use crate::lead::Lead;
use crate::memory::{Memories, View};
use crate::process::Lanes;
use crate::pulse::Pulse;
use crate::shared::forms::Forms;
use crate::shared::protocol::Durations;
use crate::skew::Skew;
use crate::standby::Standby;
use crate::still::StillBounds;
use crate::storage::{StorageLane, Store};
use crate::timed::Timed;

/// Settings of the lanes of one worker.
#[derive(Debug, Clone)]
pub struct LaneOptions {
    pub variant: Variant,
    /// Compute threads of each lane that computes.
    pub pool: PoolOptions,
    pub link_bytes_per_s: Option<u64>,
    pub wait_timeout: Duration,
    /// Grammars that answers may have to follow.
    pub forms: Option<Forms>,
    /// Routers select experts at random, all of them equally often.
    pub routes_evenly: bool,
    /// Tokens of the text by which a plan selects positions; empty if it does not select.
    pub select_text: Vec<u32>,
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
        let forms = self.forms.as_ref().filter(|_| samples);
        let state = ComputeState::new(plan, self.variant, &self.pool, forms)?;
        Ok(if self.routes_evenly { state.routing_evenly() } else { state })
    }
}

/// Everything that the lanes of a worker share.
#[derive(Debug, Clone, Copy)]
pub struct Building<'a> {
    pub worker: WorkerId,
    pub plan: &'a Arc<Plan>,
    pub control: &'a Control,
    pub trace: &'a TraceSegment,
    /// Maximum time without progress of any lane in the first steps; `None` to use the bound of
    /// later steps.
    pub start_timeout: Option<Duration>,
}

impl Building<'_> {
    /// Returns those of `lanes` that have work in the plan.
    fn with_work(&self, lanes: Vec<LaneId>) -> impl Iterator<Item = LaneId> + use<> {
        let with_work = self.plan.lanes();
        lanes.into_iter().filter(move |lane| with_work.contains(lane))
    }

    fn still(&self, wait_timeout: Duration) -> StillBounds {
        StillBounds { run: wait_timeout, start: self.start_timeout }
    }

    fn setup(&self, lane: LaneId, trace: Option<TraceWriter>, wait_timeout: Duration) -> LaneSetup {
        LaneSetup {
            lane,
            worker: self.worker,
            plan: Arc::clone(self.plan),
            control: self.control.clone(),
            trace,
            still: self.still(wait_timeout),
            link_bytes_per_s: None,
            lead: None,
        }
    }
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
    (options, skew): (&LaneOptions, Option<&Arc<Skew>>),
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
        LaneKind::Compute => Some(options.compute_state(&plan, lane)?),
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
    let by = (options.variant, &options.pool);
    let find = || calibrate(plan, memories.mappings(), by, &options.select_text);
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
    building: Building<'_>,
    memories: &Arc<Memories>,
    options: &LaneOptions,
) -> Result<Vec<LaneRunner>, WorkerError> {
    let Building { worker, plan, control, trace, .. } = building;
    let own = building.with_work(plan.topology.lanes_of(worker));
    let skew = skew(plan, memories, options)?;
    own.map(|lane| {
        let of_lane = (options, skew.as_ref());
        // SAFETY: the contract of this function.
        let executor = unsafe { lane_executor(lane, plan, memories, control, of_lane) }?;
        let trace = Some(trace.writer(lane.index())?);
        let setup = LaneSetup {
            link_bytes_per_s: options.link_bytes_per_s,
            ..building.setup(lane, trace, options.wait_timeout)
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
    building: Building<'_>,
    memories: &Arc<Memories>,
    (store, device): (&Store, Option<&Arc<Device>>),
    options: &LaneOptions,
) -> Result<(Lanes, String), WorkerError> {
    let direct = device.map(DirectDevice::open).transpose()?;
    let Building { worker, plan, control, trace, .. } = building;
    let mut how = String::new();
    let lead = Arc::new(Lead::new(plan.topology.lanes.len()));
    let mut lanes = Lanes { silence_max: store.silence_max, ..Lanes::default() };
    let storages = plan.topology.storages().into_iter().map(|(_, lane)| lane);
    for lane in building.with_work(storages.collect()) {
        let pulse = Arc::new(Pulse::default());
        // SAFETY: one view per lane; it executes its lane's list in order, waits included, and the
        // plan is valid; lanes run only once all are built (contract of this function).
        let executor = unsafe {
            let view = View::new(Arc::clone(memories));
            StorageLane::new(lane, (plan, control), view, (store, &pulse), direct.as_ref())
        }?;
        lanes.pulses.push(pulse);
        let is_own = plan.topology.lane(lane).worker == worker;
        if is_own {
            how = executor.describe();
        }
        let executor = Box::new(executor);
        let writer = if is_own { Some(trace.writer(lane.index())?) } else { None };
        let mut setup = building.setup(lane, writer, options.wait_timeout);
        if is_own {
            setup.lead = Some(Arc::clone(&lead));
            lanes.own.push(LaneRunner::new(setup, executor));
        } else {
            let runner = LaneRunner::new(setup, executor);
            let shared = (control.clone(), trace.clone());
            lanes.standbys.push(Standby::new(worker, runner, Arc::clone(&lead), shared));
        }
    }
    Ok((lanes, how))
}

/// Builds timed lanes, which only let time pass; they touch no memory except the step table.
///
/// # Errors
/// Returns an error if trace rings are already in use.
pub fn build_timed_lanes(
    building: Building<'_>,
    wait_timeout: Duration,
    durations: &Durations,
) -> Result<Vec<LaneRunner>, WorkerError> {
    let Building { worker, plan, control, trace, .. } = building;
    let own = building.with_work(plan.topology.lanes_of(worker));
    own.map(|lane| {
        let timed = Box::new(Timed::new(durations, lane, plan, control));
        let trace = Some(trace.writer(lane.index())?);
        Ok(LaneRunner::new(building.setup(lane, trace, wait_timeout), timed))
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
    building: Building<'_>,
    lanes: Vec<LaneId>,
    (device, memories): (&Arc<Device>, &Arc<Memories>),
    options: &LaneOptions,
) -> Result<Vec<LaneRunner>, WorkerError> {
    let Building { plan, control, trace, .. } = building;
    building
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
                still: building.still(options.wait_timeout),
                sampler,
            })?;
            let setup = building.setup(lane, None, options.wait_timeout);
            Ok(LaneRunner::new(setup, Box::new(device_lane)))
        })
        .collect()
}
