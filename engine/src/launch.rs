//! Launch of the workers: segments, processes, handshake and loading.

use std::collections::BTreeMap;
use std::os::unix::process::CommandExt;
use std::process::Stdio;
use std::time::Duration;

use grammar::GrammarSet;
use model::config::ModelConfig;
use program::plan::Plan;
use program::topology::{Holds, MemoryId, MemoryKind, Role, SegmentId, Topology, WorkerId};
use protocol::messages::{
    CudaConfig, DraftModelSetup, FromWorker, PrefixStoreConfig, SegmentNodes, StagedCopyConfig,
    TimedDurations, ToWorker, WeightsOrigin, WorkerSetup,
};
use shm::{Channel, Control, Segment, TraceSegment};
use workers::device::{ENVIRONMENT, has_blas};

use super::device_use::{DeviceUse, can_enter_safe_mode, enable_safe_mode, start_timeout};
pub use super::launched_workers::{LaunchError, LoadProgress};
pub(super) use super::launched_workers::{LaunchedWorkers, POLL_INTERVAL, send};
use super::supervisor::{SupervisedWorker, Supervisor, WorkerFailure};
use super::worker_roles::{WorkerRoles, sampler};
use super::worker_startup::WorkerStartup;
use protocol::child_process::this_program;

/// Default bound on a lane's wait for another, far above the duration of the slowest instruction.
const WAIT_TIMEOUT: Duration = Duration::from_secs(600);
/// Additions and multiplications per second of a machine slower than any this has run on.
const SLOW_OPERATIONS_PER_S: f64 = 2e9;
/// Environment variable with another bound, in seconds, for runs of short instructions.
const WAIT_ENV: &str = "TANDEM_WAIT_S";

/// Time for which a thread spins between operations before it sleeps, in µs. The gaps in a decode
/// step are microseconds long, and waking a thread takes longer.
pub const SPIN_US: u32 = 50;

/// Returns the CPUs for compute threads, one of every core first. The list is empty if the
/// machine's topology cannot be read, which only costs speed.
pub fn compute_cpus() -> Vec<u32> {
    let topology = hardware::CpuTopology::read();
    let cpus = topology.map(|topology| topology.cpus(hardware::ThreadPlacement::Spread));
    cpus.unwrap_or_default().into_iter().map(|cpu| cpu as u32).collect()
}

/// Options of a launch in addition to the plan.
#[derive(Debug, Clone)]
pub struct LaunchOptions {
    pub weights: WeightsOrigin,
    pub cpu_threads: u16,
    /// Threads of the emulated device.
    pub gpu_threads: u16,
    pub link_bytes_per_s: Option<u64>,
    /// CPUs for compute threads in order of preference: the cpu worker's first, then the emulated
    /// device's. If empty, threads are not pinned.
    pub cpus: Vec<u32>,
    /// Time for which threads of the cpu worker spin between operations, in µs; 0 unless its pool
    /// has the machine to itself.
    pub spin_us: u32,
    /// If present, workers load, compute and move nothing: instructions only let their durations
    /// pass.
    pub durations: Option<TimedDurations>,
    /// Number of the CUDA device; `None` for the emulated one if the plan uses a device.
    pub cuda: Option<u32>,
    /// Grammars that answers may have to follow; for a serving run only the vocabulary.
    pub grammars: Option<GrammarSet>,
    /// Stagings that storage workers read, in storage order.
    pub staged: Vec<StagedCopyConfig>,
    /// Store of prompt prefixes, for a serving run.
    pub prompt_cache: Option<PrefixStoreConfig>,
    /// NUMA nodes of the host's memory.
    pub memory_nodes: SegmentNodes,
    /// Tokens of the text by which a plan selects positions; empty if it does not select.
    pub select_text: Vec<u32>,
    /// Draft model of a serving run.
    pub draft_model: Option<DraftModelSetup>,
    /// Suppresses messages about operations that take long.
    pub quiet: bool,
}

