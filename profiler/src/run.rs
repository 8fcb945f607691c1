//! Profiling: experiment after experiment, each within its share of the time.

use std::collections::{HashMap, HashSet};
use std::time::Instant;

use model::ops::Op;
use program::map::Phase;
use program::plan::Plan;
use program::topology::LaneId;

use crate::error::ProfileError;
use crate::experiment::{self, attention, concurrent, linear, prefill, sweep};
use crate::fingerprint::Fingerprint;
use crate::key::{ProfiledWork, WorkKey};
use crate::machine::MachineIdentity;
use crate::profile::{Overhead, Profile, ProfileMeasurements, Sweep, SweepPoint, WorkMeasurement};
use crate::recorder::Recorder;
use crate::repeat::repeat;
use crate::request::ProfilingRequest;
use crate::runner::Runner;
use crate::stat::Stat;

/// Progress callback: number of parts done, their total, and a description of the current
/// measurement.
pub type ProfileProgress<'a> = dyn FnMut(u64, u64, &str) + 'a;

/// Number of parts that progress counts.
const PROGRESS_PARTS: u64 = 1000;

/// Next measurement, with its share of the time.
enum ProfileTask {
    Linear,
    Attention { kv: usize, of: u16 },
    Prefill { kv: usize, of: u16 },
    Concurrent { with_device: bool },
    Sweep { threads: u16 },
}

impl ProfileTask {
    /// Returns the weight in the budget, relative to the others.
    fn weight(&self) -> f64 {
        match self {
            ProfileTask::Linear => 8.0,
            ProfileTask::Attention { .. } => 1.5,
            ProfileTask::Prefill { .. } => 0.7,
            ProfileTask::Concurrent { with_device: true } => 3.0,
            ProfileTask::Concurrent { with_device: false } => 0.1,
            ProfileTask::Sweep { .. } => 0.6,
        }
    }
}

fn tasks(request: &ProfilingRequest) -> Vec<ProfileTask> {
    let mut splits = vec![1];
    splits.extend(request.chunks.iter().copied().filter(|chunks| *chunks > 1));
    splits.sort_unstable();
    splits.dedup();
    let of_cache: Vec<(usize, u16)> = (0..request.kv_formats.len())
        .flat_map(|kv| splits.iter().map(move |of| (kv, *of)))
        .collect();
    let mut tasks = vec![ProfileTask::Linear];
    tasks.extend(of_cache.iter().map(|(kv, of)| ProfileTask::Attention { kv: *kv, of: *of }));
    tasks.extend(of_cache.iter().map(|(kv, of)| ProfileTask::Prefill { kv: *kv, of: *of }));
    tasks.push(ProfileTask::Concurrent { with_device: request.device.is_some() });
    let counts = sweep::counts(request.sweep_threads_max).into_iter();
    let others = counts.filter(|threads| *threads != request.threads.cpu);
    tasks.extend(others.map(|threads| ProfileTask::Sweep { threads }));
    tasks
}

/// Measures everything that `request` asks for.
///
/// # Errors
/// A runner that failed or was interrupted.
pub fn profile(
    request: &ProfilingRequest,
    machine: &MachineIdentity,
    runner: &mut dyn Runner,
    progress: &mut ProfileProgress<'_>,
) -> Result<Profile, ProfileError> {
    if request.batch_size == 0 || request.micro_sequences == 0 || request.max_prompt == 0 {
        return Err(ProfileError::Empty);
    }
    let begun = Instant::now();
    let cache_bytes = machine.last_level_cache_bytes;
    let layers = experiment::layer_copies(request, request.layer_bytes(), cache_bytes);
    let caches = experiment::layer_copies(request, request.kv_bytes(), cache_bytes);
    let tasks = tasks(request);
    let mut recorder = Recorder::default();
    let mut curves: Vec<(u16, Recorder, Plan)> = Vec::new();
    let mut skipped = Vec::new();
    let whole: f64 = tasks.iter().map(ProfileTask::weight).sum();
    let mut left = whole;
    for task in &tasks {
        let mut fresh = Recorder::default();
        let experiment = match task {
            ProfileTask::Linear => linear::linear(request, layers),
            ProfileTask::Attention { kv, of } => {
                attention::attention(request, request.kv_formats[*kv], *of, caches)
            }
            ProfileTask::Prefill { kv, of } => {
                prefill::prefill(request, request.kv_formats[*kv], *of)
            }
            ProfileTask::Concurrent { .. } => {
                concurrent::concurrent_experiment(request, layers, &recorder)
            }
            ProfileTask::Sweep { threads } => sweep::sweep(request, layers, *threads),
        };
        let remaining = request.budget.saturating_sub(begun.elapsed());
        let share = remaining.mul_f64((task.weight() / left).min(1.0));
        let into = if let ProfileTask::Sweep { .. } = task { &mut fresh } else { &mut recorder };
        let mut progress = |done: f64, what: &str| {
            let done = (whole - left + done * task.weight()) / whole;
            progress((done * PROGRESS_PARTS as f64) as u64, PROGRESS_PARTS, what);
        };
        skipped.extend(repeat(&experiment, request, runner, into, share, &mut progress)?);
        left -= task.weight();
        if let ProfileTask::Sweep { threads } = task {
            curves.push((*threads, fresh, experiment.plan));
        }
    }
    progress(PROGRESS_PARTS, PROGRESS_PARTS, "done");
    recorder.pool_equals(&request.config);
    let sweep = build_sweeps(request, &recorder, &curves);
    let measurements = ProfileMeasurements {
        threads: request.threads,
        best_cpu_threads: best_threads(request, &recorder, &sweep),
        work: sorted_measurements(&recorder),
        sweep,
        overhead: Overhead {
            wake: Stat::from_samples(&recorder.wake_ns),
            empty_span: Stat::from_samples(&recorder.empty_ns),
            between_spans: Stat::from_samples(&recorder.between_ns),
        },
        skipped,
        rehearsals: Vec::new(),
        finished: Vec::new(),
        took_ms: begun.elapsed().as_millis() as u64,
    };
    Ok(Profile { fingerprint: Fingerprint::new(request, machine), measurements })
}

