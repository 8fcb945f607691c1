//! `profile --export FILE`: this machine as a description, its rates by least squares over what was
//! measured, and the measurements themselves.

use std::fmt::Write;
use std::path::Path;

use anyhow::Context;
use model::config::ModelConfig;
use profiler::rates::{DeviceRates, FourBitRates, MachineRates, rates};
use profiler::{Profile, cache};

use crate::cli::cuda;
use crate::cli::request::ProfileRequest;
use crate::cli::values::DeviceChoice;
use crate::engine::memory;

/// Writes the description.
///
/// # Errors
/// A profile that lacks a rate; a file that cannot be written.
pub(super) fn write(
    path: &Path,
    request: &ProfileRequest,
    config: &ModelConfig,
    with_device: &Profile,
    alone: &Profile,
) -> anyhow::Result<()> {
    let rates = rates(with_device, config, request.dtype);
    let capacities = Capacities::of(request.device);
    let mut text = description(request, config, with_device, &rates, capacities)?;
    text += "\n# What the rates come from, as it is kept in the cache. `plan --machine` prices by \
             it where it knows\n# all of a plan; leave it out when rates are changed by hand.\n\
             [profile]\n";
    for (name, profile) in [("with_device", with_device), ("alone", alone)] {
        let json = cache::encode(profile).context("the profile as text")?;
        // Inside quotes of TOML that take everything but themselves.
        let _ = writeln!(text, "{name} = '''\n{}'''", json.replace('\'', "\\u0027"));
    }
    std::fs::write(path, text).with_context(|| format!("--export {}", path.display()))
}

/// Memory of the machine, GiB.
#[derive(Debug, Clone, Copy)]
struct Capacities {
    dram_gib: f64,
    reserve_gib: f64,
    vram_gib: f64,
}

impl Capacities {
    fn of(device: DeviceChoice) -> Capacities {
        let gib = |bytes: u64| bytes as f64 / f64::from(1u32 << 30);
        let total_bytes = memory::total_bytes();
        let vram_bytes = match device {
            DeviceChoice::Cuda(index) => Some(cuda::vram_bytes(index, None)),
            DeviceChoice::Emulated { vram_bytes, .. } => vram_bytes,
            _ => None,
        };
        Capacities {
            dram_gib: gib(total_bytes),
            reserve_gib: gib(total_bytes.saturating_sub(memory::available_bytes())),
            // An emulated device has as much as the host.
            vram_gib: gib(vram_bytes.unwrap_or(total_bytes)),
        }
    }
}

/// All but the measurements.
fn description(
    request: &ProfileRequest,
    config: &ModelConfig,
    profile: &Profile,
    rates: &MachineRates,
    capacities: Capacities,
) -> anyhow::Result<String> {
    let lacking = |what: &str| format!("the profile has no {what}; measure again with more time");
    let cpu = rates.cpu.with_context(|| lacking("linears on the CPU"))?;
    let gpu = rates.gpu.with_context(|| lacking("linears on the device"))?;
    let h2d_gbps = rates.h2d_gbps.with_context(|| lacking("copies to the device"))?;
    let d2h_gbps = rates.d2h_gbps.unwrap_or(h2d_gbps);
    let fingerprint = &profile.fingerprint;
    let field = |of: Option<&String>| of.map_or_else(|| quoted("unknown"), |text| quoted(text));
    let cpu_name = field(fingerprint.machine.get("CPU model"));
    let mut text = format!(
        "# Written by `coordinator profile --export` from what it measured of {} in {}, {} + {} \
         tokens.\n\nname = {cpu_name}\n\n[cpu]\nname = {cpu_name}\nop_overhead_us = {}\n\n\
         [cpu.bf16]\n",
        config.name, request.batches, request.prompt_len, request.gen_len, cpu.overhead_us
    );
    text += &device("cpu", &cpu);
    let gpu_name = field(fingerprint.profiled.get("device"));
    let _ = writeln!(text, "\n[gpu]\nname = {gpu_name}\nop_overhead_us = {}", gpu.overhead_us);
    if let Some(decompress) = rates.decompress {
        let _ = writeln!(text, "decompress_gbps = {}", decompress.gbps);
        let _ = writeln!(text, "decompress_overhead_ms = {}", decompress.overhead_ms);
    }
    text += "\n[gpu.bf16]\n";
    text += &device("gpu", &gpu);
    text += "\n# A link is never faster than what it leads to.\n[link]\n";
    let _ = writeln!(text, "h2d_gbps = {}", h2d_gbps.min(gpu.linear_gbps));
    let _ = writeln!(text, "d2h_gbps = {}", d2h_gbps.min(gpu.linear_gbps));
    let dram_gbps = rates.dram_gbps.unwrap_or(cpu.linear_gbps);
    let Capacities { dram_gib, reserve_gib, vram_gib } = capacities;
    let _ = writeln!(
        text,
        "\n[memory]\ndram_gib = {dram_gib}\ndram_gbps = {dram_gbps}\nos_reserve_gib = \
         {reserve_gib}\nvram_gib = {vram_gib}"
    );
    Ok(text)
}

/// Rates in bf16, and in 4 bits where they were measured.
fn device(name: &str, rates: &DeviceRates) -> String {
    let DeviceRates { linear_gbps, linear_tflops, attention_gbps, attention_tflops, .. } = *rates;
    let mut text = section([linear_gbps, linear_tflops, attention_gbps, attention_tflops]);
    if let Some(four) = rates.four_bit {
        let FourBitRates { linear_gbps, linear_tflops, attention_gbps, attention_tflops } = four;
        let _ = writeln!(text, "\n[{name}.bf16.four_bit]");
        text += &section([linear_gbps, linear_tflops, attention_gbps, attention_tflops]);
    }
    text
}

/// Bandwidth and throughput of linears, and those of attention.
fn section(rates: [f64; 4]) -> String {
    let names = ["linear_gbps", "linear_tflops", "attention_gbps", "attention_tflops"];
    names.iter().zip(rates).map(|(name, rate)| format!("{name} = {rate}\n")).collect()
}

/// A text of TOML, which takes what JSON takes.
fn quoted(text: &str) -> String {
    serde_json::Value::from(text).to_string()
}
