//! From arguments and demand to a plan that fits in memory, is validated, and whose duration is
//! predicted.

use std::cell::Cell;

use anyhow::Context;
use planner::budget::{Limits, PlanError, Request, StagedOps};
use planner::policy::by_name::PolicyName;
use planner::policy::{Formats, Placement, Policy};
use planner::priced::{
    Chosen, Effort, Predicted, Pricing, Question, WithStorages, choose, place, predict,
};
use planner::split::parse_split;
use profiler::{End, Threads};
use program::map::Chunking;
use program::plan::Plan;

use super::auto_batches;
use super::formats::{Case, formats, notes};
use super::hardware::{Hardware, cores};
use super::memory_advice::of_device;
use super::model::Opened;
use super::plan_request::{batches, limits, request};
use super::pricing::{Profiles, compares_alone};
use super::profile;
use super::progress_reporter::ProgressReporter;
use super::rehearsal::{SEARCHING, Stage};
use super::staging::nvme::{Nvme, storage};
use super::usage::Usage;
use crate::cli::cuda::is_cuda;
use crate::cli::request::{PlacementChoice, Run, Tuned, Verbosity};
use crate::cli::values::{Batches, BatchesChoice};
use crate::interrupt::Interrupt;
use crate::job::demand::Demand;
use crate::report::{explain, placement};

/// A plan, and the reasons for it.
#[derive(Debug)]
pub(crate) struct Decision {
    pub plan: Plan,
    /// Predicted duration of one group of full batches; `None` if no valid profile is stored and
    /// none was required.
    pub predicted: Option<Predicted>,
    /// Bounds of that prediction, if all uncertainties of the profile add up.
    pub between: Option<Between>,
    /// Result of the search or, for a map that was specified, its prediction.
    pub chosen: Option<Box<Chosen>>,
    /// Memory limits that the plan satisfies.
    pub limits: Limits,
    /// Decisions about the formats of weights that the user did not make, a sentence each.
    pub notes: Vec<String>,
    /// Drives from which weights are read, if any.
    pub nvme: Option<Nvme>,
    /// Numbers of CPU threads that were the fastest as measured.
    pub tuned: Tuned,
}

impl Decision {
    /// Returns the run with the numbers of CPU threads that were the fastest as measured.
    pub(crate) fn tuned(&self, run: &Run) -> Run {
        Run { tuned: self.tuned, ..run.clone() }
    }
}

/// Lower and upper bound of a run's duration.
pub(crate) type Between = [Predicted; 2];

/// Condition under which the machine is measured for a map that needs no search.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Measure {
    WhereNeeded,
    /// The machine is measured even if only the prediction needs it.
    Always,
}

/// Plans, validates the plan before any worker exists, and prints the decisions.
///
/// # Errors
/// A split that the model lacks, numbers that do not fit, or a machine that could not be profiled.
pub(crate) fn plan(
    run: &Run,
    opened: &Opened,
    demand: Demand,
    case: Case,
    measure: Measure,
    interrupt: &Interrupt,
) -> anyhow::Result<Decision> {
    let decision = decide(run, opened, demand, case, measure, interrupt)?;
    say(run, &decision);
    Ok(decision)
}

