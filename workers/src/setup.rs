//! From a `Setup` to a worker with all its lanes built: what processes and in-process tests share.

use std::sync::Arc;
use std::time::Duration;

use grammar::Grammars;
use kernels::{PoolOptions, Variant};
use model::ops::Op;
use program::ir::{Instruction, Lane};
use program::plan::Plan;
use shm::{Control, TraceSegment};

use crate::device::{Device, DeviceLane, DeviceLaneSetup};
use crate::error::WorkerError;
use crate::execute::{ComputeState, Executor};
use crate::lane::{LaneRunner, LaneSetup};
use crate::memory::{Memories, View};
use crate::protocol::Role;
use crate::timed::{Durations, Timed};

/// Settings of the lanes of one worker.
#[derive(Debug, Clone)]
pub struct LaneOptions {
    pub variant: Variant,
    /// Compute threads, of each lane that computes.
    pub pool: PoolOptions,
    pub link_bytes_per_s: Option<u64>,
    pub wait_timeout: Duration,
    /// What answers may have to follow.
    pub grammars: Option<Arc<Grammars>>,
}

impl LaneOptions {
    /// A lane that runs operations.
    pub(crate) fn compute_state(
        &self,
        plan: &Plan,
        lane: Lane,
    ) -> Result<ComputeState, WorkerError> {
        let is_sample = |instruction: &Instruction| match instruction {
            Instruction::Compute(compute) => compute.op == Op::Sample,
            _ => false,
        };
        let list = plan.prefill.lane(lane);
        let samples = list.is_some_and(|list| list.instructions.iter().any(is_sample));
        let grammars = self.grammars.as_ref().filter(|_| samples);
        ComputeState::new(plan, self.variant, &self.pool, grammars)
    }
}

/// Builds the lanes of `role` that have work in `plan`. All that they will ever allocate is
/// allocated here.
///
/// # Errors
/// No threads, or trace rings that are taken.
///
/// # Safety
/// The plan is valid, every lane is built once in all processes, and the lanes run only after the
/// weights are in place.
pub unsafe fn build_lanes(
    role: Role,
    plan: &Arc<Plan>,
    memories: &Arc<Memories>,
    control: &Control,
    trace: &TraceSegment,
    options: &LaneOptions,
) -> Result<Vec<LaneRunner>, WorkerError> {
    let with_work = plan.lanes();
    let mut lanes = Vec::new();
    for lane in role.lanes().iter().copied().filter(|lane| with_work.contains(lane)) {
        let compute = match lane {
            Lane::CpuCompute | Lane::GpuCompute => Some(options.compute_state(plan, lane)?),
            _ => None,
        };
        // SAFETY: one view per lane; the runner executes its lane's list in order, waits included,
        // and the plan is valid (contract of this function).
        let view = unsafe { View::new(Arc::clone(memories)) };
        let executor =
            Executor::new(lane, Arc::clone(plan), view, control.clone(), options.variant, compute);
        let setup = LaneSetup {
            lane,
            role,
            plan: Arc::clone(plan),
            control: control.clone(),
            trace: Some(trace.writer(lane.index())?),
            wait_timeout: options.wait_timeout,
            link_bytes_per_s: options.link_bytes_per_s,
        };
        lanes.push(LaneRunner::new(setup, executor));
    }
    Ok(lanes)
}

/// Builds the same lanes to last as long as they are told; they touch no memory but the step table.
///
/// # Errors
/// Trace rings that are taken.
pub fn build_timed_lanes(
    role: Role,
    plan: &Arc<Plan>,
    control: &Control,
    trace: &TraceSegment,
    wait_timeout: Duration,
    durations: &Durations,
) -> Result<Vec<LaneRunner>, WorkerError> {
    let with_work = plan.lanes();
    let own = role.lanes().iter().copied().filter(|lane| with_work.contains(lane));
    own.map(|lane| {
        let setup = LaneSetup {
            lane,
            role,
            plan: Arc::clone(plan),
            control: control.clone(),
            trace: Some(trace.writer(lane.index())?),
            wait_timeout,
            link_bytes_per_s: None,
        };
        Ok(LaneRunner::timed(setup, Timed::new(durations, lane, plan, control)))
    })
    .collect()
}

/// Builds `lanes` of `role` that have work in `plan`, on a device. `memories` are the host segments
/// that this worker maps.
///
/// # Errors
/// The driver's refusal, no threads, or trace rings that are taken.
///
/// # Safety
/// As [`build_lanes`].
pub unsafe fn build_device_lanes(
    (role, lanes): (Role, &[Lane]),
    plan: &Arc<Plan>,
    (device, memories): (&Arc<Device>, &Arc<Memories>),
    control: &Control,
    trace: &TraceSegment,
    options: &LaneOptions,
) -> Result<Vec<LaneRunner>, WorkerError> {
    let with_work = plan.lanes();
    let own = lanes.iter().copied().filter(|lane| with_work.contains(lane));
    own.map(|lane| {
        let sampler = match lane {
            Lane::GpuCompute => Some(options.compute_state(plan, lane)?),
            _ => None,
        };
        let device_lane = DeviceLane::new(DeviceLaneSetup {
            lane,
            plan: Arc::clone(plan),
            device: Arc::clone(device),
            // SAFETY: one view per lane; it executes its list in order, waits included, and the plan
            // is valid (contract of this function).
            view: unsafe { View::new(Arc::clone(memories)) },
            control: control.clone(),
            trace: trace.writer(lane.index())?,
            wait_timeout: options.wait_timeout,
            sampler,
        })?;
        let setup = LaneSetup {
            lane,
            role,
            plan: Arc::clone(plan),
            control: control.clone(),
            trace: None,
            wait_timeout: options.wait_timeout,
            link_bytes_per_s: None,
        };
        Ok(LaneRunner::on_device(setup, device_lane))
    })
    .collect()
}
