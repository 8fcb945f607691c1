//! `profile --export FILE`: a description of this machine. Its rates are a least-squares fit to the
//! measurements, which are included.

use std::path::Path;

use anyhow::Context;
use engine::memory;
use model::config::ModelConfig;
use planner::machine::{
    CpuSpec, EmbeddedProfiles, GpuSpec, LinkSpec, Machine, MemorySpec, OperandRates, RooflineRates,
};
use profiler::rates::{DeviceRates, MachineRates, derive_rates};
use profiler::{Profile, cache};

use session::cuda_device;
use session::request::ProfileRequest;
use session::values::DeviceChoice;

/// Writes the description.
///
/// # Errors
/// A profile that lacks a rate, or a file that cannot be written.
pub(super) fn write(
    path: &Path,
    request: &ProfileRequest,
    config: &ModelConfig,
    with_device: &Profile,
    alone: &Profile,
) -> anyhow::Result<()> {
    let mut machine = description(request, config, with_device)?;
    let text = |profile| cache::encode(profile).context("the profile as text");
    let (with_device, alone) = (Some(text(with_device)?), Some(text(alone)?));
    machine.profile = Some(EmbeddedProfiles { with_device, alone });
    let text = format!(
        "# Written by `coordinator profile --export` from measurements of {} in {}, {} + {} \
         tokens.\n# The rates are derived from the profile at the end. `plan --machine` uses the \
         profile itself\n# if it covers the whole plan; remove the profile if you change rates by \
         hand.\n\n{}",
        config.name,
        request.batches,
        request.prompt_len,
        request.gen_len,
        machine.to_toml()?
    );
    std::fs::write(path, text).with_context(|| format!("--export {}", path.display()))
}

/// Memory capacities of the machine in GiB.
#[derive(Debug, Clone, Copy)]
struct Capacities {
    dram_gib: f64,
    reserve_gib: f64,
    vram_gib: f64,
}

impl Capacities {
    fn for_device(device: DeviceChoice) -> Capacities {
        let gib = |bytes: u64| bytes as f64 / f64::from(1u32 << 30);
        let total_bytes = memory::total_bytes();
        let vram_bytes = match device {
            DeviceChoice::Cuda(index) => Some(cuda_device::vram_bytes(index, None, 0)),
            DeviceChoice::Emulated { vram_bytes, .. } => vram_bytes,
            _ => None,
        };
        Capacities {
            dram_gib: gib(total_bytes),
            reserve_gib: gib(total_bytes.saturating_sub(memory::available_bytes())),
            // An emulated device has as much memory as the host.
            vram_gib: gib(vram_bytes.unwrap_or(total_bytes)),
        }
    }
}

/// Returns the description without the measurements.
fn description(
    request: &ProfileRequest,
    config: &ModelConfig,
    profile: &Profile,
) -> anyhow::Result<Machine> {
    let missing_message =
        |what: &str| format!("the profile has no {what}; measure again with more time");
    let MachineRates { cpu, gpu, h2d_gbps, d2h_gbps, decompress, dram_gbps } =
        derive_rates(profile, config, request.dtype);
    let cpu = cpu.with_context(|| missing_message("linears on the CPU"))?;
    let gpu = gpu.with_context(|| missing_message("linears on the device"))?;
    let h2d_gbps = h2d_gbps.with_context(|| missing_message("copies to the device"))?;
    let Capacities { dram_gib, reserve_gib, vram_gib } = Capacities::for_device(request.device);
    let fingerprint = &profile.fingerprint;
    let name = |found: Option<&String>| found.map_or_else(|| "unknown".to_owned(), String::clone);
    let cpu_name = name(fingerprint.machine.get("CPU model"));
    Ok(Machine {
        name: cpu_name.clone(),
        cpu: CpuSpec {
            name: cpu_name,
            bf16: to_rates(&cpu),
            f32: None,
            op_overhead_us: cpu.overhead_us,
            stage_overhead_ms: 0.0,
        },
        gpu: GpuSpec {
            name: name(fingerprint.profiled.get("device")),
            bf16: to_rates(&gpu),
            f32: None,
            op_overhead_us: gpu.overhead_us,
            decompress_gbps: decompress.map(|rates| rates.gbps),
            decompress_overhead_ms: decompress.map_or(0.0, |rates| rates.overhead_ms),
        },
        // A link is never faster than the memory that it leads to.
        link: LinkSpec {
            h2d_gbps: h2d_gbps.min(gpu.linear_gbps),
            d2h_gbps: d2h_gbps.unwrap_or(h2d_gbps).min(gpu.linear_gbps),
        },
        memory: MemorySpec {
            dram_gib,
            dram_gbps: dram_gbps.unwrap_or(cpu.linear_gbps),
            vram_gib,
            os_reserve_gib: Some(reserve_gib),
        },
        tier: Vec::new(),
        nvme: Vec::new(),
        running: None,
        profile: None,
    })
}

fn to_rates(rates: &DeviceRates) -> RooflineRates {
    let DeviceRates { linear_gbps, linear_tflops, attention_gbps, attention_tflops, .. } = *rates;
    let four_bit = rates.four_bit.map(|four| OperandRates {
        linear_gbps: four.linear_gbps,
        linear_tflops: four.linear_tflops,
        attention_gbps: four.attention_gbps,
        attention_tflops: four.attention_tflops,
    });
    RooflineRates { linear_gbps, linear_tflops, attention_gbps, attention_tflops, four_bit }
}