/// Plans and validates without printing the decisions, for callers that may decide again.
///
/// # Errors
/// Fails like [`plan`].
pub(crate) fn decide(
    run: &Run,
    opened: &Opened,
    demand: Demand,
    case: Case,
    measure: Measure,
    interrupt: &Interrupt,
) -> anyhow::Result<Decision> {
    let (limits, formats) = (limits(run, opened, demand), formats(run, opened, case));
    let (limits, formats) = (&limits, &formats);
    let (nvme, reporter) = (None, ProgressReporter::silent());
    let mut planning =
        Planning { run, opened, demand, limits, formats, measure, interrupt, nvme, reporter };
    let mut notes = notes(run, opened, case);
    if let Some(storage) = storage(run, &opened.config)? {
        if storage.ops == StagedOps::Auto && planning.fits_memory()? {
            let note = "All weights fit in memory, so nothing is read from --nvme.";
            notes.push(note.to_owned());
        } else {
            let nvme = Nvme::obtain(run, opened, formats, storage, interrupt)?;
            notes.extend(nvme.note.clone());
            planning.nvme = Some(nvme);
        }
    }
    planning.reporter = ProgressReporter::begin("planning", run.verbosity);
    planning.reporter.update(SEARCHING, None);
    let mut decision = planning.decide().map_err(|error| of_device(run, error))?;
    decision.notes = notes;
    decision.nvme = planning.nvme.take().filter(|_| decision.plan.map.uses_storages());
    prove(run, &decision)?;
    Ok(decision)
}

fn prove(run: &Run, decision: &Decision) -> anyhow::Result<()> {
    program::validate::validate(&decision.plan)
        .context("the compiled program is not safe to run; this is a defect, please report it")?;
    if is_cuda(run.device) {
        // The worker would report the same error, but only after it has started.
        workers::device::check(&decision.plan).map_err(|error| Usage(error.to_string()))?;
    }
    Ok(())
}

/// Prints the decisions.
pub(crate) fn say(run: &Run, decision: &Decision) {
    let run = &decision.tuned(run);
    if run.verbosity >= Verbosity::Normal {
        decision.notes.iter().for_each(|note| eprintln!("{note}"));
        let cores = cores();
        if let Some(requested) = run.cpu_threads.filter(|requested| *requested > cores) {
            eprintln!(
                "--cpu-threads {requested}: this machine has {cores} cores; additional threads \
                 wait for the others"
            );
        }
        if let Some(chosen) = decision.chosen.as_ref().filter(|chosen| chosen.candidates > 1) {
            let threads = |uses_gpu| threads(run, uses_gpu);
            eprint!("{}", placement::considered(chosen, Some(&threads)));
        }
    }
    if run.verbosity >= Verbosity::Verbose {
        eprint!("{}", explain::plan(&decision.plan));
    }
}

/// A run with one choice of formats for weights and KV.
struct Planning<'a> {
    run: &'a Run,
    opened: &'a Opened,
    demand: Demand,
    limits: &'a Limits,
    formats: &'a Formats,
    measure: Measure,
    interrupt: &'a Interrupt,
    /// Drives from which weights may be read.
    nvme: Option<Nvme>,
    reporter: ProgressReporter,
}

