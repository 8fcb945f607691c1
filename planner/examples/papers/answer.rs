//! The one place that calls the planner.

use model::config::{Dtype, ModelConfig};
use model::known::known as known_model;
use model::ops::Op;
use planner::described_run::{Run, RunRequest, run};
use planner::layer::steady::{Lane, Shape, Usage, steady_layer};
use planner::lia::{Case, Stage, Vector, best, parts};
use planner::machine::{Machine, Stored, Workload, known as known_machine};
use planner::policy::by_name::{Layer, PolicyName};
use program::map::{ChunkOrder, Chunking};

use crate::cells::{Compression, Scenario};

/// Host memory of a machine that is to hold everything, GiB.
const UNBOUNDED_GIB: f64 = 65536.0;
const DTYPE: Dtype = Dtype::Bf16;

/// What the planner says of a run; `None` for what it has no word for.
#[derive(Debug, Clone, PartialEq)]
pub struct Answer {
    pub prefill_ms: f64,
    pub decode_step_ms: f64,
    pub tokens_per_s: f64,
    /// A decoder layer of a decode step, all batches.
    pub layer_ms: f64,
    /// What runs where.
    pub policy_text: String,
    /// Offload vectors of prefill and decode.
    pub vectors: Option<[String; 2]>,
    /// Shares of a decoder layer, and of its transfers, in which the CPU computes.
    pub cpu_busy: Option<f64>,
    pub cpu_beside_transfers: Option<f64>,
    pub busy: Option<Busy>,
    pub weights_bytes: f64,
    pub kv_bytes: f64,
    /// Share of the layers that stay in device memory.
    pub resident_share: Option<f64>,
    /// Whether memory holds the run; `None`: not looked at.
    pub fits: Option<bool>,
}

/// Busy times of a run, ms.
#[derive(Debug, Clone, Copy, PartialEq, Default)]
pub struct Busy {
    pub cpu_ms: f64,
    pub gpu_ms: f64,
    pub transfers_ms: f64,
}

/// The planner's answer.
///
/// # Errors
/// Why there is none, in a sentence.
pub fn answer(scenario: &Scenario) -> Result<Answer, String> {
    let config = known_model(&scenario.model)
        .ok_or_else(|| format!("the planner does not know {}", scenario.model))?
        .config;
    let mut machine = known_machine(&scenario.machine)
        .ok_or_else(|| format!("there is no description of {}", scenario.machine))?
        .map_err(|error| error.to_string())?;
    if scenario.unbounded {
        machine.memory.dram_gib = UNBOUNDED_GIB;
    }
    if scenario.nvme {
        return Err("the planner keeps no weights on NVMe".to_owned());
    }
    if scenario.vectors.is_some() && scenario.overlap {
        return Err("the planner takes no vector that it did not choose".to_owned());
    }
    let policy: PolicyName = scenario
        .policy
        .parse()
        .map_err(|error: planner::policy::by_name::UnknownPolicy| error.to_string())?;
    let request = RunRequest {
        machine: &machine,
        config: &config,
        workload: workload(scenario),
        prompt: scenario.prompt,
        gen_len: scenario.new_tokens,
        flexgen_pins: true,
    };
    let run = run(policy, &request).map_err(|error| error.to_string())?;
    let vectors = vectors(&machine, &config, scenario, policy)?;
    let busy = busy(&machine, &config, scenario, vectors)?;
    let usage = usage(&run);
    let mut answer = Answer {
        prefill_ms: run.prefill_ms,
        decode_step_ms: run.step_ms,
        tokens_per_s: run.tokens_per_s,
        layer_ms: run.decode_layer.latency.ms(),
        policy_text: policy_text(&run, vectors),
        vectors: (policy == PolicyName::Lia).then(|| vectors.map(digits)),
        cpu_busy: usage.map(|usage| usage.busy(Lane::Cpu).ms() / usage.total.ms()),
        cpu_beside_transfers: usage.and_then(|usage| usage.overlap()),
        busy: Some(busy),
        weights_bytes: weights_bytes(&config),
        kv_bytes: kv_bytes(&config, scenario),
        resident_share: None,
        fits: None,
    };
    if policy == PolicyName::Lia && !scenario.overlap {
        without_overlap(&mut answer, &machine, &config, scenario, vectors)?;
    }
    Ok(answer)
}

fn workload(scenario: &Scenario) -> Workload {
    let stored = match scenario.compression {
        Compression::None => Stored::PLAIN,
        Compression::W4 => Stored { w4: true, kv4: false },
        Compression::Kv4 => Stored { w4: false, kv4: true },
        Compression::W4kv4 => Stored::W4KV4,
    };
    let chunks = scenario.scores;
    let chunking = (chunks > 1).then_some(Chunking { order: ChunkOrder::Scores, chunks });
    let Scenario { batches, batch_size, .. } = *scenario;
    Workload { batches, batch_size, positions: 0, dtype: DTYPE, stored, chunking }
}

fn case(scenario: &Scenario, stage: Stage) -> Case {
    let length = match stage {
        Stage::Prefill => scenario.prompt,
        Stage::Decode => scenario.prompt + scenario.new_tokens / 2,
    };
    Case { batch: scenario.batches * scenario.batch_size, length, dtype: DTYPE, resident: false }
}

