//! Profiling: experiment after experiment, each within its share of the time.

use std::collections::{HashMap, HashSet};
use std::time::Instant;

use model::ops::Op;
use program::map::Phase;
use program::plan::Plan;
use program::topology::LaneId;

use crate::error::ProfileError;
use crate::experiment::{self, attention, beside, linear, prefill, sweep};
use crate::fingerprint::Fingerprint;
use crate::key::{Key, Work};
use crate::machine::Machine;
use crate::profile::{Measured, Measurements, Overhead, Profile, Sweep, SweepPoint};
use crate::recorder::Recorder;
use crate::repeat::repeat;
use crate::request::Request;
use crate::runner::Runner;
use crate::stat::Stat;

/// Progress callback: number of parts done, their total, and a description of the current
/// measurement.
pub type Progress<'a> = dyn FnMut(u64, u64, &str) + 'a;

/// Number of parts that progress counts.
const PARTS: u64 = 1000;

/// Next measurement, with its share of the time.
enum Task {
    Linear,
    Attention { kv: usize, of: u16 },
    Prefill { kv: usize, of: u16 },
    Beside { with_device: bool },
    Sweep { threads: u16 },
}

impl Task {
    /// Returns the weight in the budget, relative to the others.
    fn weight(&self) -> f64 {
        match self {
            Task::Linear => 8.0,
            Task::Attention { .. } => 1.5,
            Task::Prefill { .. } => 0.7,
            Task::Beside { with_device: true } => 3.0,
            Task::Beside { with_device: false } => 0.1,
            Task::Sweep { .. } => 0.6,
        }
    }
}

fn tasks(request: &Request) -> Vec<Task> {
    let mut splits = vec![1];
    splits.extend(request.chunks.iter().copied().filter(|chunks| *chunks > 1));
    splits.sort_unstable();
    splits.dedup();
    let of_cache: Vec<(usize, u16)> = (0..request.kv_formats.len())
        .flat_map(|kv| splits.iter().map(move |of| (kv, *of)))
        .collect();
    let mut tasks = vec![Task::Linear];
    tasks.extend(of_cache.iter().map(|(kv, of)| Task::Attention { kv: *kv, of: *of }));
    tasks.extend(of_cache.iter().map(|(kv, of)| Task::Prefill { kv: *kv, of: *of }));
    tasks.push(Task::Beside { with_device: request.device.is_some() });
    let counts = sweep::counts(request.sweep_threads_max).into_iter();
    let others = counts.filter(|threads| *threads != request.threads.cpu);
    tasks.extend(others.map(|threads| Task::Sweep { threads }));
    tasks
}

/// Measures everything that `request` asks for.
///
/// # Errors
/// A runner that failed or was interrupted.
pub fn profile(
    request: &Request,
    machine: &Machine,
    runner: &mut dyn Runner,
    progress: &mut Progress<'_>,
) -> Result<Profile, ProfileError> {
    if request.batch_size == 0 || request.micro_sequences == 0 || request.max_prompt == 0 {
        return Err(ProfileError::Empty);
    }
    let begun = Instant::now();
    let cache_bytes = machine.last_level_cache_bytes;
    let layers = experiment::copies(request, request.layer_bytes(), cache_bytes);
    let caches = experiment::copies(request, request.kv_bytes(), cache_bytes);
    let tasks = tasks(request);
    let mut recorder = Recorder::default();
    let mut curves: Vec<(u16, Recorder, Plan)> = Vec::new();
    let mut skipped = Vec::new();
    let whole: f64 = tasks.iter().map(Task::weight).sum();
    let mut left = whole;
    for task in &tasks {
        let mut fresh = Recorder::default();
        let experiment = match task {
            Task::Linear => linear::linear(request, layers),
            Task::Attention { kv, of } => {
                attention::attention(request, request.kv_formats[*kv], *of, caches)
            }
            Task::Prefill { kv, of } => prefill::prefill(request, request.kv_formats[*kv], *of),
            Task::Beside { .. } => beside::beside(request, layers, &recorder),
            Task::Sweep { threads } => sweep::sweep(request, layers, *threads),
        };
        let remaining = request.budget.saturating_sub(begun.elapsed());
        let share = remaining.mul_f64((task.weight() / left).min(1.0));
        let into = if let Task::Sweep { .. } = task { &mut fresh } else { &mut recorder };
        let mut progress = |done: f64, what: &str| {
            let done = (whole - left + done * task.weight()) / whole;
            progress((done * PARTS as f64) as u64, PARTS, what);
        };
        skipped.extend(repeat(&experiment, request, runner, into, share, &mut progress)?);
        left -= task.weight();
        if let Task::Sweep { threads } = task {
            curves.push((*threads, fresh, experiment.plan));
        }
    }
    progress(PARTS, PARTS, "done");
    recorder.pool_equals(&request.config);
    let sweep = sweeps(request, &recorder, &curves);
    let measurements = Measurements {
        threads: request.threads,
        best_cpu_threads: best_threads(request, &recorder, &sweep),
        work: sorted(&recorder),
        sweep,
        overhead: Overhead {
            wake: Stat::of(&recorder.wake_ns),
            empty_span: Stat::of(&recorder.empty_ns),
            between_spans: Stat::of(&recorder.between_ns),
        },
        skipped,
        rehearsals: Vec::new(),
        finished: Vec::new(),
        took_ms: begun.elapsed().as_millis() as u64,
    };
    Ok(Profile { fingerprint: Fingerprint::of(request, machine), measurements })
}

