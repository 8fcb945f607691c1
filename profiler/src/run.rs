//! Profiling: experiment after experiment, each within its share of the time.

use std::time::{Duration, Instant};

use model::ops::Op;
use program::map::Phase;
use program::plan::Plan;
use program::validate::{ValidateError, validate_program};
use workers::shared::group::{Placed, Request as Sequence};

use crate::experiment::{self, Experiment, STEPS_MAX, attention, beside, linear, prefill, sweep};
use crate::fingerprint::Fingerprint;
use crate::key::{Extent, Key, Work};
use crate::machine::Machine;
use crate::profile::{Measured, Measurements, Overhead, Profile, Sweep, SweepPoint};
use crate::recorder::{Recorder, Trace};
use crate::request::Request;
use crate::runner::{Runner, RunnerError, Session};
use crate::stat::Stat;

/// Repetitions that are always made.
pub const REPETITIONS_MIN: u32 = 3;

/// Why there is no profile.
#[derive(Debug, thiserror::Error)]
pub enum ProfileError {
    #[error(transparent)]
    Runner(#[from] RunnerError),
    #[error("A plan of the profiler is not safe to run; this is a defect, please report it: {0}")]
    Plan(#[from] ValidateError),
    #[error("The workload has no sequences or no positions; there is nothing to profile.")]
    Empty,
}

/// Told of progress: done, of how many, and what is being measured.
pub type Progress<'a> = dyn FnMut(u64, u64, &str) + 'a;

/// Parts of the whole that progress counts.
const PARTS: u64 = 1000;

/// What is measured next, and its share of the time.
enum Task {
    Linear,
    Attention { kv: usize, of: u16 },
    Prefill { kv: usize, of: u16 },
    Beside,
    Sweep { threads: u16 },
}

impl Task {
    /// Shares of the budget, relative to each other.
    fn weight(&self) -> f64 {
        match self {
            Task::Linear => 8.0,
            Task::Attention { .. } => 1.5,
            Task::Prefill { .. } => 0.7,
            Task::Beside => 3.0,
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
    tasks.push(Task::Beside);
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
            Task::Beside => beside::beside(request, layers, &recorder),
            Task::Sweep { threads } => sweep::sweep(request, layers, *threads),
        };
        let remaining = request.budget.saturating_sub(begun.elapsed());
        let share = remaining.mul_f64((task.weight() / left).min(1.0));
        let into = if let Task::Sweep { .. } = task { &mut fresh } else { &mut recorder };
        let mut progress = |done: f64, what: &str| {
            let done = (whole - left + done * task.weight()) / whole;
            progress((done * PARTS as f64) as u64, PARTS, what);
        };
        run(&experiment, runner, into, share, &mut progress)?;
        left -= task.weight();
        if let Task::Sweep { threads } = task {
            curves.push((*threads, fresh, experiment.plan));
        }
    }
    progress(PARTS, PARTS, "done");
    let measurements = Measurements {
        threads: request.threads,
        work: sorted(&recorder),
        sweep: sweeps(request, &recorder, &curves),
        overhead: Overhead {
            wake: Stat::of(&recorder.wake_ns),
            empty_span: Stat::of(&recorder.empty_ns),
            between_spans: Stat::of(&recorder.between_ns),
        },
        rehearsals: Vec::new(),
        took_ms: begun.elapsed().as_millis() as u64,
    };
    Ok(Profile { fingerprint: Fingerprint::of(request, machine), measurements })
}

/// Runs an experiment over its extents: the first one always, the others while its share of the
/// time lasts, and more repetitions of all of them with what is left.
fn run(
    experiment: &Experiment,
    runner: &mut dyn Runner,
    recorder: &mut Recorder,
    share: Duration,
    progress: &mut dyn FnMut(f64, &str),
) -> Result<(), ProfileError> {
    let begun = Instant::now();
    progress(0.0, experiment.name);
    let plan = &experiment.plan;
    validate_program(plan.prefill(), &plan.buffers, &plan.topology)?;
    validate_program(plan.decode(), &plan.buffers, &plan.topology)?;
    let session = runner.start(plan.clone(), experiment.threads)?;
    let mut bench = Repeater { session, experiment, recorder };
    let count = experiment.extents.len();
    let mut measured: Vec<(Extent, Duration)> = Vec::new();
    for (index, extent) in experiment.extents.iter().enumerate() {
        let expected = expected(&measured, *extent) * (1 + REPETITIONS_MIN);
        if index > 0 && expected > share.saturating_sub(begun.elapsed()) {
            continue;
        }
        measured.push((*extent, bench.first(*extent)?));
        progress((index + 1) as f64 / count as f64, experiment.name);
    }
    for (index, (extent, once)) in measured.iter().enumerate() {
        let left = (measured.len() - index) as f64;
        let spare_s = share.saturating_sub(begun.elapsed()).as_secs_f64() / left;
        let more = (spare_s / once.as_secs_f64().max(1e-6)) as u32;
        bench.more(*extent, more.min(STEPS_MAX))?;
    }
    Ok(())
}

/// What a repetition of `next` will take: on the line through the two largest extents so far, or in
/// proportion to the only one.
fn expected(measured: &[(Extent, Duration)], next: Extent) -> Duration {
    let size = |extent: Extent| f64::from(extent.sequences) * f64::from(extent.positions);
    let mut known: Vec<(f64, f64)> =
        measured.iter().map(|(extent, once)| (size(*extent), once.as_secs_f64())).collect();
    known.sort_by(|a, b| a.0.total_cmp(&b.0));
    let next = size(next);
    let seconds = match known.as_slice() {
        [] => 0.0,
        [.., (low, before), (high, after)] if low < high => {
            let slope = ((after - before) / (high - low)).max(0.0);
            after + slope * (next - high).max(0.0)
        }
        [.., (only, once)] => once * (next / only).max(1.0),
    };
    Duration::from_secs_f64(seconds)
}

/// Repeats the extents of one experiment.
struct Repeater<'a> {
    session: Box<dyn Session>,
    experiment: &'a Experiment,
    recorder: &'a mut Recorder,
}

impl Repeater<'_> {
    fn group(&mut self, extent: Extent, steps: u32, skip_steps: u32) -> Result<(), ProfileError> {
        let records = self.session.run(&group(self.experiment, extent, steps))?;
        let plan = &self.experiment.plan;
        let program = match self.experiment.phase {
            Phase::Prefill => plan.prefill(),
            Phase::Decode => plan.decode(),
        };
        self.recorder.record(Trace { plan, program, extent, records: &records, skip_steps });
        Ok(())
    }