fn sorted_measurements(recorder: &Recorder) -> Vec<WorkMeasurement> {
    let mut work: Vec<WorkMeasurement> = recorder
        .stats()
        .map(|((key, point, concurrent), time, disputed)| {
            let concurrent = concurrent.iter().collect();
            WorkMeasurement { key, point, concurrent, time, disputed }
        })
        .collect();
    work.sort_by_cached_key(|m| {
        (m.key.lane, m.key.phase, format!("{:?}", m.key.work), m.concurrent.clone(), m.point)
    });
    work
}

/// Returns the curves of the sweep. Those for the number of threads of all other experiments were
/// measured by these.
fn build_sweeps(
    request: &ProfilingRequest,
    main_recorder: &Recorder,
    curves: &[(u16, Recorder, Plan)],
) -> Vec<Sweep> {
    let Some((_, _, plan)) = curves.first() else { return Vec::new() };
    let recorders = curves.iter().map(|(threads, recorder, _)| (*threads, recorder));
    let mut recorders: Vec<(u16, &Recorder)> =
        recorders.chain(std::iter::once((request.threads.cpu, main_recorder))).collect();
    recorders.sort_by_key(|(threads, _)| *threads);
    let keys = plan.decode().lanes.iter().flat_map(|list| {
        let key =
            |instruction| WorkKey::from_instruction(plan, Phase::Decode, list.lane, instruction);
        list.instructions.iter().filter_map(key)
    });
    let keys: Vec<WorkKey> = keys.collect();
    let of_class = |(class, op): (&str, Op)| {
        let of_op = |key: &&WorkKey| match key.work {
            ProfiledWork::Compute { op: other, .. } => other == op,
            _ => false,
        };
        // With several formats of the weights, the first one counts.
        let key = keys.iter().find(of_op)?;
        let point = key.point(Phase::Decode, request.workload_extent());
        let curve: Vec<SweepPoint> = recorders
            .iter()
            .filter_map(|(threads, recorder)| {
                Some(SweepPoint { threads: *threads, time: recorder.alone(key, point)? })
            })
            .collect();
        let best = curve.iter().min_by(|a, b| a.time.median_ns.total_cmp(&b.time.median_ns))?;
        Some(Sweep {
            class: class.to_owned(),
            op: op.name(request.config.family).to_owned(),
            best_threads: best.threads,
            curve,
        })
    };
    let classes = ["linear", "attention", "small"].into_iter();
    classes.zip(sweep::representatives(request)).filter_map(of_class).collect()
}

/// Minimum fraction of a layer's time that fewer threads must save to be preferred: they were
/// measured at another time.
const SAVED_SHARE_MIN: f64 = 0.03;

/// Returns the number of threads with which the CPU's operations of a layer take the least time in
/// decode, scaling the duration of each class by its curve.
fn best_threads(request: &ProfilingRequest, main_recorder: &Recorder, sweeps: &[Sweep]) -> u16 {
    let own = request.threads.cpu;
    let keys = main_recorder
        .stats()
        .map(|((key, ..), ..)| key)
        .filter(|key| key.lane == LaneId::CPU_COMPUTE && key.phase != Some(Phase::Prefill));
    let mut classes_ns: HashMap<&str, f64> = HashMap::new();
    for key in keys.collect::<HashSet<_>>() {
        let ProfiledWork::Compute { op, chunk: None, .. } = key.work else { continue };
        let Some(class) = sweep::class(op, &request.config) else { continue };
        let point = key.point(Phase::Decode, request.workload_extent());
        let time = main_recorder.alone(&key, point);
        *classes_ns.entry(class).or_default() += time.map_or(0.0, |time| time.median_ns);
    }
    let all_ns = |threads: u16| -> Option<f64> {
        let of_class = |sweep: &Sweep| {
            let at = |threads| sweep.curve.iter().find(|point| point.threads == threads);
            let ratio = at(threads)?.time.median_ns / at(own)?.time.median_ns;
            Some(ratio * classes_ns.get(sweep.class.as_str()).copied().unwrap_or(0.0))
        };
        sweeps.iter().map(of_class).sum()
    };
    let points = sweeps.first().into_iter().flat_map(|sweep| &sweep.curve);
    let times = points.filter_map(|point| Some((all_ns(point.threads)?, point.threads)));
    let best = times.min_by(|a, b| a.0.total_cmp(&b.0));
    match (best, all_ns(own)) {
        (Some((ns, threads)), Some(own_ns)) if ns <= (1.0 - SAVED_SHARE_MIN) * own_ns => threads,
        _ => own,
    }
}
