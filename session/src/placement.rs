//! From arguments and demand to a plan that fits in memory, is validated, and whose duration is
//! predicted.

use std::cell::Cell;

use anyhow::Context;
use batch::workload::JobWorkload;
use planner::budget::{MemoryLimits, PlacementRequest, PlanError, StagedOps};
use planner::policy::name::PolicyName;
use planner::policy::{Formats, Placement, Policy};
use planner::search::{
    PredictedTimes, Pricing, SearchEffort, SearchRequest, SearchResult, StoragePricing, choose,
    evaluate_placement, predict,
};
use planner::split::parse_split;
use profiler::{ComputeThreads, UncertaintyBound};
use program::cuda_gaps::model_gap;
use program::map::Chunking;
use program::plan::Plan;

use super::argument_error::ArgumentError;
use super::auto_batches;
use super::fit_suggestions::with_free_device_memory;
use super::formats::{RunCompression, notes, resolve_formats};
use super::hardware::{Hardware, available_cores};
use super::plan_request::{limits, plan_request, resolve_batches};
use super::pricing::{Profiles, compares_without_device};
use super::profile;
use super::progress_reporter::ProgressReporter;
use super::rehearsal::{RehearsalRunner, SEARCH_LABEL};
use super::staging::nvme::{Nvme, storage};
use crate::cuda_device::is_cuda;
use crate::interrupt::Interrupt;
use crate::request::{PlacementChoice, TunedThreads, Verbosity};
use crate::session::Session;
use crate::values::{Batches, BatchesChoice};
use report::{explain, placement};

/// A plan, and the reasons for it.
#[derive(Debug)]
pub struct PlacementDecision {
    pub plan: Plan,
    /// Predicted duration of one group of full batches; `None` if no valid profile is stored and
    /// none was required.
    pub predicted: Option<PredictedTimes>,
    /// Bounds of that prediction, if all uncertainties of the profile add up.
    pub bounds: Option<PredictionBounds>,
    /// Result of the search or, for a map that was specified, its prediction.
    pub search_result: Option<Box<SearchResult>>,
    /// Memory limits that the plan satisfies.
    pub limits: MemoryLimits,
    /// Decisions about the formats of weights that the user did not make, a sentence each.
    pub notes: Vec<String>,
    /// Drives from which weights are read, if any.
    pub nvme: Option<Nvme>,
    /// Numbers of CPU threads that were the fastest as measured.
    pub tuned_threads: TunedThreads,
}

impl PlacementDecision {
    /// Returns the session with the numbers of CPU threads that were the fastest as measured.
    pub fn with_tuned_threads<'m>(&self, session: &Session<'m>) -> Session<'m> {
        Session { tuned_threads: self.tuned_threads, ..session.clone() }
    }
}

/// Lower and upper bound of a run's duration.
pub(crate) type PredictionBounds = [PredictedTimes; 2];

/// Condition under which the machine is measured for a map that needs no search.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum MeasurePolicy {
    IfNeeded,
    /// The machine is measured even if only the prediction needs it.
    Always,
}

/// Plans, validates the plan before any worker exists, and prints the decisions.
///
/// # Errors
/// A split that the model lacks, numbers that do not fit, or a machine that could not be profiled.
pub fn decide_and_print(
    session: &Session<'_>,
    demand: JobWorkload,
    compression: RunCompression,
    measure: MeasurePolicy,
    interrupt: &Interrupt,
) -> anyhow::Result<PlacementDecision> {
    let decision = decide(session, demand, compression, measure, interrupt)?;
    print_decision(session, &decision);
    Ok(decision)
}

/// Plans and validates without printing the decisions, for callers that may decide again.
///
/// # Errors
/// Fails like [`decide_and_print`].
pub(crate) fn decide(
    session: &Session<'_>,
    demand: JobWorkload,
    compression: RunCompression,
    measure: MeasurePolicy,
    interrupt: &Interrupt,
) -> anyhow::Result<PlacementDecision> {
    let (limits, formats) = (limits(session, demand), resolve_formats(session, compression));
    let (limits, formats) = (&limits, &formats);
    let (nvme, reporter) = (None, ProgressReporter::silent());
    let mut planning =
        PlacementPlanner { session, demand, limits, formats, measure, interrupt, nvme, reporter };
    let mut notes = notes(session, compression);
    if let Some(storage) = storage(session)? {
        if storage.ops == StagedOps::Auto && planning.fits_memory()? {
            let note = "All weights fit in memory, so nothing is read from --nvme.";
            notes.push(note.to_owned());
        } else {
            let nvme = Nvme::obtain(session, formats, storage, interrupt)?;
            notes.extend(nvme.note.clone());
            planning.nvme = Some(nvme);
        }
    }
    planning.reporter = ProgressReporter::start("planning", session.options.verbosity);
    planning.reporter.update(SEARCH_LABEL, None);
    let mut decision =
        planning.decide().map_err(|error| with_free_device_memory(session, error))?;
    decision.notes = notes;
    decision.nvme = planning.nvme.take().filter(|_| decision.plan.map.uses_storages());
    validate_decision(session, &decision)?;
    Ok(decision)
}