impl LaunchOptions {
    /// Returns true if workers that failed with `failure` in their first steps are to be started
    /// once more, which then happens in safe mode. Prints a message unless the launch is quiet.
    pub(super) fn enter_safe_mode(&self, failure: &WorkerFailure) -> bool {
        if !can_enter_safe_mode(self.cuda, failure) || !enable_safe_mode() {
            return false;
        }
        if !self.quiet {
            eprintln!(
                "{failure}; restarting the workers in safe mode: one process for the device, and \
                 waits on the host"
            );
        }
        true
    }
}

/// Starts the workers that the plan needs and waits until all are ready. If no second process can
/// use the device, starts them again with one process for all work on it.
///
/// # Errors
/// Memory or processes that could not be created, an interruption, or a failed worker with its own
/// message.
pub(super) fn launch(
    plan: &Plan,
    options: &LaunchOptions,
    progress: &mut LoadProgress<'_>,
    sample: &mut dyn FnMut(&Supervisor),
) -> Result<LaunchedWorkers, LaunchError> {
    let reads_directly = plan.topology.reads_directly();
    let device = options.cuda.map(|index| DeviceUse::detect(index, reads_directly, has_blas()));
    match launch_once(plan, options, device.as_ref(), progress, sample) {
        Err(LaunchError::DeviceMemoryNotShared(reason)) if reads_directly => {
            Err(LaunchError::DirectReadsUnsupported(reason))
        }
        Err(LaunchError::DeviceMemoryNotShared(reason)) => {
            let device = device.map(|device| device.with_one_process(reason));
            launch_once(plan, options, device.as_ref(), progress, sample)
        }
        outcome => outcome,
    }
}

fn launch_once(
    plan: &Plan,
    options: &LaunchOptions,
    device: Option<&DeviceUse>,
    progress: &mut LoadProgress<'_>,
    sample: &mut dyn FnMut(&Supervisor),
) -> Result<LaunchedWorkers, LaunchError> {
    let cuda = device.map(|device| device.cuda);
    let parties = plan.lanes().len() as u32;
    let control = Control::create(parties, plan.table.words() * 4)?;
    let capacity = trace_capacity(plan);
    let trace = TraceSegment::create(plan.topology.lanes.len(), capacity)?;
    let supervisor = Supervisor::new(control.clone());
    let mut launched = LaunchedWorkers {
        control,
        trace,
        supervisor,
        kernel_variants: BTreeMap::new(),
        device: None,
    };
    // The workers keep host memory alive; the coordinator's mappings end with this function.
    let mut segments = Vec::new();
    for (segment, size_bytes) in host_segments(plan) {
        if mapping_workers(&plan.topology, segment.memory).count() > 1 {
            segments.push((segment, Segment::create(segment_name(segment), size_bytes as usize)?));
        }
    }
    let roles = WorkerRoles::from_topology(&plan.topology, cuda);
    for id in &roles.started {
        let mut worker = spawn(*id, &plan.topology)?;
        let is_mapped = |segment: &SegmentId| {
            let is_own = plan.topology.maps(*id, segment.memory);
            // The worker that copies maps everything that is copied.
            is_own
                || (roles.copier == Some(*id)
                    && roles.is_transfer_memory(&plan.topology, segment.memory))
        };
        let mapped: Vec<_> = segments.iter().filter(|(segment, _)| is_mapped(segment)).collect();
        let setup = worker_setup(*id, plan, options, cuda, &launched, &mapped, capacity);
        send_setup(&mut worker, setup, &launched, &mapped)?;
        launched.supervisor.workers.push(worker);
    }
    drop(segments);
    let is_verbose = !options.quiet;
    let mut startup = WorkerStartup { plan, launched: &mut launched, progress, sample, is_verbose };
    startup.load(&roles, cuda)?;
    for id in roles.started {
        let (mut variant, _) = startup.receive(id, |message| match message {
            FromWorker::Ready { kernel_variant } => Some(kernel_variant),
            _ => None,
        })?;
        if let (true, Some(device)) = (Some(id) == roles.gpu, device) {
            variant.push_str(&device.describe());
            startup.launched.device = Some(format!("cuda:{} {variant}", device.cuda.index));
        }
        startup.launched.kernel_variants.insert(id, variant);
    }
    Ok(launched)
}

