//! `coordinator device-rates`: basic rates of a CUDA device as one JSON object, for the GPU
//! benchmark.

use crate::request::{RateKind, RatesRequest};
use std::io::Write;

use serde_json::json;
use workers::device::{KernelRate, measure_kernels, measure_rates, memory_bytes};

use super::small_copies;
use session::exit::Exit;
use session::output::print_result;

/// Measures the requested rates and prints them.
///
/// # Errors
/// A device that cannot be used, with a message for the user.
pub fn run(request: RatesRequest) -> anyhow::Result<Exit> {
    let rates = match request.kind {
        RateKind::Kernels(only) => {
            measure_kernels(request.device, &only, print_kernel_rate)?;
            return Ok(Exit::Done);
        }
        RateKind::KeepBusy { matrix } => {
            small_copies::keep_busy(request.device, matrix)?;
            return Ok(Exit::Done);
        }
        RateKind::SmallCopies { matrix } => small_copies::measure(request.device, matrix)?,
        RateKind::Memory => {
            let (free_bytes, total_bytes) = memory_bytes(request.device)?;
            json!({"free_bytes": free_bytes, "total_bytes": total_bytes})
        }
        RateKind::Basic(sizes) => {
            let rates = measure_rates(request.device, sizes)?;
            json!({
                "free_bytes": rates.free_bytes,
                "total_bytes": rates.total_bytes,
                "h2d_bytes_per_s": rates.h2d_bytes_per_s,
                "d2h_bytes_per_s": rates.d2h_bytes_per_s,
                "device_bytes_per_s": rates.device_bytes_per_s,
                "own_bf16_flops": rates.own_bf16_flops,
                "blas_bf16_flops": rates.blas_bf16_flops,
                "bf16_flops": rates.own_bf16_flops.max(rates.blas_bf16_flops.unwrap_or(0.0)),
            })
        }
    };
    print_result(&(serde_json::to_string_pretty(&rates)? + "\n"), true)?;
    Ok(Exit::Done)
}

/// Prints a measurement as a line of JSON as soon as it is made, so that none is lost if time runs
/// out.
fn print_kernel_rate(rate: KernelRate) {
    let KernelRate { name, rows, seconds, bytes, flops } = rate;
    let line = json!({
        "what": name,
        "rows": rows,
        "us": seconds * 1e6,
        "gb_per_s": bytes as f64 / seconds / 1e9,
        "tflops": flops / seconds / 1e12,
    });
    // If stdout is closed, there is no reader to report the error to.
    let _ = writeln!(std::io::stdout(), "{line}");
}
