//! Draft model of a serving run: a smaller model with the same vocabulary, or the model's layer for
//! multi-token prediction, which the worker that samples computes on the CPU.

use anyhow::Context;
use engine::serving::draft_obstacle;
use model::config::ModelConfig;
use planner::budget::{Budget, MemoryLimits};
use planner::policy::{DefaultTiers, Formats, Policy, device_map};
use program::compile::{CompileError, compile, footprint};
use program::formats::KvFormat;
use program::map::DeviceMap;
use program::plan::RunShape;
use program::topology::MemoryId;
use protocol::messages::DraftModelSetup;

use super::argument_error::ArgumentError;
use super::formats::resolve_weight_formats;
use super::model::ModelHandle;
use super::page_size::page_positions_of;
use super::plan_request::dram_bytes;
use crate::session::Session;

/// Number of rows of a step of the draft model.
const STEP_ROWS: u32 = 512;

/// Sizes of a draft model's caches.
#[derive(Debug, Clone, Copy)]
pub(super) struct DraftCaches {
    /// Number of slots of the run.
    pub(super) slots: u16,
    /// Maximum number of positions of a sequence.
    pub(super) context: u32,
    /// Number of positions per slot, whose caches all slots share.
    pub(super) slot_positions: u32,
    /// Positions of a page.
    pub(super) page_positions: u32,
}

/// A draft model whose files were read, except for its weights.
pub(super) struct DraftModel {
    /// Option on the command line.
    option: String,
    model: ModelHandle,
}

impl DraftModel {
    /// Opens the draft model of a session; `None` if it has none.
    ///
    /// # Errors
    /// A model that cannot be read, or whose vocabulary is another one.
    pub(super) fn open(session: &Session<'_>) -> anyhow::Result<Option<DraftModel>> {
        if session.options.uses_prediction_layer {
            let option = "--speculate mtp".to_owned();
            let model = session.model.prediction_layer()?;
            return Ok(Some(DraftModel { option, model }));
        }
        let Some(choice) = &session.options.draft_model else { return Ok(None) };
        let option = format!("--draft-model {}", choice.name);
        let mut model =
            ModelHandle::open(choice, session.options.seed).with_context(|| option.clone())?;
        check_can_draft(&model.config).with_context(|| option.clone())?;
        model.config.layers.set_draft_positions(session.options.max_drafts as usize);
        check_vocabulary(session.model, &model).with_context(|| option.clone())?;
        Ok(Some(DraftModel { option, model }))
    }