/// Returns the workers that map a memory.
fn mapping_workers(topology: &Topology, memory: MemoryId) -> impl Iterator<Item = WorkerId> + '_ {
    topology.worker_ids().filter(move |id| topology.maps(*id, memory))
}

/// Returns the segments in host memory with their sizes in bytes. A memory that only one worker
/// uses is mapped by that worker, in huge pages if possible; all others are shared.
fn host_segments(plan: &Plan) -> Vec<(SegmentId, u64)> {
    let topology = &plan.topology;
    let of_host =
        |segment: &SegmentId| topology.memory_kind(segment.memory) == Some(MemoryKind::Dram);
    let segments = topology.segments().into_iter().filter(of_host);
    let is_used = |segment: &SegmentId| {
        topology.slow_tier_index(segment.memory).is_none() || plan.segment_bytes(*segment) > 0
    };
    let segments = segments.filter(is_used);
    segments.map(|segment| (segment, plan.segment_bytes(segment).max(4096))).collect()
}

/// Returns the host segments that only this worker uses, with their sizes in bytes.
fn private_segments(plan: &Plan, id: WorkerId) -> Vec<(SegmentId, u64)> {
    let mut segments = host_segments(plan);
    segments.retain(|(segment, _)| mapping_workers(&plan.topology, segment.memory).eq([id]));
    segments
}

/// Number of records per lane that a trace ring keeps of a short group in any case: steps of a tiny
/// model end faster than the rings are drained.
const TRACE_RECORDS_MIN: usize = 1 << 16;

/// Returns the number of records per trace ring, enough for the instructions of a lane between two
/// drains: all of prefill, or several decode steps.
fn trace_capacity(plan: &Plan) -> usize {
    let longest = |program: &program::ir::Program| {
        program.lanes.iter().map(|lane| lane.instructions.len()).max().unwrap_or(0)
    };
    let mut of_programs = plan.programs.iter().map(longest);
    let prefill = of_programs.clone().max().unwrap_or(0);
    let step = of_programs.next_back().unwrap_or(0);
    let group = prefill + step * plan.shape.max_new as usize;
    let records = prefill.max(step * 8).max(group.min(TRACE_RECORDS_MIN)) + 1024;
    records.next_power_of_two().min(1 << 20)
}

fn segment_name(segment: SegmentId) -> &'static str {
    match segment.holds {
        Holds::Weights => "tandem-weights",
        Holds::Kv => "tandem-kv",
        Holds::Activations => "tandem-activations",
        Holds::Arena => "tandem-device",
        Holds::Table => "tandem-control",
    }
}

fn spawn(id: WorkerId, topology: &Topology) -> Result<SupervisedWorker, LaunchError> {
    let worker = &topology.worker(id).name;
    let failed = |source| LaunchError::Spawn { worker: worker.clone(), source };
    let channel_failed = |source| LaunchError::Channel { worker: worker.clone(), source };
    let (ours, theirs) = Channel::pair().map_err(channel_failed)?;
    let mut command = this_program();
    let number = theirs.hand_to(&mut command);
    command
        .arg0(format!("tandem {worker}"))
        .args(["worker", worker, &number.to_string()])
        .envs(ENVIRONMENT)
        .stdin(Stdio::null())
        .stdout(Stdio::null())
        // A terminal's Ctrl-C is for the coordinator, which then ends the workers in order.
        .process_group(0);
    let child = command.spawn().map_err(failed)?;
    Ok(SupervisedWorker::new(id, worker.clone(), child, ours))
}

