//! Runs one experiment over its extents, within its share of the time.

use std::time::{Duration, Instant};

use program::map::Phase;
use program::topology::LaneSet;
use program::validate::validate_program;
use protocol::group::{GenerationRequest as Sequence, PlacedRequest};

use crate::error::ProfileError;
use crate::experiment::{Experiment, STEPS_MAX};
use crate::key::Extent;
use crate::profile::SkippedPoint;
use crate::recorder::{GroupTrace, Recorder};
use crate::request::ProfilingRequest;
use crate::runner::{Runner, RunnerSession};

/// Minimum number of repetitions of required extents.
pub const REPETITIONS_MIN: u32 = 3;
/// Maximum number of rounds in which doubtful results are measured again.
const REPEAT_ROUNDS_MAX: u32 = 2;

/// Time until a share of the budget is used up.
#[derive(Debug, Clone, Copy)]
struct TimeBudget {
    begun: Instant,
    share: Duration,
}

impl TimeBudget {
    fn remaining(self) -> Duration {
        self.share.saturating_sub(self.begun.elapsed())
    }

    /// Returns how many repetitions of duration `once` still fit.
    fn repetitions_that_fit(self, once: Duration) -> u32 {
        (self.remaining().as_secs_f64() / once.as_secs_f64().max(1e-6)) as u32
    }
}

/// An extent that was measured.
#[derive(Debug, Clone, Copy)]
struct MeasuredExtent {
    extent: Extent,
    /// Duration of one repetition.
    repetition: Duration,
    repetitions: u32,
}

/// Measures the required extents of an experiment in any case and the others while its share of the
/// time lasts, with fewer repetitions if they would not all fit; then repeats results with few
/// repetitions or contradictions; and uses the remaining time for more of everything. Returns what
/// was not measured.
pub(crate) fn repeat(
    experiment: &Experiment,
    request: &ProfilingRequest,
    runner: &mut dyn Runner,
    recorder: &mut Recorder,
    share: Duration,
    progress: &mut dyn FnMut(f64, &str),
) -> Result<Vec<SkippedPoint>, ProfileError> {
    let clock = TimeBudget { begun: Instant::now(), share };
    progress(0.0, &experiment.name);
    let plan = &experiment.plan;
    validate_program(plan.prefill(), &plan.buffers, &plan.topology, &plan.config)?;
    validate_program(plan.decode(), &plan.buffers, &plan.topology, &plan.config)?;
    let session = runner.start(plan.clone(), experiment.threads)?;
    let mut bench = ExtentRunner { session, experiment, request, recorder, clock };
    let (required, optional) = (&experiment.extents.required, &experiment.extents.optional);
    let count = required.len() + optional.len();
    let (mut measured, mut skipped): (Vec<MeasuredExtent>, _) = (Vec::new(), Vec::new());
    for (index, extent) in required.iter().chain(optional).enumerate() {
        // One additional repetition warms up.
        let fitting =
            clock.repetitions_that_fit(expected_duration(&measured, *extent)).saturating_sub(1);
        let repetitions = match fitting {
            _ if index == 0 => REPETITIONS_MIN,
            0 if index >= required.len() => {
                skipped.push(SkippedPoint { what: experiment.name.clone(), extent: *extent });
                continue;
            }
            fitting => fitting.clamp(1, REPETITIONS_MIN),
        };
        measured.push(bench.measure_first(*extent, repetitions)?);
        progress((index + 1) as f64 / count as f64, &experiment.name);
    }
    bench.repeat_few(&measured)?;
    bench.repeat_disputed(&measured)?;
    bench.repeat_unmet(&measured)?;
    for (index, MeasuredExtent { extent, repetition, .. }) in measured.iter().enumerate() {
        let more = clock.repetitions_that_fit(*repetition) / (measured.len() - index) as u32;
        bench.measure_more(*extent, more.min(STEPS_MAX))?;
    }
    skipped.extend(bench.unmet_points());
    Ok(skipped)
}

/// Returns the expected duration of a repetition of `next`: on the line through the two largest
/// extents so far, or in proportion to the only one.
fn expected_duration(measured: &[MeasuredExtent], next: Extent) -> Duration {
    let size = |extent: Extent| f64::from(extent.sequences) * f64::from(extent.positions);
    let mut known: Vec<(f64, f64)> =
        measured.iter().map(|timed| (size(timed.extent), timed.repetition.as_secs_f64())).collect();
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
struct ExtentRunner<'a> {
    session: Box<dyn RunnerSession>,
    experiment: &'a Experiment,
    request: &'a ProfilingRequest,
    recorder: &'a mut Recorder,
    clock: TimeBudget,
}

