//! Placement of a model and a workload on a described machine.

use std::path::Path;

use anyhow::Context;
use model::config::ModelConfig;
use model::config_json::check_context;
use planner::budget::{Limits, PlanError, Request, Storage};
use planner::machine::{Machine, known, names};
use planner::policy::{Formats, Placement, Policy};
use planner::priced::{ChooseError, Chosen, Effort, Question, best_batches, choose};

use super::auto_batches::SIZE_MAX;
use super::formats;
use super::measured_machine::MeasuredMachine;
use super::model::Opened;
use super::usage::Usage;
use crate::cli::request::Described;
use crate::cli::values::{Batches, BatchesChoice, CompressChoice};

/// Lossy compressions of weights and KV, which are compared if nothing fits without.
const LOSSY: [CompressChoice; 3] = [CompressChoice::W4, CompressChoice::Kv4, CompressChoice::W4kv4];

/// Hint for a user who asks `plan` for more positions than a model has.
pub(crate) const MORE_POSITIONS: &str = "Use --positions N to plan as if it had N.";

/// Opens the model and checks that its context is long enough.
///
/// # Errors
/// A model that cannot be opened, or whose context is too short.
pub(crate) fn open(described: &Described) -> anyhow::Result<Opened> {
    let opened = Opened::open(&described.model, 0)?;
    let context = (described.prompt_len + described.gen_len) as usize;
    check_context(&opened.config, context)
        .map_err(|error| Usage(format!("{error} {MORE_POSITIONS}")))?;
    Ok(opened)
}

/// Returns the description of a machine by name or from a file. `option` is the flag that errors
/// mention.
///
/// # Errors
/// Neither a file nor a known machine, or a file that is no valid description.
pub(crate) fn machine(option: &str, name: &str) -> anyhow::Result<Machine> {
    let path = Path::new(name);
    let read = || format!("{option} {name}");
    match known(name) {
        Some(machine) if !path.exists() => Ok(machine?),
        _ if path.exists() => {
            let text = std::fs::read_to_string(path).with_context(read)?;
            Machine::from_toml(&text).with_context(read)
        }
        _ => {
            let known: Vec<&str> = names().collect();
            let known = known.join(", ");
            Err(Usage(format!(
                "{option} {name}: there is no such file and no built-in machine with this name; \
                 built-in machines are {known}"
            ))
            .into())
        }
    }
}

fn limits(machine: &Machine) -> Limits {
    Limits {
        dram_bytes: machine.dram_bytes(),
        vram_bytes: Some(machine.vram_bytes()),
        vram_is_dram: false,
        far_bytes: machine.far_bytes(),
        device_scratch: None,
    }
}

/// A model and a workload on a machine.
pub(crate) struct Planning<'a> {
    pub(crate) described: &'a Described,
    pub(crate) machine: &'a MeasuredMachine,
    pub(crate) config: &'a ModelConfig,
    pub(crate) limits: Limits,
    /// Drives of the machine, which are read if memory is insufficient.
    storage: Option<Storage>,
}

impl<'a> Planning<'a> {
    /// Creates the planning for a machine with the limits and drives of its description.
    pub(crate) fn new(
        described: &'a Described,
        machine: &'a MeasuredMachine,
        config: &'a ModelConfig,
    ) -> Planning<'a> {
        let description = &machine.description;
        let directly = description.reads_directly();
        let storage = description.read_shares().map(Storage::auto);
        let storage = storage.map(|storage| storage.reading_directly(directly));
        let limits = limits(description);
        Planning { described, machine, config, limits, storage }
    }
}

