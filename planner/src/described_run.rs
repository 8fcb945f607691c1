//! A whole run on a described machine: prefill, then decode steps at the middle length.

use model::config::ModelConfig;
use model::ops::Op;

use super::machine::{Machine, MachineError, Workload, head_ms, op_costs, prefill_layer};
use crate::layer::table::{Table, TableError};
use crate::lia;

use crate::policy::by_name::{Context, Layer, PolicyName, Prediction, predict};

/// What to run.
#[derive(Debug, Clone, Copy)]
pub struct RunRequest<'a> {
    pub machine: &'a Machine,
    pub config: &'a ModelConfig,
    /// `positions` is ignored: it follows from prompt and output.
    pub workload: Workload,
    /// Tokens of every prompt.
    pub prompt: u32,
    /// New tokens of every sequence.
    pub gen_len: u32,
    /// FlexGen pins KV on the fly, as the original does.
    pub flexgen_pins: bool,
}

/// Predicted times of a run.
#[derive(Debug, Clone)]
pub struct Run {
    pub decode_layer: Prediction,
    pub table: Table,
    pub prefill_ms: f64,
    /// One decode step, all batches.
    pub step_ms: f64,
    pub total_ms: f64,
    /// New tokens of all sequences per second of the whole run.
    pub tokens_per_s: f64,
}

/// Why a run was not predicted.
#[derive(Debug, thiserror::Error)]
pub enum RunError {
    #[error(transparent)]
    Machine(#[from] MachineError),
    #[error(transparent)]
    Table(#[from] TableError),
    #[error("{} has no layer for this table", .0.name())]
    NoLayer(PolicyName),
}

/// Predicts a run under a policy. Two-split and its kin search the layer of the decode step;
/// prefill runs on the GPU (Park-Egger §4.3), but with `cpu-only` on the CPU and with LIA where
/// its vector says.
///
/// # Errors
/// What the machine's description leaves out.
pub fn run(policy: PolicyName, request: &RunRequest<'_>) -> Result<Run, RunError> {
    let RunRequest { machine, config, prompt, gen_len, .. } = *request;
    let positions = prompt + gen_len / 2;
    let workload = Workload { positions, ..request.workload };
    let table = op_costs(machine, config, &workload)?;
    let case = |length| lia::Case {
        batch: workload.batch_size * workload.batches,
        length,
        dtype: workload.dtype,
        resident: false,
    };
    let decode = lia::best(machine, config, lia::Stage::Decode, &case(positions))?.0;
    let chunks = workload.chunking.is_some();
    let context = Context {
        lia: (!chunks).then(|| lia_devices(config, decode)),
        flexgen_cpu_attention: false,
        // Read from the cache, written to the pinned copy.
        flexgen_pinning: if request.flexgen_pins {
            2.0 * machine.link.h2d_gbps / machine.memory.dram_gbps
        } else {
            0.0
        },
    };
    let decode_layer = predict(policy, &table, &context)?.ok_or(RunError::NoLayer(policy))?;
    let layers = config.num_layers as f64;
    let head_on_gpu = match &decode_layer.layer {
        Layer::Interval(candidate) => candidate.interval == (0, table.ops.len()),
        Layer::Devices(_) => false,
        Layer::Flexgen(_) => true,
    };
    let batches = f64::from(workload.batches);
    let head = head_ms(machine, config, &workload, head_on_gpu)? * batches;
    let step_ms = layers * decode_layer.latency.ms() + head;
    let flexgen = matches!(decode_layer.layer, Layer::Flexgen(_));
    let prefill_ms = layers
        * match &decode_layer.layer {
            Layer::Devices(_) => lia::best(machine, config, lia::Stage::Prefill, &case(prompt))?.1,
            Layer::Interval(candidate) if candidate.interval == (0, 0) => {
                let stage = lia::Stage::Prefill;
                let vector = lia::Vector::FULL_CPU;
                lia::latency_ms(machine, config, stage, &case(prompt), vector)?
            }
            _ => gpu_prefill_ms(machine, config, &workload, prompt, flexgen)?,
        };
    let total_ms = prefill_ms + f64::from(gen_len.saturating_sub(1)) * step_ms;
    let tokens = batches * f64::from(workload.batch_size) * f64::from(gen_len);
    let tokens_per_s = tokens / (total_ms / 1e3);
    Ok(Run { decode_layer, table, prefill_ms, step_ms, total_ms, tokens_per_s })
}

/// A layer of prefill on the GPU: transfers hide behind the computation, except in FlexGen, whose
/// barrier comes after each batch and which stores KV synchronously (Park-Egger §5.3).
fn gpu_prefill_ms(
    machine: &Machine,
    config: &ModelConfig,
    workload: &Workload,
    prompt: u32,
    flexgen: bool,
) -> Result<f64, RunError> {
    let layer = prefill_layer(machine, config, workload, prompt)?;
    let batches = f64::from(workload.batches);
    Ok(if flexgen {
        let one = layer.decompress_ms + layer.compute_ms;
        layer.weights_ms.max(one) + (batches - 1.0) * one + batches * layer.kv_store_ms
    } else {
        let compute = layer.decompress_ms + batches * layer.compute_ms;
        layer.weights_ms.max(compute).max(batches * layer.kv_store_ms)
    })
}

fn lia_devices(config: &ModelConfig, lia::Vector(cpu): lia::Vector) -> Vec<bool> {
    let sublayer = |op: &Op| lia::sublayer_of(*op).is_some_and(|sublayer| !cpu[sublayer]);
    config.layer_ops().iter().map(sublayer).collect()
}
