//! Reads machine files and validates them, with one sentence per error.

use program::topology::SLOW_TIERS_MAX;

use super::{Machine, OperandRates, OperatingCosts, RooflineRates, SlowTierSpec};

/// Reason for which a description is refused.
#[derive(Debug, Clone, PartialEq, thiserror::Error)]
pub enum MachineError {
    #[error("the machine file is not valid: {message} (line {line})")]
    Toml { message: String, line: usize },
    #[error("the machine cannot be written as a file: {0}")]
    Unwritable(String),
    #[error("the machine file gives the machine no name")]
    NoName,
    #[error("{field} is {value}; it must be a finite number")]
    NotFinite { field: String, value: f64 },
    #[error("{field} is {value}; it must be more than 0")]
    NotPositive { field: String, value: f64 },
    #[error("{field} is {value}; it must not be less than 0")]
    Negative { field: String, value: f64 },
    #[error(
        "{field} is {value}; that is not between {low} and {high} {unit}, so the unit is probably \
         wrong"
    )]
    Absurd { field: String, value: f64, low: f64, high: f64, unit: &'static str },
    #[error(
        "link.{field} is {value} GB/s, more than the {gpu} GB/s of the GPU's own memory; it is in \
         GB/s, not Gbit/s"
    )]
    LinkTooFast { field: &'static str, value: f64, gpu: f64 },
    #[error(
        "memory.vram_gib is {vram}, more than sixteen times the {dram} GiB of host memory; both \
         are in GiB"
    )]
    VramAboveDram { vram: f64, dram: f64 },
    #[error(
        "{machine} is described without {device}.f32 rates, so --dtype f32 cannot be planned for it"
    )]
    NoRates { machine: String, device: &'static str },
    #[error(
        "{machine} is described without gpu.decompress_gbps, so weights in a format that a GPU \
         widens before it multiplies cannot be planned for it"
    )]
    NoDecompression { machine: String },
    #[error(
        "there are {tiers} [[tier]]; a plan uses {SLOW_TIERS_MAX} further memories of the host at \
         most, so describe those whose pages are interleaved as one"
    )]
    TooManyTiers { tiers: usize },
    #[error("{machine} is described with {tiers} [[tier]], fewer than the plan uses")]
    NoTier { machine: String, tiers: usize },
    #[error("{machine} is described with {drives} NVMe drives, fewer than the plan reads")]
    NoDrive { machine: String, drives: usize },
}