fn validate_decision(session: &Session<'_>, decision: &PlacementDecision) -> anyhow::Result<()> {
    program::validate::validate(&decision.plan)
        .context("the compiled program is not safe to run; this is a defect, please report it")?;
    if is_cuda(session.options.device) {
        // The worker would report the same error, but only after it has started.
        workers::device::check(&decision.plan).map_err(|error| ArgumentError(error.to_string()))?;
    }
    Ok(())
}

/// Prints the decisions.
pub(crate) fn print_decision(session: &Session<'_>, decision: &PlacementDecision) {
    let session = &decision.with_tuned_threads(session);
    if session.options.verbosity >= Verbosity::Normal {
        decision.notes.iter().for_each(|note| eprintln!("{note}"));
        let cores = available_cores();
        if let Some(requested) = session.options.cpu_threads.filter(|requested| *requested > cores)
        {
            eprintln!(
                "--cpu-threads {requested}: this machine has {cores} cores; additional threads \
                 wait for the others"
            );
        }
        if let Some(chosen) =
            decision.search_result.as_ref().filter(|chosen| chosen.candidate_count > 1)
        {
            let threads = |uses_gpu| thread_counts(session, uses_gpu);
            eprint!("{}", placement::format_candidates(chosen, Some(&threads)));
        }
    }
    if session.options.verbosity >= Verbosity::Verbose {
        eprint!("{}", explain::format_plan(&decision.plan));
    }
}

/// A run with one choice of formats for weights and KV.
struct PlacementPlanner<'a> {
    session: &'a Session<'a>,
    demand: JobWorkload,
    limits: &'a MemoryLimits,
    formats: &'a Formats,
    measure: MeasurePolicy,
    interrupt: &'a Interrupt,
    /// Drives from which weights may be read.
    nvme: Option<Nvme>,
    reporter: ProgressReporter,
}