impl Planning<'_> {
    /// Returns true if all weights fit in memory, in a plain placement with these batches.
    fn fits_memory(&self) -> Result<bool, PlanError> {
        let placements = [Policy::GpuOnly, Policy::CpuOnly].map(Placement::of);
        let batches = batches(self.run, self.demand, &self.request(&placements[1]))?;
        let fits = |placement| self.request(placement).fits(batches.count, batches.size);
        Ok(placements.iter().map(fits).collect::<Result<Vec<_>, _>>()?.contains(&true))
    }

    /// Calls `then` with the costs of this machine including its drives.
    fn with_drives<T>(&self, profiles: &Profiles, then: impl FnOnce(&dyn Pricing) -> T) -> T {
        match &self.nvme {
            None => then(profiles),
            Some(nvme) => then(&WithStorages { inner: profiles, rates: &nvme.rates }),
        }
    }

    fn request<'b>(&'b self, placement: &'b Placement) -> Request<'b> {
        let memory = (self.limits, self.nvme.as_ref().map(|nvme| &nvme.storage));
        request(self.run, self.opened, self.demand, self.formats, memory, placement)
    }

    fn decide(&self) -> anyhow::Result<Decision> {
        match &self.run.placement {
            PlacementChoice::Split { split, chunking } => {
                let config = &self.opened.config;
                let split =
                    parse_split(split, config, *chunking).map_err(|e| Usage(e.to_string()))?;
                let placement = Placement::of(Policy::TwoSplit { split, chunking: *chunking });
                self.given(PolicyName::TwoSplit, &placement)
            }
            PlacementChoice::Named(name) => match name.alone() {
                Some(policy) => self.given(*name, &Placement::of(policy)),
                None => self.search(*name),
            },
        }
    }

    /// Decides for a map that needs no search. It is predicted, which includes a rehearsal, if a
    /// profile is stored or measuring is requested.
    fn given(&self, name: PolicyName, placement: &Placement) -> anyhow::Result<Decision> {
        let request = self.request(placement);
        let batches = batches(self.run, self.demand, &request)?;
        let plan = request.plan(batches.count, batches.size)?;
        let shape = request.shape(batches.count, batches.size);
        let hardware = Hardware::resolve(self.run, plan.map.uses_gpu());
        let reporter = &self.reporter;
        let of = |hardware| -> anyhow::Result<_> {
            let shapes = profile::request(request.config, &shape, self.formats, hardware);
            match self.measure {
                // Measuring long prompts would take longer than computing them.
                Measure::Always if !shape.is_chunked() => {
                    let obtained =
                        profile::obtain(&shapes, hardware, false, reporter, self.interrupt);
                    Ok(Some(obtained?.profile))
                }
                _ => Ok(profile::kept(&shapes, hardware)),
            }
        };
        let profile = profile::with_best_threads(self.run.cpu_threads, hardware, of)?;
        let tuned = profile.as_ref().and_then(|(_, tuned)| *tuned);
        let tuned = Tuned { with_device: tuned, alone: tuned };
        let placed = profile.and_then(|(profile, _)| {
            let (with_device, alone) = (Some(profile.clone()), Some(profile));
            let profiles = Profiles { with_device, alone };
            let stage = self.stage(&profiles, tuned);
            self.with_drives(&profiles, |pricing| {
                let question = question((&request, batches), name, (pricing, &stage));
                // An operation that was not measured for such a map leaves the run without a
                // prediction.
                place(&question, name, placement).ok()
            })
            .map(|placed| {
                let between = self.between(&profiles, &placed);
                (placed, between)
            })
        });
        let (placed, between) = placed.unzip();
        let predicted = placed.as_ref().map(|placed: &Chosen| placed.predicted);
        Ok(Decision {
            plan,
            predicted,
            between: between.flatten(),
            chosen: placed.map(Box::new),
            limits: *self.limits,
            notes: Vec::new(),
            nvme: None,
            tuned,
        })
    }

    /// Returns the stage on which plans are rehearsed.
    fn stage<'b>(&'b self, profiles: &'b Profiles, tuned: Tuned) -> Stage<'b> {
        let run = Run { tuned, ..self.run.clone() };
        Stage {
            profiles,
            with_device: Hardware::resolve(&run, true),
            alone: Hardware::resolve(&run, false),
            reporter: &self.reporter,
            interrupt: self.interrupt,
            spent: Cell::default(),
        }
    }

    /// Decides for the best map of a policy, on this machine as measured.
    fn search(&self, name: PolicyName) -> anyhow::Result<Decision> {
        let streamed = Placement::of(Policy::GpuOnly);
        let streaming = self.request(&streamed);
        let batches = batches(self.run, self.demand, &streaming)?;
        // Requests that will be refused are not measured.
        if !streaming.fits(batches.count, batches.size)? {
            self.request(&Placement::of(Policy::CpuOnly)).plan(batches.count, batches.size)?;
        }
        let (profiles, tuned) = self.profiles(name, batches)?;
        self.reporter.update(SEARCHING, None);
        let stage = self.stage(&profiles, tuned);
        let chosen = self.with_drives(&profiles, |pricing| -> anyhow::Result<Chosen> {
            let question = question((&streaming, batches), name, (pricing, &stage));
            let batches = match self.run.batches {
                Some(BatchesChoice::Auto) => auto_batches::best(&question, self.demand.sequences)?,
                _ => batches,
            };
            let (count, batch_size) = (batches.count, batches.size);
            let chunkings = &self.chunkings(&profiles, batches);
            Ok(choose(&Question { batches: count, batch_size, chunkings, ..question })?)
        })?;
        let (plan, predicted) = (chosen.plan.clone(), Some(chosen.predicted));
        let between = self.between(&profiles, &chosen);
        Ok(Decision {
            plan,
            predicted,
            between,
            chosen: Some(Box::new(chosen)),
            limits: *self.limits,
            notes: Vec::new(),
            nvme: None,
            tuned,
        })
    }

    /// Predicts a chosen plan at both ends of the profile's uncertainty.
    fn between(&self, profiles: &Profiles, chosen: &Chosen) -> Option<Between> {
        let at = |end| {
            let profiles = profiles.at(end);
            let predicted = self.with_drives(&profiles, |pricing| predict(&chosen.plan, pricing));
            predicted.ok().map(|predicted| predicted.times(chosen.factors()))
        };
        Some([at(End::Low)?, at(End::High)?])
    }

    /// Measures the machine as far as the search requires, and finds the best numbers of CPU
    /// threads.
    fn profiles(&self, name: PolicyName, batches: Batches) -> anyhow::Result<(Profiles, Tuned)> {
        let reporter = &self.reporter;
        let placement = Placement::of(Policy::GpuOnly);
        let request = self.request(&placement);
        let shape = request.shape(batches.count, batches.size);
        let measure = |uses_gpu: bool| {
            let hardware = Hardware::resolve(self.run, uses_gpu);
            profile::with_best_threads(self.run.cpu_threads, hardware, |hardware| {
                let shapes = profile::request(request.config, &shape, self.formats, hardware);
                let obtained = profile::obtain(&shapes, hardware, false, reporter, self.interrupt);
                obtained.map(|obtained| Some(obtained.profile))
            })
        };
        let (with_device, of_device) = measure(true)?.unzip();
        let (alone, of_alone) =
            if compares_alone(name) { measure(false)?.unzip() } else { (None, None) };
        let tuned = Tuned { with_device: of_device.flatten(), alone: of_alone.flatten() };
        Ok((Profiles { with_device, alone }, tuned))
    }

    /// Returns the ways to split a layer: none and the requested one. By default, none and those of
    /// attention that were measured and for which a batch has enough units, and that of linears if
    /// the device computes pieces.
    fn chunkings(&self, profiles: &Profiles, batches: Batches) -> Vec<Option<Chunking>> {
        let mut found = vec![None];
        if let Some(chunking) = self.run.chunking {
            found.push(Some(chunking));
            return found;
        }
        if self.run.prefill_chunk.is_some() {
            // Caches in parts do not support prompts in chunks, which were requested.
            return found;
        }
        let measured = profiles.with_device.iter();
        let measured = measured
            .flat_map(|profile| profile::chunkings(profile, &self.opened.config, batches.size));
        found.extend(measured.map(Some));
        if !is_cuda(self.run.device) {
            found.push(Some(profile::LINEARS));
        }
        found
    }
}

/// Returns the question for a full search of a policy, without splits of attention.
fn question<'a>(
    (request, batches): (&'a Request<'a>, Batches),
    policy: PolicyName,
    (pricing, stage): (&'a dyn Pricing, &'a Stage<'a>),
) -> Question<'a> {
    Question {
        request,
        batches: batches.count,
        batch_size: batches.size,
        policy,
        chunkings: &[None],
        pricing,
        effort: Effort::Full,
        stage: Some(stage),
    }
}

/// Returns the numbers of threads of the cpu worker and of the device, for output.
pub(crate) fn threads(run: &Run, uses_gpu: bool) -> (u16, u16) {
    let Threads { cpu, gpu } = Hardware::resolve(run, uses_gpu).threads;
    (cpu, gpu)
}