/// Permitted range of a number, and its unit.
type FieldRange = (f64, f64, &'static str);

const BANDWIDTH: FieldRange = (0.01, 50_000.0, "GB/s");
const THROUGHPUT: FieldRange = (0.001, 50_000.0, "TFLOPS");
const CAPACITY: FieldRange = (0.01, 100_000.0, "GiB");
const OVERHEAD_MAX_MS: f64 = 1000.0;
const POWER: FieldRange = (0.1, 1e7, "W");
const PRICE: FieldRange = (0.0, 1e9, "USD");
const SPREAD: FieldRange = (0.1, 100.0, "years");
const ENERGY_PRICE: FieldRange = (0.0, 100.0, "USD");

impl Machine {
    /// Reads a `--machine` file.
    ///
    /// # Errors
    /// Text that is not such a description, with the line; numbers that are missing or out of
    /// range.
    pub fn from_toml(text: &str) -> Result<Machine, MachineError> {
        let machine: Machine = toml::from_str(text).map_err(|error| {
            let start = error.span().map_or(0, |span| span.start.min(text.len()));
            let line = text.as_bytes()[..start].iter().filter(|byte| **byte == b'\n').count() + 1;
            let message = error.message().trim().replace('\n', ", ");
            MachineError::Toml { message, line }
        })?;
        machine.validate()?;
        Ok(machine)
    }

    /// Returns the description as a file that [`Machine::from_toml`] reads.
    ///
    /// # Errors
    /// A description that it would refuse.
    pub fn to_toml(&self) -> Result<String, MachineError> {
        self.validate()?;
        toml::to_string(self).map_err(|error| MachineError::Unwritable(error.to_string()))
    }

    fn validate(&self) -> Result<(), MachineError> {
        if self.name.trim().is_empty() {
            return Err(MachineError::NoName);
        }
        rates("cpu.bf16", Some(&self.cpu.bf16))?;
        rates("cpu.f32", self.cpu.f32.as_ref())?;
        rates("gpu.bf16", Some(&self.gpu.bf16))?;
        rates("gpu.f32", self.gpu.f32.as_ref())?;
        if let Some(decompress) = self.gpu.decompress_gbps {
            within("gpu.decompress_gbps", decompress, BANDWIDTH)?;
        }
        let overhead = self.gpu.decompress_overhead_ms;
        bounded("gpu.decompress_overhead_ms", overhead, (0.0, OVERHEAD_MAX_MS, "ms"))?;
        let overhead = self.cpu.stage_overhead_ms;
        bounded("cpu.stage_overhead_ms", overhead, (0.0, OVERHEAD_MAX_MS, "ms"))?;
        for (field, us) in [
            ("cpu.op_overhead_us", self.cpu.op_overhead_us),
            ("gpu.op_overhead_us", self.gpu.op_overhead_us),
        ] {
            bounded(field, us, (0.0, OVERHEAD_MAX_MS * 1e3, "us"))?;
        }
        within("link.h2d_gbps", self.link.h2d_gbps, BANDWIDTH)?;
        within("link.d2h_gbps", self.link.d2h_gbps, BANDWIDTH)?;
        within("memory.dram_gib", self.memory.dram_gib, CAPACITY)?;
        within("memory.dram_gbps", self.memory.dram_gbps, BANDWIDTH)?;
        within("memory.vram_gib", self.memory.vram_gib, CAPACITY)?;
        if let Some(reserve) = self.memory.os_reserve_gib {
            let all = (0.0, self.memory.dram_gib, "GiB");
            bounded("memory.os_reserve_gib", reserve, all)?;
        }
        tiers(&self.tier)?;
        for (index, device) in self.nvme.iter().enumerate() {
            within(&format!("nvme[{index}].read_gbps"), device.read_gbps, BANDWIDTH)?;
        }
        self.running.as_ref().map_or(Ok(()), running)?;
        let gpu = self.gpu.bf16.linear_gbps;
        for (field, value) in [("h2d_gbps", self.link.h2d_gbps), ("d2h_gbps", self.link.d2h_gbps)] {
            if value > gpu {
                return Err(MachineError::LinkTooFast { field, value, gpu });
            }
        }
        let (vram, dram) = (self.memory.vram_gib, self.memory.dram_gib);
        if vram > dram * 16.0 {
            return Err(MachineError::VramAboveDram { vram, dram });
        }
        Ok(())
    }
}

fn rates(name: &str, rates: Option<&RooflineRates>) -> Result<(), MachineError> {
    let Some(rates) = rates else { return Ok(()) };
    stored(name, rates.stored(false))?;
    rates.four_bit.map_or(Ok(()), |rates| stored(&format!("{name}.four_bit"), rates))
}

fn stored(name: &str, rates: OperandRates) -> Result<(), MachineError> {
    within(&format!("{name}.linear_gbps"), rates.linear_gbps, BANDWIDTH)?;
    within(&format!("{name}.linear_tflops"), rates.linear_tflops, THROUGHPUT)?;
    within(&format!("{name}.attention_gbps"), rates.attention_gbps, BANDWIDTH)?;
    within(&format!("{name}.attention_tflops"), rates.attention_tflops, THROUGHPUT)
}

fn tiers(all: &[SlowTierSpec]) -> Result<(), MachineError> {
    if all.len() > SLOW_TIERS_MAX {
        return Err(MachineError::TooManyTiers { tiers: all.len() });
    }
    for (index, tier) in all.iter().enumerate() {
        within(&format!("tier[{index}].capacity_gib"), tier.capacity_gib, CAPACITY)?;
        within(&format!("tier[{index}].cpu_gbps"), tier.cpu_gbps, BANDWIDTH)?;
        within(&format!("tier[{index}].link_gbps"), tier.link_gbps, BANDWIDTH)?;
    }
    Ok(())
}

fn running(running: &OperatingCosts) -> Result<(), MachineError> {
    within("running.watts", running.watts, POWER)?;
    bounded("running.price_usd", running.price_usd, PRICE)?;
    within("running.years", running.years, SPREAD)?;
    bounded("running.usd_per_kwh", running.usd_per_kwh, ENERGY_PRICE)
}

/// Checks that a value is within its bounds and greater than 0.
fn within(field: &str, value: f64, bounds: FieldRange) -> Result<(), MachineError> {
    if value.is_finite() && value <= 0.0 {
        return Err(MachineError::NotPositive { field: field.to_owned(), value });
    }
    bounded(field, value, bounds)
}

/// Checks that a value is within its bounds.
fn bounded(field: &str, value: f64, (low, high, unit): FieldRange) -> Result<(), MachineError> {
    let field = || field.to_owned();
    if !value.is_finite() {
        return Err(MachineError::NotFinite { field: field(), value });
    }
    if value < 0.0 {
        return Err(MachineError::Negative { field: field(), value });
    }
    if !(low..=high).contains(&value) {
        return Err(MachineError::Absurd { field: field(), value, low, high, unit });
    }
    Ok(())
}
