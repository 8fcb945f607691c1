//! Predicted gain of speculative decoding on a described machine.

use anyhow::Context;
use model::config::ModelConfig;
use planner::budget::{Budget, MemoryLimits};
use planner::policy::Formats;
use planner::policy::name::PolicyName;
use planner::search::{SearchRequest, SearchResult};
use planner::speculation::{AssumedDrafts, SpeculativePlan, choose_drafts};
use program::plan::RunShape;

use super::argument_error::ArgumentError;
use super::machine_plan::{self, MachinePlanner};
use crate::request::{ModelChoice, PlanWorkload, PlannedSpeculation};
use crate::values::{Batches, BatchesChoice, CompressChoice};

/// Costs of a draft model.
#[derive(Debug, Clone, Copy, Default)]
struct DraftModelCosts {
    /// Duration of a step, which drafts a token of every sequence.
    step_ns: f64,
    /// Host memory for its weights and caches.
    dram_bytes: u64,
}

impl MachinePlanner<'_> {
    /// Returns the fastest decoding with the drafts of a speculation, for the batches and formats
    /// of a plan without drafts, by the machine's described rates.
    ///
    /// # Errors
    /// A draft model that cannot be read or does not suit the model, or nothing fits next to it.
    pub fn choose_drafts(
        &self,
        chosen: &SearchResult,
        speculation: &PlannedSpeculation,
    ) -> anyhow::Result<SpeculativePlan> {
        let plan = &chosen.plan;
        let draft_model = match &speculation.draft_model {
            Some(model) => self
                .draft_model_costs(model, &plan.shape)
                .with_context(|| format!("--draft-model {}", model.name))?,
            None => DraftModelCosts::default(),
        };
        let formats = Formats {
            weights: plan.map.weight_formats.clone(),
            kv: plan.map.kv_format,
            kv_select: None,
        };
        let assumed = AssumedDrafts {
            acceptance: speculation.acceptance,
            max_drafts: speculation.max_drafts,
            draft_step_ns: draft_model.step_ns,
        };
        let dram_bytes = self.limits.dram_bytes.saturating_sub(draft_model.dram_bytes);
        let beside = self.with_limits(MemoryLimits { dram_bytes, ..self.limits });
        let (batches, batch_size) = (plan.shape.batches, plan.shape.batch_size);
        let found = beside.with_question(&formats, batch_size, |question| {
            let question = SearchRequest { batches, batch_size, ..question };
            choose_drafts(&question, &self.machine.description, plan, &assumed)
        });
        Ok(found?)
    }

    /// Returns the costs of a draft model that runs on the CPU, for as many sequences as a run has.
    fn draft_model_costs(
        &self,
        draft_model: &ModelChoice,
        run: &RunShape,
    ) -> anyhow::Result<DraftModelCosts> {
        let sequences = u32::from(run.batches) * u32::from(run.batch_size);
        let size = u16::try_from(sequences).context("too many sequences for a draft model")?;
        let workload = PlanWorkload {
            model: draft_model.clone(),
            compress: Some(CompressChoice::None),
            batches: BatchesChoice::Fixed(Batches { count: 1, size }),
            policy: PolicyName::CpuOnly,
            chunking: None,
            routing: None,
            speculation: None,
            ..self.workload.clone()
        };
        let model = machine_plan::open(&workload)?;
        check_suits(self.config, &model.config)?;
        let planner = MachinePlanner::new(&workload, self.machine, &model.config);
        let (chosen, _) = planner.choose_placement()?;
        let dram_bytes = Budget::from_plan(&chosen.plan).dram_bytes(&planner.limits);
        Ok(DraftModelCosts { step_ns: chosen.steady.step_ns(), dram_bytes })
    }
}

/// Checks that a model can draft for another one, as far as configurations tell.
fn check_suits(model: &ModelConfig, draft_model: &ModelConfig) -> Result<(), ArgumentError> {
    let refusal = |reason: String| Err(ArgumentError(reason));
    if draft_model.layers.has_states() {
        return refusal("the model has layers with a recurrent state, which cannot draft".into());
    }
    let (own, other) = (model.vocab_size, draft_model.vocab_size);
    if own != other {
        return refusal(format!(
            "its vocabulary has {other} tokens, that of {} {own}; choose a model with the same \
             tokenizer",
            model.name
        ));
    }
    Ok(())
}
