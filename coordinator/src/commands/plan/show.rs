//! Output of `coordinator plan` for any machine: text, JSON or a chart file.

use std::fmt::Write;
use std::path::Path;

use planner::budget::{Budget, MemoryLimits, pinned_bytes};
use planner::layer::table::OpCost;
use planner::policy::ResidentAttention;
use planner::policy::name::PolicyName;
use planner::search::{Candidate, SearchResult, TimeFactors, TrialStatus};
use serde_json::{Value, json};

use super::chart_file;
use super::drafts::DraftsOutput;
use super::vectors::LiaVectors;
use crate::cli::request::PlanRequest;
use report::build::join_notes;
use report::file::MapSummary;
use report::layer_notes::ExpectedExperts;
use report::placement::{
    ELLM_NOTE, ThreadCounts, format_candidates, format_device_contents, format_gpu_ops,
    format_layer, gpu_interval, representative_layer,
};
use report::read_weights::ReadWeights;
use report::slow_tier_weights::SlowTierSummary;
use report::step::Step;

/// A chosen placement, and the machine and limits for which it was chosen.
pub(super) struct PlanOutput<'a> {
    pub(super) chosen: &'a SearchResult,
    /// Name of the machine, or `this machine`.
    pub(super) machine: &'a str,
    pub(super) limits: MemoryLimits,
    pub(super) notes: &'a [String],
    /// Vectors of LIA's map on a described machine.
    pub(super) vectors: Option<LiaVectors>,
    /// Thread counts of this machine's workers.
    pub(super) threads: Option<ThreadCounts<'a>>,
    /// Speculative decoding on a described machine.
    pub(super) drafts: Option<DraftsOutput<'a>>,
}