/// Where LIA's sublayers run in prefill and decode: for LIA the best vectors, for others what comes
/// closest.
fn vectors(
    machine: &Machine,
    config: &ModelConfig,
    scenario: &Scenario,
    policy: PolicyName,
) -> Result<[Vector; 2], String> {
    let best = |stage| {
        let best = best(machine, config, stage, &case(scenario, stage));
        best.map(|(vector, _)| vector).map_err(|error| error.to_string())
    };
    if let Some(vectors) = &scenario.vectors {
        return Ok(vectors.each_ref().map(|digits| vector(digits)));
    }
    Ok(match policy {
        PolicyName::Lia => [best(Stage::Prefill)?, best(Stage::Decode)?],
        PolicyName::CpuOnly => [Vector::FULL_CPU; 2],
        PolicyName::Flexgen => [Vector::FULL_GPU, Vector::PARTIAL_CPU],
        _ => [Vector::FULL_GPU; 2],
    })
}

fn vector(digits: &str) -> Vector {
    let bytes = digits.as_bytes();
    Vector(std::array::from_fn(|index| bytes.get(index) == Some(&b'1')))
}

fn digits(Vector(cpu): Vector) -> String {
    cpu.map(|cpu| if cpu { '1' } else { '0' }).iter().collect()
}

/// LIA's equations by what is busy, over all layers and steps.
fn busy(
    machine: &Machine,
    config: &ModelConfig,
    scenario: &Scenario,
    vectors: [Vector; 2],
) -> Result<Busy, String> {
    let mut busy = Busy::default();
    let steps = [1.0, f64::from(scenario.new_tokens.saturating_sub(1))];
    for ((stage, vector), steps) in
        [Stage::Prefill, Stage::Decode].into_iter().zip(vectors).zip(steps)
    {
        let parts = parts(machine, config, stage, &case(scenario, stage), vector)
            .map_err(|error| error.to_string())?;
        let times = steps * config.num_layers as f64;
        for (part, on_cpu) in parts.iter().zip(vector.0) {
            let compute = if on_cpu { &mut busy.cpu_ms } else { &mut busy.gpu_ms };
            *compute += part.compute_ms * times;
            busy.transfers_ms += (part.load_ms + part.store_ms) * times;
        }
    }
    Ok(busy)
}

/// Eq. 2 as it stands: everything one after the other.
fn without_overlap(
    answer: &mut Answer,
    machine: &Machine,
    config: &ModelConfig,
    scenario: &Scenario,
    vectors: [Vector; 2],
) -> Result<(), String> {
    let sum = |new_tokens| {
        let scenario = Scenario { new_tokens, ..scenario.clone() };
        let busy = busy(machine, config, &scenario, vectors)?;
        Ok::<f64, String>(busy.cpu_ms + busy.gpu_ms + busy.transfers_ms)
    };
    let (prefill_ms, total_ms) = (sum(1)?, sum(scenario.new_tokens)?);
    let steps = f64::from(scenario.new_tokens.saturating_sub(1)).max(1.0);
    answer.prefill_ms = prefill_ms;
    answer.decode_step_ms = (total_ms - prefill_ms) / steps;
    answer.layer_ms = answer.decode_step_ms / config.num_layers as f64;
    let sequences = f64::from(scenario.batches * scenario.batch_size);
    answer.tokens_per_s = sequences * f64::from(scenario.new_tokens) / total_ms * 1e3;
    Ok(())
}

fn usage(run: &Run) -> Option<Usage> {
    let Layer::Interval(candidate) = &run.decode_layer.layer else { return None };
    Some(steady_layer(&run.table, candidate, &Shape::default()).usage)
}

fn policy_text(run: &Run, vectors: [Vector; 2]) -> String {
    match &run.decode_layer.layer {
        Layer::Interval(candidate) => {
            let (start, end) = candidate.interval;
            let name = |index: usize| run.table.ops[index].name.to_lowercase();
            if start == end {
                "all on the CPU".to_owned()
            } else if (start, end) == (0, run.table.ops.len()) {
                "all on the GPU".to_owned()
            } else {
                format!("GPU {} to {}", name(start), name(end - 1))
            }
        }
        Layer::Devices(_) => format!("{} then {}", digits(vectors[0]), digits(vectors[1])),
        Layer::Flexgen(_) => "FlexGen's schedule".to_owned(),
    }
}

fn weights_bytes(config: &ModelConfig) -> f64 {
    let head = if config.tied_embeddings { 0 } else { Op::Head.weight_bytes(config, DTYPE) };
    let layers = config.num_layers * config.layer_weight_bytes(DTYPE);
    (layers + Op::Embed.weight_bytes(config, DTYPE) + head) as f64
}

fn kv_bytes(config: &ModelConfig, scenario: &Scenario) -> f64 {
    let layer = config.kv_bytes_per_position(DTYPE) * config.num_layers;
    let sequences = f64::from(scenario.batches) * f64::from(scenario.batch_size);
    layer as f64 * sequences * f64::from(scenario.prompt + scenario.new_tokens)
}
