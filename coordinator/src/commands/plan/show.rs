//! Output of `coordinator plan` for any machine: text, JSON or a chart file.

use std::fmt::Write;
use std::path::Path;

use planner::budget::{Budget, Limits, pinned_bytes};
use planner::layer::table::OpCost;
use planner::policy::ResidentAttention;
use planner::priced::{Chosen, Considered, Factors, Tried};
use serde_json::{Value, json};

use super::chart_file;
use super::vectors::Vectors;
use crate::cli::request::PlanRequest;
use crate::report::build::one_text;
use crate::report::far_weights::FarWeights;
use crate::report::file::MapSummary;
use crate::report::kinds::ExpectedExperts;
use crate::report::placement::{
    Threads, considered, gpu_interval, layer, on_gpu, resident, shown_layer,
};
use crate::report::read_weights::ReadWeights;
use crate::report::step::Step;

/// A chosen placement, and the machine and limits for which it was chosen.
pub(super) struct Answer<'a> {
    pub(super) chosen: &'a Chosen,
    /// Name of the machine, or `this machine`.
    pub(super) machine: &'a str,
    pub(super) limits: Limits,
    pub(super) notes: &'a [String],
    /// Vectors of LIA's map on a described machine.
    pub(super) vectors: Option<Vectors>,
    /// Thread counts of this machine's workers.
    pub(super) threads: Option<Threads<'a>>,
}

impl Answer<'_> {
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
        chart_file::of_plan(path, self.chosen)
    }

    fn text(&self) -> String {
        let Chosen { plan, predicted, steady, .. } = self.chosen;
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
        text += &self.vectors.as_ref().map_or_else(String::new, Vectors::lines);
        text += &layer(self.chosen);
        let step = Step::of(plan, steady);
        let _ = write!(text, "\n{}", step.gantt().draw());
        let usage = steady.timeline.usage(&plan.topology);
        if let Some(overlap) = usage.overlap() {
            let percent = 100.0 * overlap;
            let _ = writeln!(text, "transfers overlapped with CPU compute: {percent:.1}%");
        }
        let _ = write!(text, "\n{}", considered(self.chosen, self.threads));
        let (parts, factor) = (step.parts(), self.chosen.factors().decode);
        let _ = writeln!(
            text,
            "\nprefill {:.2} s; decode step {:.1} ms = {} layers {:.1} + the rest {:.1}{}",
            predicted.prefill_ns / 1e9,
            parts.layers_ms + parts.rest_ms,
            plan.config.num_layers,
            parts.layers_ms,
            parts.rest_ms,
            if factor == 1.0 { String::new() } else { format!(", x {factor:.2} as tried out") },
        );
        let _ = writeln!(
            text,
            "{} new tokens each in {:.2} s: {:.2} tokens/s",
            shape.max_new,
            predicted.total_ns() / 1e9,
            self.chosen.tokens_per_s()
        );
        text += &self.memory();
        text
    }

    fn memory(&self) -> String {
        let budget = Budget::of(&self.chosen.plan);
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
        let far = budget.far_bytes.into_iter().zip(self.limits.far_bytes);
        for (bytes, most_bytes) in far.filter(|(bytes, _)| *bytes > 0) {
            let _ = write!(text, ", far memory {:.2} of {:.2}", gib(bytes), gib(most_bytes));
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
        let Chosen { plan, predicted, placement, steady, .. } = self.chosen;
        let budget = Budget::of(plan);
        let step = Step::of(plan, steady);
        let parts = step.parts();
        let residency = &placement.residency;
        json!({
            "machine": self.machine, "model": plan.config.name,
            "batches": plan.shape.batches, "batch_size": plan.shape.batch_size,
            "policy": self.chosen.name.name(), "note": one_text(self.notes),
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
                "summary": resident(&plan.map),
            },
            "far": FarWeights::of(&plan.map).map(|far| far.summary(&plan.map)),
            "read_from_nvme": self.read(),
            "lia": self.vectors,
            "experts": ExpectedExperts::of(plan),
            "device_map": MapSummary::new(&plan.config, &plan.map),
            "ops": self.ops(), "considered": self.considered(),
            "candidates": self.chosen.candidates,
            "budget_bytes": {
                "weights": budget.weights_bytes, "kv": budget.kv_bytes,
                "activations": budget.activations_bytes, "device": budget.device_bytes,
                "far": budget.far_bytes, "far_limit": self.limits.far_bytes,
                "pinned": pinned_bytes(plan),
                "dram_limit": self.limits.dram_bytes, "vram_limit": self.limits.vram_bytes,
            },
        })
    }

    /// Returns the weights that storages read in every step; `None` if there are none.
    fn read(&self) -> Option<Value> {
        let config = &self.chosen.plan.config;
        let read = ReadWeights::of(&self.chosen.plan)?;
        let of_layers = read.of_layers.iter().map(|one| {
            let ops = one.ops.iter().map(|op| op.name(config.family)).collect::<Vec<_>>();
            json!({ "ops": ops, "layers": one.layers })
        });
        Some(json!({
            "weights": of_layers.collect::<Vec<_>>(), "head": read.head,
            "bytes_per_step": read.bytes_per_step, "drives": read.storages,
            "summary": read.summary(config),
        }))
    }

    /// Returns the operations of the layer that is shown.
    fn ops(&self) -> Vec<Value> {
        let map = &self.chosen.plan.map;
        let devices = &map.decode.layers[shown_layer(map, &self.chosen.plan.config)];
        let op = |(op, device): (&OpCost, &program::map::Device)| {
            json!({
                "name": op.name, "device": device, "cpu_ms": op.cpu_ms, "gpu_ms": op.gpu_ms,
                "h2d_ms": op.h2d_ms, "decompress_ms": op.decompress_ms, "kv": op.kv,
            })
        };
        self.chosen.table.ops.iter().zip(devices).map(op).collect()
    }

    fn considered(&self) -> Vec<Value> {
        let plan = &self.chosen.plan;
        let one = |(place, one): (usize, &Considered)| {
            let (in_prefill, in_decode) = on_gpu(&one.map, &plan.config);
            let is_rehearsed = one.tried == Tried::Rehearsed;
            json!({
                "policy": one.name.name(), "gpu_in_prefill": in_prefill, "gpu": in_decode,
                "resident": resident(&one.map),
                "prefill_ms": one.prefill_ns() / 1e6,
                "simulated_step_ms": one.estimate.step_ns / 1e6,
                "rehearsed_step_ms": is_rehearsed.then(|| one.step_ns() / 1e6),
                "finished": finished(one),
                "total_ms": one.total_ns(plan.shape.max_new) / 1e6,
                "tokens_per_s": self.chosen.tokens_per_s_of(one),
                "chosen": place == 0,
            })
        };
        self.chosen.considered.iter().enumerate().map(one).collect()
    }
}

/// Returns the number of finished runs of a placement, and the factors of their times over the
/// simulated ones; `None` if there are none.
fn finished(one: &Considered) -> Option<Value> {
    let Tried::Finished(runs) = one.tried else { return None };
    let Factors { prefill, decode } = one.factors;
    Some(json!({ "runs": runs, "prefill_factor": prefill, "decode_factor": decode }))
}