impl PlanOutput<'_> {
    /// Returns the plan as text or JSON, and writes the chart if one is requested.
    ///
    /// # Errors
    /// A chart that cannot be written.
    pub(super) fn render(&self, request: &PlanRequest) -> anyhow::Result<String> {
        if let Some(path) = &request.chart {
            self.chart(path)?;
        }
        match request.json {
            true => Ok(serde_json::to_string_pretty(&self.json())? + "\n"),
            false => Ok(self.text()),
        }
    }

    fn chart(&self, path: &Path) -> anyhow::Result<()> {
        chart_file::write_plan_chart(path, self.chosen)
    }

    fn text(&self) -> String {
        let SearchResult { plan, predicted, steady, .. } = self.chosen;
        let shape = &plan.shape;
        let mut text = format!(
            "{} · {} · {}x{} · {} · predicted, not measured\n",
            plan.config.name,
            self.machine,
            shape.batches,
            shape.batch_size,
            self.chosen.name.name()
        );
        for note in self.notes {
            let _ = writeln!(text, "{note}");
        }
        if self.chosen.name == PolicyName::Ellm {
            let _ = writeln!(text, "everything on the CPU; caches are {ELLM_NOTE}");
        }
        text += &self.vectors.as_ref().map_or_else(String::new, LiaVectors::format_lines);
        text += &format_layer(self.chosen);
        let step = Step::from_steady(plan, steady);
        let _ = write!(text, "\n{}", step.gantt().draw());
        let usage = steady.timeline.usage(&plan.topology);
        if let Some(overlap) = usage.overlap() {
            let percent = 100.0 * overlap;
            let _ = writeln!(text, "transfers overlapped with CPU compute: {percent:.1}%");
        }
        let _ = write!(text, "\n{}", format_candidates(self.chosen, self.threads));
        let (parts, factor) = (step.breakdown(), self.chosen.factors().decode);
        let _ = writeln!(
            text,
            "\nprefill {:.2} s; decode step {:.1} ms = {} layers {:.1} + the rest {:.1}{}",
            predicted.prefill_ns / 1e9,
            parts.layers_ms + parts.rest_ms,
            plan.config.num_layers,
            parts.layers_ms,
            parts.rest_ms,
            if factor == 1.0 { String::new() } else { format!(", x {factor:.2} as rehearsed") },
        );
        let _ = writeln!(
            text,
            "{} new tokens each in {:.2} s: {:.2} tokens/s",
            shape.max_new,
            predicted.total_ns() / 1e9,
            self.chosen.tokens_per_s()
        );
        text += &self.format_memory();
        text += &self.drafts.as_ref().map_or_else(String::new, DraftsOutput::text);
        text
    }

    fn format_memory(&self) -> String {
        let budget = Budget::from_plan(&self.chosen.plan);
        let gib = |bytes: u64| bytes as f64 / f64::from(1u32 << 30);
        let mut text = format!(
            "host memory {:.2} of {:.2} GiB (weights {:.2}, KV {:.2}, activations {:.2}",
            gib(budget.dram_bytes(&self.limits)),
            gib(self.limits.dram_bytes),
            gib(budget.weights_bytes),
            gib(budget.kv_bytes),
            gib(budget.activations_bytes),
        );
        let pinned_bytes = pinned_bytes(&self.chosen.plan);
        if pinned_bytes > 0 {
            let _ = write!(text, "; {:.2} of it pinned", gib(pinned_bytes));
        }
        text += ")";
        let slow_tiers = budget.slow_tier_bytes.into_iter().zip(self.limits.slow_tier_bytes);
        for (bytes, most_bytes) in slow_tiers.filter(|(bytes, _)| *bytes > 0) {
            let _ = write!(text, ", slow tier {:.2} of {:.2}", gib(bytes), gib(most_bytes));
        }
        text += "; device memory ";
        let _ = match self.limits.vram_bytes {
            Some(vram_bytes) => {
                writeln!(text, "{:.2} of {:.2} GiB", gib(budget.device_bytes), gib(vram_bytes))
            }
            None => writeln!(text, "{:.2} GiB", gib(budget.device_bytes)),
        };
        text
    }

    fn json(&self) -> Value {
        let SearchResult { plan, predicted, placement, steady, .. } = self.chosen;
        let budget = Budget::from_plan(plan);
        let step = Step::from_steady(plan, steady);
        let parts = step.breakdown();
        let residency = &placement.residency;
        json!({
            "machine": self.machine, "model": plan.config.name,
            "batches": plan.shape.batches, "batch_size": plan.shape.batch_size,
            "policy": self.chosen.name.name(), "note": join_notes(self.notes),
            "prefill_ms": predicted.prefill_ns / 1e6, "decode_ms": predicted.decode_ns / 1e6,
            "decode_step_ms": self.chosen.step_ns() / 1e6,
            "simulated_step_ms": { "layers": parts.layers_ms, "rest": parts.rest_ms },
            "total_ms": predicted.total_ns() / 1e6,
            "tokens_per_s": self.chosen.tokens_per_s(),
            "overlap": steady.timeline.usage(&plan.topology).overlap(),
            "gpu_interval": gpu_interval(self.chosen),
            "resident": {
                "layers": residency.layers, "head": residency.head,
                "attention": (!residency.layers.is_empty()).then_some(match residency.attention {
                    ResidentAttention::WithKv => "device, with KV",
                    ResidentAttention::Streamed => "device, KV streamed",
                    ResidentAttention::OnCpu => "cpu",
                }),
                "summary": format_device_contents(&plan.map),
            },
            "far": SlowTierSummary::for_map(&plan.map).map(|far| far.summary(&plan.map)),
            "read_from_nvme": self.storage_reads_json(),
            "lia": self.vectors,
            "experts": ExpectedExperts::for_plan(plan),
            "speculation": self.drafts.as_ref().map(DraftsOutput::json),
            "device_map": MapSummary::new(&plan.config, &plan.map),
            "ops": self.ops_json(), "considered": self.candidates_json(),
            "candidates": self.chosen.candidate_count,
            "budget_bytes": {
                "weights": budget.weights_bytes, "kv": budget.kv_bytes,
                "activations": budget.activations_bytes, "device": budget.device_bytes,
                "far": budget.slow_tier_bytes, "far_limit": self.limits.slow_tier_bytes,
                "pinned": pinned_bytes(plan),
                "dram_limit": self.limits.dram_bytes, "vram_limit": self.limits.vram_bytes,
            },
        })
    }

    /// Returns the weights that storages read in every step; `None` if there are none.
    fn storage_reads_json(&self) -> Option<Value> {
        let config = &self.chosen.plan.config;
        let read = ReadWeights::for_plan(&self.chosen.plan)?;
        let layer_reads = read.layer_reads.iter().map(|reads| {
            let ops = reads.ops.iter().map(|op| op.name(config.family)).collect::<Vec<_>>();
            json!({ "ops": ops, "layers": reads.layers })
        });
        Some(json!({
            "weights": layer_reads.collect::<Vec<_>>(), "head": read.head,
            "bytes_per_step": read.bytes_per_step, "drives": read.storages,
            "summary": read.summary(config),
        }))
    }

    /// Returns the operations of the layer that is shown.
    fn ops_json(&self) -> Vec<Value> {
        let map = &self.chosen.plan.map;
        let devices = &map.decode.layers[representative_layer(map, &self.chosen.plan.config)];
        let op = |(op, device): (&OpCost, &program::map::ComputeDevice)| {
            json!({
                "name": op.name, "device": device, "cpu_ms": op.cpu_ms, "gpu_ms": op.gpu_ms,
                "h2d_ms": op.h2d_ms, "decompress_ms": op.decompress_ms, "kv": op.kv,
            })
        };
        self.chosen.table.ops.iter().zip(devices).map(op).collect()
    }

    fn candidates_json(&self) -> Vec<Value> {
        let plan = &self.chosen.plan;
        let candidate_json = |(place, candidate): (usize, &Candidate)| {
            let (in_prefill, in_decode) = format_gpu_ops(&candidate.map, &plan.config);
            let is_rehearsed = candidate.trial == TrialStatus::Rehearsed;
            json!({
                "policy": candidate.name.name(), "gpu_in_prefill": in_prefill,
                "gpu": in_decode,
                "resident": format_device_contents(&candidate.map),
                "prefill_ms": candidate.prefill_ns() / 1e6,
                "simulated_step_ms": candidate.estimate.step_ns / 1e6,
                "rehearsed_step_ms": is_rehearsed.then(|| candidate.step_ns() / 1e6),
                "finished": finished_runs_json(candidate),
                "total_ms": candidate.total_ns(plan.shape.max_new) / 1e6,
                "tokens_per_s": self.chosen.tokens_per_s_of(candidate),
                "chosen": place == 0,
            })
        };
        self.chosen.candidates.iter().enumerate().map(candidate_json).collect()
    }
}

/// Returns the number of finished runs of a placement, and the factors of their times over the
/// simulated ones; `None` if there are none.
fn finished_runs_json(candidate: &Candidate) -> Option<Value> {
    let TrialStatus::CompletedRuns(runs) = candidate.trial else { return None };
    let TimeFactors { prefill, decode } = candidate.factors;
    Some(json!({ "runs": runs, "prefill_factor": prefill, "decode_factor": decode }))
}