fn sorted(recorder: &Recorder) -> Vec<Measured> {
    let mut work: Vec<Measured> = recorder
        .stats()
        .map(|((key, point, beside), time, disputed)| {
            let beside = beside.iter().collect();
            Measured { key, point, beside, time, disputed }
        })
        .collect();
    work.sort_by_cached_key(|m| {
        (m.key.lane, m.key.phase, format!("{:?}", m.key.work), m.beside.clone(), m.point)
    });
    work
}

/// Returns the curves of the sweep. Those for the number of threads of all other experiments were
/// measured by these.
fn sweeps(request: &Request, main: &Recorder, curves: &[(u16, Recorder, Plan)]) -> Vec<Sweep> {
    let Some((_, _, plan)) = curves.first() else { return Vec::new() };
    let recorders = curves.iter().map(|(threads, recorder, _)| (*threads, recorder));
    let mut recorders: Vec<(u16, &Recorder)> =
        recorders.chain(std::iter::once((request.threads.cpu, main))).collect();
    recorders.sort_by_key(|(threads, _)| *threads);
    let keys = plan.decode().lanes.iter().flat_map(|list| {
        let key = |instruction| Key::of(plan, Phase::Decode, list.lane, instruction);
        list.instructions.iter().filter_map(key)
    });
    let keys: Vec<Key> = keys.collect();
    let of_class = |(class, op): (&str, Op)| {
        let of_op = |key: &&Key| matches!(key.work, Work::Compute { op: other, .. } if other == op);
        // With several formats of the weights, the first one counts.
        let key = keys.iter().find(of_op)?;
        let point = key.point(Phase::Decode, request.main());
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
const SAVED_MIN: f64 = 0.03;

/// Returns the number of threads with which the CPU's operations of a layer take the least time in
/// decode, scaling the duration of each class by its curve.
fn best_threads(request: &Request, main: &Recorder, sweeps: &[Sweep]) -> u16 {
    let own = request.threads.cpu;
    let keys = main
        .stats()
        .map(|((key, ..), ..)| key)
        .filter(|key| key.lane == LaneId::CPU_COMPUTE && key.phase != Some(Phase::Prefill));
    let mut classes_ns: HashMap<&str, f64> = HashMap::new();
    for key in keys.collect::<HashSet<_>>() {
        let Work::Compute { op, chunk: None, .. } = key.work else { continue };
        let Some(class) = sweep::class(op, &request.config) else { continue };
        let point = key.point(Phase::Decode, request.main());
        let time = main.alone(&key, point);
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
        (Some((ns, threads)), Some(own_ns)) if ns <= (1.0 - SAVED_MIN) * own_ns => threads,
        _ => own,
    }
}