impl Planning<'_> {
    /// Returns the best placement with the requested compression. If none was requested, that is
    /// the lossless one if it fits, otherwise the fastest lossy one, together with a sentence about
    /// it.
    ///
    /// # Errors
    /// Nothing fits. The error is that of the compression that fits the largest batch.
    pub(crate) fn best(&self) -> anyhow::Result<(Chosen, Option<String>)> {
        let requested = self.described.compress;
        let mut refusal = match self.chosen(requested.unwrap_or(CompressChoice::None))? {
            Ok(chosen) => return Ok((chosen, None)),
            Err(refusal) => refusal,
        };
        let mut best: Option<(CompressChoice, Chosen)> = None;
        for form in LOSSY.into_iter().filter(|_| requested.is_none()) {
            match self.chosen(form)? {
                Ok(chosen) => {
                    let rate = chosen.tokens_per_s();
                    let is_better = |best: &Chosen| rate > best.tokens_per_s();
                    if best.as_ref().is_none_or(|(_, best)| is_better(best)) {
                        best = Some((form, chosen));
                    }
                }
                Err(other) if fitting(&other) > fitting(&refusal) => refusal = other,
                Err(_) => {}
            }
        }
        match best {
            Some((form, chosen)) => Ok((chosen, Some(note(form)))),
            None => Err(anyhow::Error::from(refusal)
                .context(format!("nothing fits {}", self.machine.description.name))),
        }
    }

    /// Returns the best placement with a compression, or the reason why none fits.
    fn chosen(&self, form: CompressChoice) -> anyhow::Result<Result<Chosen, PlanError>> {
        let formats = formats::of_choice(self.config, form);
        let batches = match self.described.batches {
            BatchesChoice::Given(batches) => batches,
            BatchesChoice::Auto => self.batches(&formats).unwrap_or(Batches { count: 1, size: 1 }),
        };
        match self.choose(&formats, batches) {
            Ok(chosen) => Ok(Ok(chosen)),
            Err(ChooseError::Plan(refusal @ PlanError::DoesNotFit { .. })) => Ok(Err(refusal)),
            Err(error) => Err(error.into()),
        }
    }

    fn choose(&self, formats: &Formats, batches: Batches) -> Result<Chosen, ChooseError> {
        self.with_question(formats, batches.size, |question| {
            choose(&Question { batches: batches.count, batch_size: batches.size, ..question })
        })
    }

    /// Returns the batches with the highest predicted throughput; `None` if not even one sequence
    /// fits.
    fn batches(&self, formats: &Formats) -> Option<Batches> {
        let best = self
            .with_question(formats, 1, |question| best_batches(&question, usize::MAX, SIZE_MAX));
        best.map(|(count, size)| Batches { count, size })
    }

    /// Calls `then` with a question about one sequence, in which attention may be split as batches
    /// of `batch_size` sequences allow.
    fn with_question<T>(
        &self,
        formats: &Formats,
        batch_size: u16,
        then: impl FnOnce(Question<'_>) -> T,
    ) -> T {
        let placement = Placement::of(Policy::GpuOnly);
        let request = self.request(&placement, formats);
        let chunkings = match self.described.chunking {
            Some(chunking) => vec![chunking],
            None => self.machine.chunkings(self.config, batch_size),
        };
        let chunkings: Vec<_> =
            std::iter::once(None).chain(chunkings.into_iter().map(Some)).collect();
        then(Question {
            request: &request,
            batches: 1,
            batch_size: 1,
            policy: self.described.policy,
            chunkings: &chunkings,
            pricing: self.machine,
            effort: Effort::Full,
            stage: self.machine.rehearsals(),
        })
    }

    fn request<'b>(&'b self, placement: &'b Placement, formats: &'b Formats) -> Request<'b> {
        let described = self.described;
        Request {
            config: self.config,
            placement,
            formats,
            fuse_attention: true,
            dtype: described.dtype,
            max_prompt: described.prompt_len,
            shared_prompt: 0,
            max_context: described.prompt_len + described.gen_len,
            max_new: described.gen_len,
            logprobs: 0,
            prefill_chunk: None,
            limits: &self.limits,
            storage: self.storage.as_ref(),
        }
    }
}

fn fitting(refusal: &PlanError) -> Option<u16> {
    match refusal {
        PlanError::DoesNotFit { fitting, .. } => *fitting,
        PlanError::Compile(_) => None,
    }
}

fn note(form: CompressChoice) -> String {
    let what = match (form.weights(), form.kv()) {
        (true, true) => "Weights and KV are stored",
        (true, false) => "Weights are stored",
        _ => "KV is stored",
    };
    format!(
        "Nothing fits uncompressed. {what} in 4 bits (--compress {}), the fastest compression that \
         fits; --compress none fails and reports the sizes.",
        form.name()
    )
}
