//! Placement of a model and a workload on a described machine.

use std::path::Path;

use anyhow::Context;
use model::config::ModelConfig;
use model::config_json::check_context;
use planner::budget::{MemoryLimits, PlacementRequest, PlanError, Storage};
use planner::machine::{Machine, bundled_names, find_bundled};
use planner::policy::{Formats, Placement, Policy};
use planner::search::{
    SearchEffort, SearchError, SearchRequest, SearchResult, best_batches, choose,
};
use program::formats::KvFormat;

use super::argument_error::ArgumentError;
use super::auto_batches::MAX_BATCH_SIZE;
use super::formats;
use super::measured_machine::MeasuredMachine;
use super::model::ModelHandle;
use crate::request::PlanWorkload;
use crate::values::{Batches, BatchesChoice, CompressChoice};

/// Lossy compressions of weights and KV, which are compared if nothing fits without. Caches of 8
/// bits are not among them: a machine that is described has a device, whose kernels do not read
/// them.
const LOSSY: [CompressChoice; 3] = [CompressChoice::W4, CompressChoice::Kv4, CompressChoice::W4kv4];

/// Hint for a user who asks `plan` for more positions than a model has.
pub const MORE_POSITIONS: &str = "Use --positions N to plan as if it had N.";

/// Opens the model and checks that its context is long enough.
///
/// # Errors
/// A model that cannot be opened, or whose context is too short.
pub fn open(workload: &PlanWorkload) -> anyhow::Result<ModelHandle> {
    let model = ModelHandle::open(&workload.model, 0)?;
    let context = (workload.prompt_len + workload.gen_len) as usize;
    check_context(&model.config, context)
        .map_err(|error| ArgumentError(format!("{error} {MORE_POSITIONS}")))?;
    Ok(model)
}

/// Returns the description of a machine by name or from a file. `option` is the flag that errors
/// mention.
///
/// # Errors
/// Neither a file nor a known machine, or a file that is no valid description.
pub fn load_machine(option: &str, name: &str) -> anyhow::Result<Machine> {
    let path = Path::new(name);
    let read = || format!("{option} {name}");
    match find_bundled(name) {
        Some(machine) if !path.exists() => Ok(machine?),
        _ if path.exists() => {
            let text = std::fs::read_to_string(path).with_context(read)?;
            Machine::from_toml(&text).with_context(read)
        }
        _ => {
            let known: Vec<&str> = bundled_names().collect();
            let known = known.join(", ");
            Err(ArgumentError(format!(
                "{option} {name}: there is no such file and no built-in machine with this name; \
                 built-in machines are {known}"
            ))
            .into())
        }
    }
}

fn limits(machine: &Machine) -> MemoryLimits {
    MemoryLimits {
        dram_bytes: machine.dram_bytes(),
        vram_bytes: Some(machine.vram_bytes()),
        vram_is_dram: false,
        slow_tier_bytes: machine.slow_tier_bytes(),
        device_scratch: None,
    }
}

/// A model and a workload on a machine.
#[derive(Debug)]
pub struct MachinePlanner<'a> {
    pub workload: &'a PlanWorkload,
    pub machine: &'a MeasuredMachine,
    pub config: &'a ModelConfig,
    pub limits: MemoryLimits,
    /// Drives of the machine, which are read if memory is insufficient.
    storage: Option<Storage>,
}

impl<'a> MachinePlanner<'a> {
    /// Creates the planning for a machine with the limits and drives of its description.
    pub fn new(
        workload: &'a PlanWorkload,
        machine: &'a MeasuredMachine,
        config: &'a ModelConfig,
    ) -> MachinePlanner<'a> {
        let description = &machine.description;
        let reads_directly = description.reads_directly();
        let storage = description.read_shares().map(Storage::auto);
        let storage = storage.map(|storage| storage.with_direct_reads(reads_directly));
        let limits = limits(description);
        MachinePlanner { workload, machine, config, limits, storage }
    }
}