    /// A warm-up, which touches the memory, and [`REPETITIONS_MIN`] repetitions. Returns the time
    /// of one.
    fn first(&mut self, extent: Extent) -> Result<Duration, ProfileError> {
        let begun = Instant::now();
        match self.experiment.phase {
            Phase::Decode => self.group(extent, 1 + REPETITIONS_MIN, 1)?,
            Phase::Prefill => {
                // A group has one prefill; all of the first one is skipped.
                self.group(extent, 0, 1)?;
                self.more(extent, REPETITIONS_MIN)?;
            }
        }
        Ok(begun.elapsed() / (1 + REPETITIONS_MIN))
    }

    /// So many repetitions.
    fn more(&mut self, extent: Extent, repetitions: u32) -> Result<(), ProfileError> {
        match self.experiment.phase {
            Phase::Decode if repetitions > 0 => self.group(extent, repetitions, 0),
            Phase::Decode => Ok(()),
            Phase::Prefill => (0..repetitions).try_for_each(|_| self.group(extent, 0, 0)),
        }
    }
}

/// Sequences of the extent, all in the first batch. Their KV grows around the wanted length.
fn group(experiment: &Experiment, extent: Extent, steps: u32) -> Vec<Placed> {
    let longest = experiment.plan.shape.max_prompt;
    let prompt = extent.positions.saturating_sub(steps / 2).clamp(1, longest);
    let one = |slot: u32| Placed {
        batch: 0,
        slot: slot as usize,
        request: Sequence::greedy(vec![0; prompt as usize], steps + 1),
    };
    (0..extent.sequences).map(one).collect()
}

fn sorted(recorder: &Recorder) -> Vec<Measured> {
    let mut work: Vec<Measured> = recorder
        .stats()
        .map(|(key, point, set, time)| Measured { key, point, beside: set.iter().collect(), time })
        .collect();
    work.sort_by_cached_key(|m| {
        (m.key.lane, m.key.phase, format!("{:?}", m.key.work), m.beside.clone(), m.point)
    });
    work
}

/// The curves. The number of threads of all other experiments was measured by them.
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
        // Of several formats of the weights, the first.
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
