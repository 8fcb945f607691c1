//! Predicted gain of speculative decoding, shown after the plan without it.

use std::fmt::Write;

use planner::search::SearchResult;
use planner::speculation::{DraftedStep, SpeculativePlan};
use report::placement::{format_device_contents, format_gpu_ops};
use report::plain_table::{plain_table, right_aligned};
use serde_json::{Value, json};
use session::request::{PlannedDrafter, PlannedSpeculation};

/// A prediction, and what it is compared with.
pub(super) struct DraftsOutput<'a> {
    pub(super) assumed: &'a PlannedSpeculation,
    /// The plan without drafts.
    pub(super) chosen: &'a SearchResult,
    pub(super) found: SpeculativePlan,
}

impl DraftsOutput<'_> {
    /// Returns the source of drafts, as part of a sentence.
    fn source(&self) -> String {
        match &self.assumed.drafter {
            PlannedDrafter::Free => "drafts take no time".to_owned(),
            PlannedDrafter::Model(model) => format!("{} drafts on the CPU", model.name),
            PlannedDrafter::PredictionLayer => {
                "the layer for multi-token prediction drafts on the CPU".to_owned()
            }
        }
    }

    pub(super) fn text(&self) -> String {
        let SpeculativePlan { search_result, step, compared, .. } = &self.found;
        let plan = &search_result.plan;
        let (_, in_decode) = format_gpu_ops(&plan.map, &plan.config);
        let device = format_device_contents(&plan.map)
            .map_or_else(String::new, |contents| format!("; in device memory: {contents}"));
        let mut text = format!(
            "\nspeculative decoding, if {} and each draft is accepted with probability {:.2} once \
             those before it are\nits placement: {}; GPU in decode: {in_decode}{device}\n",
            self.source(),
            self.assumed.acceptance,
            search_result.name.name(),
        );
        let mut table = plain_table();
        table.set_header(["drafts", "step ms", "tokens a step", "ms a token"]);
        for step in compared {
            table.add_row([
                step.drafts.to_string(),
                format!("{:.1}", step.ns / 1e6),
                format!("{:.2}", step.tokens),
                format!("{:.1}", ms_per_token(step)),
            ]);
        }
        right_aligned(&mut table, 0..4);
        let _ = writeln!(text, "{table}");
        let _ = writeln!(
            text,
            "{} drafts a step: {:.2} tokens/s, {:.2} x without drafts",
            step.drafts,
            self.found.tokens_per_s(),
            self.found.gain(self.chosen)
        );
        text
    }

    pub(super) fn json(&self) -> Value {
        let SpeculativePlan { search_result, step, compared, .. } = &self.found;
        let plan = &search_result.plan;
        json!({
            "acceptance": self.assumed.acceptance, "max_drafts": self.assumed.max_drafts,
            "source": self.source(),
            "drafts": step.drafts, "policy": search_result.name.name(),
            "gpu": format_gpu_ops(&plan.map, &plan.config).1,
            "resident": format_device_contents(&plan.map),
            "step_ms": step.ns / 1e6, "tokens_per_step": step.tokens,
            "tokens_per_s": self.found.tokens_per_s(), "gain": self.found.gain(self.chosen),
            "compared": compared.iter().map(step_json).collect::<Vec<_>>(),
        })
    }
}

fn ms_per_token(step: &DraftedStep) -> f64 {
    step.ns / 1e6 / step.tokens
}

fn step_json(step: &DraftedStep) -> Value {
    json!({
        "drafts": step.drafts, "step_ms": step.ns / 1e6, "tokens_per_step": step.tokens,
        "ms_per_token": ms_per_token(step),
    })
}
