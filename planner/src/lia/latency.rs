//! LIA's eqs. 2 to 9.

use model::config::ModelConfig;

use crate::machine::{Machine, MachineError, RooflineRates};

use super::sublayer::{SUBLAYERS, Sublayer, fresh_kv_bytes, sublayers};
use super::{LiaStage, LiaWorkload, OffloadVector};

const GIGA: f64 = 1e9;
const TERA: f64 = 1e12;
const MS: f64 = 1e3;

/// The three parts of a sublayer's latency (eq. 2), in ms.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct LatencyParts {
    /// Loading of operands, eqs. 3 to 7.
    pub load_ms: f64,
    /// Computation, eq. 8.
    pub compute_ms: f64,
    /// Storing of fresh K and V, eq. 9.
    pub store_ms: f64,
}

/// Returns the parts of each sublayer.
///
/// # Errors
/// A number format that the description does not have.
pub fn latency_parts(
    machine: &Machine,
    config: &ModelConfig,
    stage: LiaStage,
    workload: &LiaWorkload,
    OffloadVector(cpu): OffloadVector,
) -> Result<[LatencyParts; SUBLAYERS], MachineError> {
    let rows = sublayers(config, stage, workload);
    let (cpu_rates, gpu_rates) =
        (machine.cpu_rates(workload.dtype)?, machine.gpu_rates(workload.dtype)?);
    let link_ms = |bytes: f64, gbps: f64| bytes / (gbps * GIGA) * MS;
    let h2d_ms = |bytes: f64| link_ms(bytes, machine.link.h2d_gbps);
    // Transfer to the device on which sublayer `to` runs.
    let moved_ms = |bytes: f64, to: usize| {
        link_ms(bytes, if cpu[to] { machine.link.d2h_gbps } else { machine.link.h2d_gbps })
    };
    Ok(std::array::from_fn(|i| {
        let row = rows[i];
        // p_0 = p_6: the sublayer before the first is the last of the previous layer.
        let before = if i == 0 { SUBLAYERS - 1 } else { i - 1 };
        let mut load_ms = if cpu[i] != cpu[before] { moved_ms(row.x_bytes, i) } else { 0.0 };
        load_ms += match (row.parameters, stage) {
            // Eq. 5; parameters that stay on the device need no load, and the CPU has its own.
            (true, _) if !cpu[i] && !workload.resident => h2d_ms(row.loaded_bytes),
            (false, LiaStage::Decode) if !cpu[i] => h2d_ms(row.loaded_bytes),
            // Eq. 7: K and V of a prompt come from sublayer 1.
            (false, LiaStage::Prefill) if cpu[i] != cpu[0] => moved_ms(row.y_bytes, i),
            _ => 0.0,
        };
        // Eq. 6: the residual is the input of sublayer 1, or of sublayer 4.
        let residual_from = match i {
            3 => Some(0),
            5 => Some(3),
            _ => None,
        };
        if residual_from.is_some_and(|from| cpu[i] != cpu[from]) {
            load_ms += moved_ms(row.x_bytes, i);
        }
        let compute_ms = compute_ms(&row, if cpu[i] { cpu_rates } else { gpu_rates });
        let stores = i == 0 && !cpu[0];
        let store_ms = if stores {
            link_ms(fresh_kv_bytes(config, stage, workload), machine.link.d2h_gbps)
        } else {
            0.0
        };
        LatencyParts { load_ms, compute_ms, store_ms }
    }))
}

/// Eq. 8.
fn compute_ms(row: &Sublayer, rates: &RooflineRates) -> f64 {
    let (gbps, tflops) = if row.parameters {
        (rates.linear_gbps, rates.linear_tflops)
    } else {
        (rates.attention_gbps, rates.attention_tflops)
    };
    ((row.x_bytes + row.y_bytes) / (gbps * GIGA) + row.flops / (tflops * TERA)) * MS
}

/// Returns the latency of a layer in ms (eq. 2).
///
/// # Errors
/// A number format that the description does not have.
pub fn latency_ms(
    machine: &Machine,
    config: &ModelConfig,
    stage: LiaStage,
    workload: &LiaWorkload,
    vector: OffloadVector,
) -> Result<f64, MachineError> {
    let parts = latency_parts(machine, config, stage, workload, vector)?;
    Ok(parts.iter().map(|part| part.load_ms + part.compute_ms + part.store_ms).sum())
}