impl PlacementPlanner<'_> {
    /// Returns true if all weights fit in memory, in a plain placement with these batches.
    fn fits_memory(&self) -> Result<bool, PlanError> {
        let placements = [Policy::GpuOnly, Policy::CpuOnly].map(Placement::from_policy);
        let batches = resolve_batches(self.session, self.demand, &self.request(&placements[1]))?;
        let fits = |placement| self.request(placement).fits(batches.count, batches.size);
        Ok(placements.iter().map(fits).collect::<Result<Vec<_>, _>>()?.contains(&true))
    }

    /// Calls `then` with the costs of this machine including its drives.
    fn with_drives<T>(&self, profiles: &Profiles, then: impl FnOnce(&dyn Pricing) -> T) -> T {
        match &self.nvme {
            None => then(profiles),
            Some(nvme) => then(&StoragePricing { inner: profiles, rates: &nvme.rates }),
        }
    }

    fn request<'b>(&'b self, placement: &'b Placement) -> PlacementRequest<'b> {
        let storage = self.nvme.as_ref().map(|nvme| &nvme.storage);
        plan_request(self.session, self.demand, self.formats, self.limits, storage, placement)
    }

    fn decide(&self) -> anyhow::Result<PlacementDecision> {
        match &self.session.options.placement {
            PlacementChoice::Split { split, chunking } => {
                let config = &self.session.model.config;
                let split = parse_split(split, config, *chunking)
                    .map_err(|e| ArgumentError(e.to_string()))?;
                let placement =
                    Placement::from_policy(Policy::TwoSplit { split, chunking: *chunking });
                self.decide_fixed(PolicyName::TwoSplit, &placement)
            }
            PlacementChoice::Named(name) => match name.without_parameters() {
                Some(policy) => self.decide_fixed(*name, &Placement::from_policy(policy)),
                None => self.search(*name),
            },
        }
    }

    /// Decides for a map that needs no search. It is predicted, which includes a rehearsal, if a
    /// profile is stored or measuring is requested.
    fn decide_fixed(
        &self,
        name: PolicyName,
        placement: &Placement,
    ) -> anyhow::Result<PlacementDecision> {
        let request = self.request(placement);
        let batches = resolve_batches(self.session, self.demand, &request)?;
        let plan = request.plan(batches.count, batches.size)?;
        let shape = request.shape(batches.count, batches.size);
        let hardware = Hardware::resolve(self.session, plan.map.uses_gpu());
        let reporter = &self.reporter;
        let gap = model_gap(request.config, self.formats.kv);
        let has_gaps = |hardware: Hardware| hardware.cuda.is_some() && gap.is_some();
        let load = |hardware| -> anyhow::Result<_> {
            let shapes = profile::profile_request(request.config, &shape, self.formats, hardware);
            match self.measure {
                // Measuring long prompts would take longer than computing them, and operations that
                // the device lacks cannot be measured.
                MeasurePolicy::Always if !shape.is_chunked() && !has_gaps(hardware) => {
                    let obtained =
                        profile::obtain(&shapes, hardware, false, reporter, self.interrupt);
                    Ok(Some(obtained?.profile))
                }
                _ => Ok(profile::load_stored(&shapes, hardware)),
            }
        };
        let profile = profile::with_best_threads(self.session.options.cpu_threads, hardware, load)?;
        let tuned_threads = profile.as_ref().and_then(|(_, tuned_threads)| *tuned_threads);
        let tuned_threads =
            TunedThreads { with_device: tuned_threads, without_device: tuned_threads };
        let fixed_result = profile.and_then(|(profile, _)| {
            let (with_device, without_device) = (Some(profile.clone()), Some(profile));
            let profiles = Profiles { with_device, without_device };
            let stage = self.rehearsal_runner(&profiles, tuned_threads);
            self.with_drives(&profiles, |pricing| {
                let question = search_request(&request, batches, name, pricing, &stage);
                // An operation that was not measured for such a map leaves the run without a
                // prediction.
                evaluate_placement(&question, name, placement).ok()
            })
            .map(|fixed_result| {
                let between = self.prediction_bounds(&profiles, &fixed_result);
                (fixed_result, between)
            })
        });
        let (fixed_result, bounds) = fixed_result.unzip();
        let predicted = fixed_result.as_ref().map(|placed: &SearchResult| placed.predicted);
        Ok(PlacementDecision {
            plan,
            predicted,
            bounds: bounds.flatten(),
            search_result: fixed_result.map(Box::new),
            limits: *self.limits,
            notes: Vec::new(),
            nvme: None,
            tuned_threads,
        })
    }

    /// Returns the stage on which plans are rehearsed.
    fn rehearsal_runner<'b>(
        &'b self,
        profiles: &'b Profiles,
        tuned_threads: TunedThreads,
    ) -> RehearsalRunner<'b> {
        let session = Session { tuned_threads, ..self.session.clone() };
        RehearsalRunner {
            profiles,
            with_device: Hardware::resolve(&session, true),
            without_device: Hardware::resolve(&session, false),
            reporter: &self.reporter,
            interrupt: self.interrupt,
            spent: Cell::default(),
        }
    }

    /// Decides for the best map of a policy, on this machine as measured.
    fn search(&self, name: PolicyName) -> anyhow::Result<PlacementDecision> {
        let streamed = Placement::from_policy(Policy::GpuOnly);
        let streaming = self.request(&streamed);
        let batches = resolve_batches(self.session, self.demand, &streaming)?;
        // Requests that will be refused are not measured.
        if !streaming.fits(batches.count, batches.size)? {
            self.request(&Placement::from_policy(Policy::CpuOnly))
                .plan(batches.count, batches.size)?;
        }
        let (profiles, tuned_threads) = self.profiles(name, batches)?;
        self.reporter.update(SEARCH_LABEL, None);
        let stage = self.rehearsal_runner(&profiles, tuned_threads);
        let chosen = self.with_drives(&profiles, |pricing| -> anyhow::Result<SearchResult> {
            let question = search_request(&streaming, batches, name, pricing, &stage);
            let batches = match self.session.batches {
                Some(BatchesChoice::Auto) => {
                    auto_batches::choose_batches(&question, self.demand.sequences)?
                }
                _ => batches,
            };
            let (count, batch_size) = (batches.count, batches.size);
            let chunkings = &self.chunkings(&profiles, batches);
            Ok(choose(&SearchRequest { batches: count, batch_size, chunkings, ..question })?)
        })?;
        let (plan, predicted) = (chosen.plan.clone(), Some(chosen.predicted));
        let bounds = self.prediction_bounds(&profiles, &chosen);
        Ok(PlacementDecision {
            plan,
            predicted,
            bounds,
            search_result: Some(Box::new(chosen)),
            limits: *self.limits,
            notes: Vec::new(),
            nvme: None,
            tuned_threads,
        })
    }

    /// Predicts a chosen plan at both ends of the profile's uncertainty.
    fn prediction_bounds(
        &self,
        profiles: &Profiles,
        chosen: &SearchResult,
    ) -> Option<PredictionBounds> {
        let at = |end| {
            let profiles = profiles.at_uncertainty_end(end);
            let predicted = self.with_drives(&profiles, |pricing| predict(&chosen.plan, pricing));
            predicted.ok().map(|predicted| predicted.scaled(chosen.factors()))
        };
        Some([at(UncertaintyBound::Low)?, at(UncertaintyBound::High)?])
    }

    /// Measures the machine as far as the search requires, and finds the best numbers of CPU
    /// threads.
    fn profiles(
        &self,
        name: PolicyName,
        batches: Batches,
    ) -> anyhow::Result<(Profiles, TunedThreads)> {
        let reporter = &self.reporter;
        let placement = Placement::from_policy(Policy::GpuOnly);
        let request = self.request(&placement);
        let shape = request.shape(batches.count, batches.size);
        let measure = |uses_gpu: bool| {
            let hardware = Hardware::resolve(self.session, uses_gpu);
            profile::with_best_threads(self.session.options.cpu_threads, hardware, |hardware| {
                let shapes =
                    profile::profile_request(request.config, &shape, self.formats, hardware);
                let obtained = profile::obtain(&shapes, hardware, false, reporter, self.interrupt);
                obtained.map(|obtained| Some(obtained.profile))
            })
        };
        let (with_device, of_device) = measure(true)?.unzip();
        let (without_device, of_alone) =
            if compares_without_device(name) { measure(false)?.unzip() } else { (None, None) };
        let tuned =
            TunedThreads { with_device: of_device.flatten(), without_device: of_alone.flatten() };
        Ok((Profiles { with_device, without_device }, tuned))
    }

    /// Returns the ways to split a layer: none and the requested one. By default, none and those of
    /// attention that were measured and for which a batch has enough units, and that of linears if
    /// the device computes pieces.
    fn chunkings(&self, profiles: &Profiles, batches: Batches) -> Vec<Option<Chunking>> {
        let mut found = vec![None];
        if let Some(chunking) = self.session.options.chunking {
            found.push(Some(chunking));
            return found;
        }
        if self.session.options.prefill_chunk.is_some() {
            // Caches in parts do not support prompts in chunks, which were requested.
            return found;
        }
        let measured = profiles.with_device.iter();
        let measured = measured.flat_map(|profile| {
            profile::chunkings(profile, &self.session.model.config, batches.size)
        });
        found.extend(measured.map(Some));
        if !is_cuda(self.session.options.device) {
            found.push(Some(profile::LINEAR_CHUNKING));
        }
        found
    }
}

/// Returns the question for a full search of a policy, without splits of attention.
fn search_request<'a>(
    request: &'a PlacementRequest<'a>,
    batches: Batches,
    policy: PolicyName,
    pricing: &'a dyn Pricing,
    stage: &'a RehearsalRunner<'a>,
) -> SearchRequest<'a> {
    SearchRequest {
        request,
        batches: batches.count,
        batch_size: batches.size,
        policy,
        chunkings: &[None],
        pricing,
        effort: SearchEffort::Full,
        rehearser: Some(stage),
    }
}

/// Returns the numbers of threads of the cpu worker and of the device, for output.
pub fn thread_counts(session: &Session<'_>, uses_gpu: bool) -> (u16, u16) {
    let ComputeThreads { cpu, gpu } = Hardware::resolve(session, uses_gpu).threads;
    (cpu, gpu)
}