impl MachinePlanner<'_> {
    /// Returns the planning of the same workload within other limits.
    pub(crate) fn with_limits(&self, limits: MemoryLimits) -> MachinePlanner<'_> {
        MachinePlanner { limits, storage: self.storage.clone(), ..*self }
    }

    /// Returns the best placement with the requested compression. If none was requested, that is
    /// the lossless one if it fits, otherwise the fastest lossy one, together with a sentence about
    /// it.
    ///
    /// # Errors
    /// Nothing fits. The error is that of the compression that fits the largest batch.
    pub fn choose_placement(&self) -> anyhow::Result<(SearchResult, Option<String>)> {
        let requested = self.workload.compress;
        let mut refusal =
            match self.choose_for_compression(requested.unwrap_or(CompressChoice::None))? {
                Ok(chosen) => return Ok((chosen, None)),
                Err(refusal) => refusal,
            };
        let mut best: Option<(CompressChoice, SearchResult)> = None;
        let can_compress_kv = formats::can_compress_kv(self.config);
        let is_possible =
            |form: &CompressChoice| can_compress_kv || form.kv_format() == KvFormat::Plain;
        for form in LOSSY.into_iter().filter(|form| requested.is_none() && is_possible(form)) {
            match self.choose_for_compression(form)? {
                Ok(chosen) => {
                    let rate = chosen.tokens_per_s();
                    let is_better = |best: &SearchResult| rate > best.tokens_per_s();
                    if best.as_ref().is_none_or(|(_, best)| is_better(best)) {
                        best = Some((form, chosen));
                    }
                }
                Err(other) if max_fitting_batch(&other) > max_fitting_batch(&refusal) => {
                    refusal = other
                }
                Err(_) => {}
            }
        }
        match best {
            Some((form, chosen)) => Ok((chosen, Some(compression_note(form)))),
            None => Err(anyhow::Error::from(refusal)
                .context(format!("nothing fits {}", self.machine.description.name))),
        }
    }

    /// Returns the best placement with a compression, or the reason why none fits.
    fn choose_for_compression(
        &self,
        compression: CompressChoice,
    ) -> anyhow::Result<Result<SearchResult, PlanError>> {
        let formats = formats::formats_for_choice(self.config, compression);
        let batches = match self.workload.batches {
            BatchesChoice::Fixed(batches) => batches,
            BatchesChoice::Auto => {
                self.choose_batches(&formats).unwrap_or(Batches { count: 1, size: 1 })
            }
        };
        match self.choose(&formats, batches) {
            Ok(chosen) => Ok(Ok(chosen)),
            Err(SearchError::Plan(refusal @ PlanError::DoesNotFit { .. })) => Ok(Err(refusal)),
            Err(error) => Err(error.into()),
        }
    }

    fn choose(&self, formats: &Formats, batches: Batches) -> Result<SearchResult, SearchError> {
        self.with_question(formats, batches.size, |question| {
            choose(&SearchRequest { batches: batches.count, batch_size: batches.size, ..question })
        })
    }

    /// Returns the batches with the highest predicted throughput; `None` if not even one sequence
    /// fits.
    fn choose_batches(&self, formats: &Formats) -> Option<Batches> {
        let best = self.with_question(formats, 1, |question| {
            best_batches(&question, usize::MAX, MAX_BATCH_SIZE)
        });
        best.map(|(count, size)| Batches { count, size })
    }

    /// Calls `then` with a question about one sequence, in which attention may be split as batches
    /// of `batch_size` sequences allow.
    pub(crate) fn with_question<T>(
        &self,
        formats: &Formats,
        batch_size: u16,
        then: impl FnOnce(SearchRequest<'_>) -> T,
    ) -> T {
        let placement = Placement::from_policy(Policy::GpuOnly);
        let request = self.plan_request(&placement, formats);
        let chunkings = match self.workload.chunking {
            Some(chunking) => vec![chunking],
            None => self.machine.chunkings(self.config, batch_size),
        };
        let chunkings: Vec<_> =
            std::iter::once(None).chain(chunkings.into_iter().map(Some)).collect();
        then(SearchRequest {
            request: &request,
            batches: 1,
            batch_size: 1,
            policy: self.workload.policy,
            chunkings: &chunkings,
            pricing: self.machine,
            effort: SearchEffort::Full,
            rehearser: self.machine.rehearsals(),
        })
    }

    fn plan_request<'b>(
        &'b self,
        placement: &'b Placement,
        formats: &'b Formats,
    ) -> PlacementRequest<'b> {
        let workload = self.workload;
        PlacementRequest {
            config: self.config,
            placement,
            formats,
            fuse_attention: true,
            dtype: workload.dtype,
            max_prompt: workload.prompt_len,
            shared_prompt: 0,
            max_context: workload.prompt_len + workload.gen_len,
            max_new: workload.gen_len,
            logprobs: 0,
            prefill_chunk: None,
            limits: &self.limits,
            storage: self.storage.as_ref(),
            routing: self.workload.routing.as_deref(),
        }
    }
}

fn max_fitting_batch(refusal: &PlanError) -> Option<u16> {
    match refusal {
        PlanError::DoesNotFit { fitting, .. } => *fitting,
        PlanError::Compile(_) | PlanError::NotOnDevice { .. } => None,
    }
}

fn compression_note(compression: CompressChoice) -> String {
    let what = formats::storage_clause(compression).unwrap_or("nothing is compressed");
    format!(
        "Nothing fits uncompressed, so {what} (--compress {}), the fastest compression that fits; \
         --compress none fails and reports the sizes.",
        compression.name()
    )
}