fn worker_setup(
    worker: WorkerId,
    plan: &Plan,
    options: &LaunchOptions,
    cuda: Option<CudaConfig>,
    launched: &LaunchedWorkers,
    mapped: &[&(SegmentId, Segment)],
    capacity: usize,
) -> WorkerSetup {
    let memories =
        mapped.iter().map(|(memory, segment)| (*memory, segment.size_bytes() as u64)).collect();
    let role = plan.topology.worker(worker).role;
    WorkerSetup {
        worker,
        plan: plan.clone(),
        memories,
        private: private_segments(plan, worker),
        nodes: options.memory_nodes.clone(),
        control_bytes: launched.control.segment().size_bytes() as u64,
        trace_capacity: capacity as u32,
        threads: match role {
            Role::Cpu => options.cpu_threads,
            Role::Gpu => options.gpu_threads,
            Role::Transfer | Role::Storage => 1,
        },
        cpus: cpus(role, options),
        spin_us: if role == Role::Cpu { options.spin_us } else { 0 },
        weights: options.weights.clone(),
        link_bytes_per_s: options.link_bytes_per_s,
        wait_timeout_ms: wait_timeout(plan).as_millis() as u64,
        start_timeout_ms: cuda.and_then(start_timeout).map(|bound| bound.as_millis() as u64),
        durations: options.durations.clone(),
        cuda,
        // Workers that only copy sample no tokens.
        grammars: options.grammars.clone().filter(|_| matches!(role, Role::Cpu | Role::Gpu)),
        select_text: options.select_text.clone(),
        staged: staged_for(&plan.topology, worker, options),
        prompts: options.prompt_cache.clone().filter(|_| role == Role::Cpu),
        draft_model: options.draft_model.clone().filter(|_| sampler(plan) == Some(worker)),
    }
}

/// Returns the staging of a storage worker; `None` for any other worker.
fn staged_for(
    topology: &Topology,
    worker: WorkerId,
    options: &LaunchOptions,
) -> Option<StagedCopyConfig> {
    let storages = topology.storages();
    let index = storages.iter().position(|(storage, _)| topology.maps(worker, *storage))?;
    options.staged.get(index).cloned()
}

/// Returns the time for which all lanes may make no progress: the configured bound if there is one,
/// otherwise [`WAIT_TIMEOUT`] or the duration of the longest instruction on a slow machine,
/// whichever is longer.
fn wait_timeout(plan: &Plan) -> Duration {
    let configured = std::env::var(WAIT_ENV).ok().and_then(|text| text.parse().ok());
    let longest = || Duration::from_secs_f64(longest_operations(plan) / SLOW_OPERATIONS_PER_S);
    configured
        .filter(|seconds| *seconds > 0)
        .map_or_else(|| WAIT_TIMEOUT.max(longest()), Duration::from_secs)
}

/// Returns the number of additions and multiplications of the longest instruction: a linear, or
/// attention over the longest context.
fn longest_operations(plan: &Plan) -> f64 {
    let (config, shape) = (&plan.config, &plan.shape);
    let rows = shape.stream_rows().max(usize::from(shape.batch_size)) as f64;
    let q_size = config.max_of_layers(ModelConfig::q_size);
    let inputs = config.hidden_size.max(q_size) as f64;
    let linear = 2.0 * rows * inputs * config.max_ffn_size() as f64;
    let sampled = f64::from(shape.stream_sequences().max(shape.batch_size));
    let head = 2.0 * sampled * inputs * config.vocab_size as f64;
    let attention = 4.0 * rows * f64::from(shape.max_context) * q_size as f64;
    linear.max(head).max(attention)
}

/// Returns the CPUs of a worker's compute threads; none if there are not enough for all workers.
fn cpus(role: Role, options: &LaunchOptions) -> Vec<u32> {
    let (cpu, gpu) = (usize::from(options.cpu_threads), usize::from(options.gpu_threads));
    if options.cpus.len() < cpu + gpu {
        return Vec::new();
    }
    match role {
        Role::Cpu => options.cpus[..cpu].to_vec(),
        Role::Gpu => options.cpus[cpu..cpu + gpu].to_vec(),
        Role::Transfer | Role::Storage => Vec::new(),
    }
}

fn send_setup(
    worker: &mut SupervisedWorker,
    setup: WorkerSetup,
    launched: &LaunchedWorkers,
    mapped: &[&(SegmentId, Segment)],
) -> Result<(), LaunchError> {
    let mut descriptors = vec![launched.control.segment().fd(), launched.trace.segment().fd()];
    descriptors.extend(mapped.iter().map(|(_, segment)| segment.fd()));
    send(worker, &ToWorker::Setup(Box::new(setup)), &descriptors)
}
