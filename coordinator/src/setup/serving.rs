//! From arguments to an engine that serves.

use std::sync::Arc;
use std::time::Duration;

use anyhow::Context;
use grammar::Grammars;
use program::compile::compile;
use program::plan::{Plan, RunShape};

use super::bar::Bar;
use super::hardware::Hardware;
use super::model::Opened;
use super::placement::{Measure, first_that_fits, plan};
use super::staging::nvme::Nvme;
use super::usage::Usage;
use crate::cli::request::{Run, Verbosity};
use crate::cli::values::{Batches, BatchesChoice};
use crate::engine::launch::LaunchOptions;
use crate::engine::serving::{FormOf, ServingEngine, ServingOptions};
use crate::interrupt::Interrupt;
use crate::job::demand::Demand;
use crate::text::codec::ProcessCodec;

/// Log-probabilities of a token: its own, and of the twenty most likely ones.
const LOGPROBS: u16 = 21;

/// Most rows of a step, unless a chunk was given: more are computed no faster, and hold everybody
/// up.
const STEP_ROWS: u32 = 512;

/// Sequences at a time, unless memory has room for fewer.
const SLOTS: u16 = 32;

/// What a server is asked to be.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Served {
    /// Sequences at a time; `None`: as many as memory has room for, up to a default.
    pub(crate) slots: Option<u16>,
    /// Positions of a sequence; `None`: the model's.
    pub(crate) context: Option<u32>,
    /// How long a step should take where sequences decode.
    pub(crate) step: Duration,
}

/// Plans, starts the workers and loads the model.
///
/// # Errors
/// A sentence for the user.
pub(crate) fn start(
    run: &Run,
    opened: &Opened,
    served: Served,
    interrupt: &Interrupt,
) -> anyhow::Result<ServingEngine> {
    let (run, demand) = asked(run, opened, served)?;
    let case = first_that_fits(&run, opened, Some(demand));
    let decision = plan(&run, opened, demand, case, Measure::WhereNeeded, interrupt)?;
    let plan = serving(&decision.plan)?;
    let hardware = Hardware::resolve(&run, plan.map.uses_gpu());
    let staged = decision.nvme.as_ref().map(Nvme::staged).unwrap_or_default();
    let grammars = opened.vocabulary()?;
    let forms = grammars.clone().zip(opened.shared_codec()?);
    let forms = forms.map(|(grammars, codec)| form_of(grammars, codec));
    let launch = LaunchOptions { staged, grammars, ..hardware.launch(opened.weights.clone()) };
    let quiet = run.verbosity == Verbosity::Quiet;
    let mut progress = Bar::new("loading", quiet);
    let signals = interrupt.clone();
    let loading = Box::new(move |done, total| {
        progress.update(done, total);
        !signals.is_requested()
    });
    let tell = Box::new(|sentence: &str| eprintln!("{sentence}"));
    let step = served.step;
    Ok(ServingEngine::start(ServingOptions { plan, launch, forms, step, loading, tell })?)
}

/// What a sampler follows of what was asked for, in the model's tokens.
fn form_of(grammars: Grammars, codec: Arc<ProcessCodec>) -> Arc<FormOf> {
    Arc::new(move |grammar| grammars.form(grammar.clone(), |text| codec.part(text)))
}

/// The run as the planner sees it: a job of as many sequences as there are slots, each as long as
/// the context.
fn asked(run: &Run, opened: &Opened, served: Served) -> anyhow::Result<(Run, Demand)> {
    let most = opened.config.max_positions;
    let context = served.context.map_or(most, |context| context as usize);
    if context > most {
        let sentence = format!("--context {context}: the model has {most} positions");
        return Err(Usage(sentence).into());
    }
    let mut run = run.clone();
    run.batches = served.slots.map(|size| BatchesChoice::Given(Batches { count: 1, size }));
    let slots = served.slots.unwrap_or(SLOTS);
    let rows = run.prefill_chunk.unwrap_or(STEP_ROWS).max(u32::from(slots));
    run.prefill_chunk = Some(rows);
    let demand = Demand {
        sequences: usize::from(slots),
        max_prompt: context - 1,
        shared_prompt: 0,
        max_new: context as u32 - 1,
        max_context: context,
        logprobs: LOGPROBS,
        forms: false,
    };
    Ok((run, demand))
}

/// The same placement as a run that serves.
fn serving(plan: &Plan) -> anyhow::Result<Plan> {
    let shape = RunShape { serves: true, micro_sequences: 1, shared_prompt: 0, ..plan.shape };
    let plan =
        compile(&plan.config, &shape, &plan.map).context("the chosen placement cannot serve")?;
    program::validate::validate(&plan)
        .context("the compiled program is not safe to run; this is a defect, please report it")?;
    Ok(plan)
}