impl ExtentRunner<'_> {
    fn run_group(
        &mut self,
        extent: Extent,
        steps: u32,
        skip_steps: u32,
    ) -> Result<(), ProfileError> {
        let records = self.session.run(&build_group(self.experiment, extent, steps))?;
        let plan = &self.experiment.plan;
        let program = match self.experiment.phase {
            Phase::Prefill => plan.prefill(),
            Phase::Decode => plan.decode(),
        };
        let samples_count = plan.config.vocab_size == self.request.vocabulary();
        let records = &records;
        self.recorder.record(GroupTrace {
            plan,
            program,
            extent,
            records,
            skip_steps,
            samples_count,
        });
        Ok(())
    }

    /// Runs a warm-up, which touches the memory, and repetitions.
    fn measure_first(
        &mut self,
        extent: Extent,
        repetitions: u32,
    ) -> Result<MeasuredExtent, ProfileError> {
        let begun = Instant::now();
        match self.experiment.phase {
            Phase::Decode => self.run_group(extent, 1 + repetitions, 1)?,
            Phase::Prefill => {
                // A group has one prefill, and the first one is skipped entirely.
                self.run_group(extent, 0, 1)?;
                self.measure_more(extent, repetitions)?;
            }
        }
        Ok(MeasuredExtent { extent, repetition: begun.elapsed() / (1 + repetitions), repetitions })
    }

    /// Runs the given number of repetitions.
    fn measure_more(&mut self, extent: Extent, repetitions: u32) -> Result<(), ProfileError> {
        match self.experiment.phase {
            Phase::Decode if repetitions > 0 => self.run_group(extent, repetitions, 0),
            Phase::Decode => Ok(()),
            Phase::Prefill => (0..repetitions).try_for_each(|_| self.run_group(extent, 0, 0)),
        }
    }

    /// Completes extents with fewer repetitions than required.
    fn repeat_few(&mut self, measured: &[MeasuredExtent]) -> Result<(), ProfileError> {
        for MeasuredExtent { extent, repetition, repetitions } in measured {
            let lacking = REPETITIONS_MIN.saturating_sub(*repetitions);
            self.measure_more(*extent, self.clock.repetitions_that_fit(*repetition).min(lacking))?;
        }
        Ok(())
    }

    /// Repeats measurements in which equal work took different times.
    fn repeat_disputed(&mut self, measured: &[MeasuredExtent]) -> Result<(), ProfileError> {
        let (config, phase) = (&self.request.config, self.experiment.phase);
        for _ in 0..REPEAT_ROUNDS_MAX {
            for MeasuredExtent { extent, repetition, .. } in measured {
                if self.recorder.equals_differ(config, phase, *extent) {
                    let fitting = self.clock.repetitions_that_fit(*repetition);
                    self.measure_more(*extent, fitting.min(REPETITIONS_MIN))?;
                }
            }
        }
        Ok(())
    }

    /// Repeats measurements in which lanes that should overlap did not.
    fn repeat_unmet(&mut self, measured: &[MeasuredExtent]) -> Result<(), ProfileError> {
        for _ in 0..REPEAT_ROUNDS_MAX {
            if self.unmet_points().is_empty() {
                return Ok(());
            }
            for MeasuredExtent { extent, repetition, .. } in measured {
                let fitting = self.clock.repetitions_that_fit(*repetition);
                self.measure_more(*extent, fitting.min(STEPS_MAX))?;
            }
        }
        Ok(())
    }

    /// Returns lanes of which no work overlapped completely with the others of a set.
    fn unmet_points(&self) -> Vec<SkippedPoint> {
        let plan = &self.experiment.plan;
        let Some(extent) = self.experiment.extents.required.first() else { return Vec::new() };
        let pairs = self
            .experiment
            .concurrent_lanes
            .iter()
            .flat_map(|set| set.iter().map(move |lane| (lane, set.without(lane))));
        let unmet = pairs.filter(|(lane, others)| !self.recorder.has_met(*lane, *others));
        let names = |set: LaneSet| {
            set.iter().map(|lane| plan.lane_name(lane).to_owned()).collect::<Vec<_>>().join(" and ")
        };
        let skipped = unmet.map(|(lane, others)| SkippedPoint {
            what: format!("{} concurrently with {}", plan.lane_name(lane), names(others)),
            extent: *extent,
        });
        skipped.collect()
    }
}

/// Returns the sequences of the extent, all in the first batch. Their KV grows around the length.
fn build_group(experiment: &Experiment, extent: Extent, steps: u32) -> Vec<PlacedRequest> {
    let longest = experiment.plan.shape.max_prompt;
    let prompt = extent.positions.saturating_sub(steps / 2).clamp(1, longest);
    let one = |slot: u32| PlacedRequest {
        batch: 0,
        slot: slot as usize,
        request: Sequence::greedy(vec![0; prompt as usize], steps + 1),
    };
    (0..extent.sequences).map(one).collect()
}