    /// Returns the session without the memory that the draft model takes.
    ///
    /// # Errors
    /// Insufficient memory, or a model that cannot be compiled.
    pub(super) fn reserve_memory<'m>(
        &self,
        session: &Session<'m>,
        caches: DraftCaches,
        limits: &MemoryLimits,
    ) -> anyhow::Result<Session<'m>> {
        let (shape, map) = (self.shape(session, caches), self.map(session));
        let found = footprint(&self.model.config, &shape, &map, None);
        let draft_bytes = Budget::from(self.named(found)?).dram_bytes(limits);
        let draft_bytes = draft_bytes + self.hidden_bytes(&shape);
        let all_bytes = dram_bytes(session);
        let Some(dram_bytes) = all_bytes.checked_sub(draft_bytes) else {
            let mib = |bytes: u64| bytes.div_ceil(1 << 20);
            let sentence = format!(
                "{}: it requires {} MiB of {} MiB of host memory. Use fewer --slots, a smaller \
                 --context, or other drafts",
                self.option,
                mib(draft_bytes),
                mib(all_bytes)
            );
            return Err(ArgumentError(sentence).into());
        };
        let mut session = session.clone();
        session.options.dram_bytes = Some(dram_bytes);
        Ok(session)
    }

    /// Returns the setup of the draft model for a run.
    ///
    /// # Errors
    /// A model that cannot draft.
    pub(super) fn setup(
        &self,
        session: &Session<'_>,
        caches: DraftCaches,
        threads: u16,
    ) -> anyhow::Result<DraftModelSetup> {
        let compiled =
            compile(&self.model.config, &self.shape(session, caches), &self.map(session));
        let plan = self.named(compiled)?;
        if let Some(obstacle) = draft_obstacle(&plan, session.options.max_drafts) {
            let sentence = format!("{} is not possible: {obstacle}", self.option);
            return Err(ArgumentError(sentence).into());
        }
        program::validate::validate(&plan)
            .context("the program of the draft model is not safe to run; please report it")?;
        Ok(DraftModelSetup { plan, weights: self.model.weights.clone(), threads })
    }

    /// Returns the result with the draft model named in its error.
    fn named<T>(&self, result: Result<T, CompileError>) -> anyhow::Result<T> {
        result.with_context(|| self.option.clone())
    }

    /// Returns the number of bytes of the hidden states that the model reads.
    fn hidden_bytes(&self, shape: &RunShape) -> u64 {
        if !self.model.config.features.hidden_states.are_joined() {
            return 0;
        }
        let positions = u64::from(shape.kv_pages) * u64::from(shape.page_positions);
        positions * (self.model.config.hidden_size * shape.dtype.size_bytes()) as u64
    }

    /// Returns the shape of the draft model's run, whose slots share the pages of its caches.
    fn shape(&self, session: &Session<'_>, caches: DraftCaches) -> RunShape {
        let DraftCaches { slots, context, slot_positions, page_positions } = caches;
        let page_positions = page_positions_of(&self.model.config, page_positions);
        let max_positions = u32::try_from(self.model.config.max_positions).unwrap_or(u32::MAX);
        let context = context.min(max_positions);
        let slot_pages = slot_positions.min(context).div_ceil(page_positions);
        RunShape {
            batches: 1,
            batch_size: slots,
            max_prompt: context,
            shared_prompt: 0,
            max_context: context,
            max_new: context,
            logprobs: 0,
            micro_sequences: 1,
            prefill_chunk: STEP_ROWS.max(slots.into()),
            serves: true,
            page_positions,
            kv_pages: u32::from(slots) * slot_pages,
            checkpoints: 0,
            logits_rows: slots.into(),
            device_slots: 0,
            dtype: session.options.dtype,
        }
    }

    /// Returns the map of the draft model: all of it is on the CPU.
    fn map(&self, session: &Session<'_>) -> DeviceMap {
        let tiers = DefaultTiers { kv: MemoryId::DRAM, prefill_hidden: MemoryId::DRAM };
        let mut map = device_map(&Policy::CpuOnly, &self.model.config, true, tiers);
        let mut weights = resolve_weight_formats(&self.model, session.options.quantized, false);
        weights.activations = session.options.activations;
        Formats { weights, kv: KvFormat::Plain, kv_select: None }.apply(&mut map);
        map
    }
}

/// Checks that the tokens of a draft model are those of the model.
fn check_vocabulary(model: &ModelHandle, draft: &ModelHandle) -> anyhow::Result<()> {
    let (Some(own), Some(other)) = (model.codec()?, draft.codec()?) else {
        return Ok(check_sizes(&model.config, &draft.config)?);
    };
    let (own, other) = (own.token_bytes()?, other.token_bytes()?);
    let differing = own.iter().zip(&other).position(|(own, other)| own != other);
    if let Some(token) = differing {
        let text = |words: &[Vec<u8>]| String::from_utf8_lossy(&words[token]).into_owned();
        anyhow::bail!(
            "its token {token} is {:?}, but that of the model is {:?}; a draft model must have the \
             model's tokenizer",
            text(&other),
            text(&own)
        );
    }
    Ok(())
}

/// Checks that a model can draft: a draft depends on earlier ones, which a state would contain.
///
/// # Errors
/// A model with states.
pub(super) fn check_can_draft(draft: &ModelConfig) -> Result<(), ArgumentError> {
    if !draft.layers.has_states() {
        return Ok(());
    }
    let sentence =
        "the model has layers with a recurrent state, which cannot draft; use one without";
    Err(ArgumentError(sentence.to_owned()))
}

/// Checks the numbers of tokens of a model and of one that drafts for it.
///
/// # Errors
/// Different numbers.
pub(super) fn check_sizes(model: &ModelConfig, draft: &ModelConfig) -> Result<(), ArgumentError> {
    let (expected, found) = (model.vocab_size, draft.vocab_size);
    if expected == found {
        return Ok(());
    }
    Err(ArgumentError(format!(
        "its vocabulary has {found} tokens, that of {} {expected}; use a model with the same \
         tokenizer",
        model.name
    )))
}
