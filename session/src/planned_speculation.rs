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
use super::draft_model::{check_can_draft, check_sizes};
use super::machine_plan::{self, MachinePlanner};
use crate::request::{PlanWorkload, PlannedDrafter, PlannedSpeculation};
use crate::values::{Batches, BatchesChoice, CompressChoice};

/// Costs of a source of drafts.
#[derive(Debug, Clone, Copy, Default)]
struct DrafterCosts {
    /// Duration of a step, which drafts a token of every sequence.
    step_ns: f64,
    /// Duration of the prompts of all sequences.
    prefill_ns: f64,
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
        let drafter = self.drafter_costs(&speculation.drafter, &plan.shape)?;
        let formats = Formats {
            weights: plan.map.weight_formats.clone(),
            kv: plan.map.kv_format,
            kv_select: None,
        };
        let assumed = AssumedDrafts {
            acceptance: speculation.acceptance,
            max_drafts: speculation.max_drafts,
            draft_step_ns: drafter.step_ns,
            draft_prefill_ns: drafter.prefill_ns,
        };
        let dram_bytes = self.limits.dram_bytes.saturating_sub(drafter.dram_bytes);
        let within_rest = self.with_limits(MemoryLimits { dram_bytes, ..self.limits });
        let (batches, batch_size) = (plan.shape.batches, plan.shape.batch_size);
        let found = within_rest.with_question(&formats, batch_size, |question| {
            let question = SearchRequest { batches, batch_size, ..question };
            choose_drafts(&question, &self.machine.description, plan, &assumed)
        });
        found.with_context(|| {
            let mib = |bytes: u64| bytes.div_ceil(1 << 20);
            format!(
                "with {} MiB of {} MiB of host memory for what drafts",
                mib(drafter.dram_bytes),
                mib(self.limits.dram_bytes)
            )
        })
    }

    /// Returns the costs of a source of drafts for as many sequences as a run has.
    fn drafter_costs(
        &self,
        drafter: &PlannedDrafter,
        run: &RunShape,
    ) -> anyhow::Result<DrafterCosts> {
        match drafter {
            PlannedDrafter::Free => Ok(DrafterCosts::default()),
            PlannedDrafter::Model(choice) => {
                let open = || {
                    let model = choice.clone();
                    let workload = PlanWorkload { model, ..self.workload.clone() };
                    let draft_model = machine_plan::open(&workload)?.config;
                    check_can_draft(&draft_model)?;
                    check_sizes(self.config, &draft_model)?;
                    self.cpu_costs(&draft_model, run)
                };
                open().with_context(|| format!("--draft-model {}", choice.name))
            }
            PlannedDrafter::PredictionLayer => {
                let layer = self.config.prediction_model().ok_or_else(|| {
                    ArgumentError(format!(
                        "{} has no layer for multi-token prediction that is supported; use \
                         --speculate ngram or --draft-model",
                        self.config.name
                    ))
                });
                layer
                    .map_err(anyhow::Error::from)
                    .and_then(|layer| self.cpu_costs(&layer, run))
                    .context("--speculate mtp")
            }
        }
    }

    /// Returns the costs of a model on the CPU that drafts.
    fn cpu_costs(&self, config: &ModelConfig, run: &RunShape) -> anyhow::Result<DrafterCosts> {
        let sequences = u32::from(run.batches) * u32::from(run.batch_size);
        let size = u16::try_from(sequences).with_context(|| {
            format!(
                "{sequences} sequences, at most {} can be drafted for; use smaller --batches",
                u16::MAX
            )
        })?;
        let workload = PlanWorkload {
            compress: Some(CompressChoice::None),
            batches: BatchesChoice::Fixed(Batches { count: 1, size }),
            policy: PolicyName::CpuOnly,
            chunking: None,
            routing: None,
            speculation: None,
            ..self.workload.clone()
        };
        let planner = MachinePlanner::new(&workload, self.machine, config);
        let (chosen, _) = planner.choose_placement()?;
        let dram_bytes = Budget::from_plan(&chosen.plan).dram_bytes(&planner.limits);
        let (step_ns, prefill_ns) = (chosen.steady.step_ns(), chosen.predicted.prefill_ns);
        Ok(DrafterCosts { step_ns, prefill_ns, dram_bytes })
    }
}
