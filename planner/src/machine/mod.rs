//! Machines by description, for planning for hardware that is not at hand (`--machine FILE.toml`),
//! and the operation table that a description predicts for a model and a workload.
//!
//! A description contains sustained rates and capacities. Time is bytes over a bandwidth plus
//! operations over a throughput (LIA eq. 8): a roofline whose two limits do not overlap, which is
//! also what the two batch sizes of Park-Egger figs. 6a and 7a show. GB and TFLOPS are powers of
//! ten, GiB powers of two.

mod bundled;
mod costs;
mod operating_costs;
mod parse;
#[cfg(test)]
mod tests;
mod what_if;

pub use bundled::{bundled_names, find_bundled};
pub use costs::DraftedDecode;
pub use operating_costs::OperatingCosts;
pub use parse::MachineError;
pub use what_if::Resource;

use model::config::Dtype;
use program::shares::ReadShares;
use program::topology::SLOW_TIERS_MAX;
use serde::{Deserialize, Serialize};

use crate::search::StorageRate;

/// Sustained rates of one device in one number format.
#[derive(Debug, Clone, Copy, PartialEq, Deserialize, Serialize)]
#[serde(deny_unknown_fields)]
pub struct RooflineRates {
    /// Bandwidth for weights, GB/s.
    pub linear_gbps: f64,
    pub linear_tflops: f64,
    /// Bandwidth for KV, GB/s.
    pub attention_gbps: f64,
    pub attention_tflops: f64,
    /// Rates for weights or KV in 4 bits, whose bytes are then counted as stored; absent: the rates
    /// of this format.
    #[serde(default)]
    pub four_bit: Option<OperandRates>,
}

/// Rates for operands in one format; see [`RooflineRates`].
#[derive(Debug, Clone, Copy, PartialEq, Deserialize, Serialize)]
#[serde(deny_unknown_fields)]
pub struct OperandRates {
    pub linear_gbps: f64,
    pub linear_tflops: f64,
    pub attention_gbps: f64,
    pub attention_tflops: f64,
}

impl RooflineRates {
    /// Returns the rates for operands in 4 bits, or in the format itself.
    pub fn stored(&self, four_bit: bool) -> OperandRates {
        let RooflineRates { linear_gbps, linear_tflops, attention_gbps, attention_tflops, .. } =
            *self;
        let plain = OperandRates { linear_gbps, linear_tflops, attention_gbps, attention_tflops };
        self.four_bit.filter(|_| four_bit).unwrap_or(plain)
    }
}

/// The CPU.
#[derive(Debug, Clone, PartialEq, Deserialize, Serialize)]
#[serde(deny_unknown_fields)]
pub struct CpuSpec {
    pub name: String,
    pub bf16: RooflineRates,
    #[serde(default)]
    pub f32: Option<RooflineRates>,
    /// Time of an operation in addition to its bytes and its arithmetic.
    #[serde(default)]
    pub op_overhead_us: f64,
    /// Serving: additional time of each stage in which the CPU computes attention concurrently with
    /// the device.
    #[serde(default)]
    pub stage_overhead_ms: f64,
}

/// The GPU.
#[derive(Debug, Clone, PartialEq, Deserialize, Serialize)]
#[serde(deny_unknown_fields)]
pub struct GpuSpec {
    pub name: String,
    pub bf16: RooflineRates,
    #[serde(default)]
    pub f32: Option<RooflineRates>,
    /// Time of an operation in addition to its bytes and its arithmetic: the launch of a kernel.
    #[serde(default)]
    pub op_overhead_us: f64,
    /// Bandwidth of decompression, counted in bytes after it, GB/s, for formats that are expanded
    /// before they are multiplied; absent: no such format is planned for the device.
    #[serde(default)]
    pub decompress_gbps: Option<f64>,
    /// Time of a decompression in addition to its bytes.
    #[serde(default)]
    pub decompress_overhead_ms: f64,
}

/// The link between host and device.
#[derive(Debug, Clone, Copy, PartialEq, Deserialize, Serialize)]
#[serde(deny_unknown_fields)]
pub struct LinkSpec {
    pub h2d_gbps: f64,
    pub d2h_gbps: f64,
}

/// Capacities, and the host memory's bandwidth for copies.
#[derive(Debug, Clone, Copy, PartialEq, Deserialize, Serialize)]
#[serde(deny_unknown_fields)]
pub struct MemorySpec {
    pub dram_gib: f64,
    /// Bandwidth shared by CPU, link and drives.
    pub dram_gbps: f64,
    pub vram_gib: f64,
    /// Host memory reserved for the operating system and other processes; absent: a 32nd, at least
    /// 1 GiB.
    #[serde(default)]
    pub os_reserve_gib: Option<f64>,
}

/// An additional host memory, slower than its DRAM, which can store weights: CXL, or another NUMA
/// node. Memories with interleaved pages count as one.
#[derive(Debug, Clone, PartialEq, Deserialize, Serialize)]
#[serde(deny_unknown_fields)]
pub struct SlowTierSpec {
    pub name: String,
    pub capacity_gib: f64,
    /// Bandwidth at which the CPU multiplies from it.
    pub cpu_gbps: f64,
    /// Bandwidth of copies from it to the device.
    pub link_gbps: f64,
}

impl SlowTierSpec {
    /// Returns the total bandwidth of the memory.
    pub(crate) fn gbps(&self) -> f64 {
        self.cpu_gbps.max(self.link_gbps)
    }
}

/// A drive from which weights are read.
#[derive(Debug, Clone, Copy, PartialEq, Deserialize, Serialize)]
#[serde(deny_unknown_fields)]
pub struct DriveSpec {
    /// Bandwidth when reading concurrently with the other drives.
    pub read_gbps: f64,
    /// Data that the GPU multiplies is read into device memory, bypassing the host's; if any drive
    /// does not support this, none does it.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub direct: bool,
}

/// A machine.
#[derive(Debug, Clone, PartialEq, Deserialize, Serialize)]
#[serde(deny_unknown_fields)]
pub struct Machine {
    pub name: String,
    pub cpu: CpuSpec,
    pub gpu: GpuSpec,
    pub link: LinkSpec,
    pub memory: MemorySpec,
    /// Additional host memories, which weights fill one after the other, at most
    /// [`SLOW_TIERS_MAX`]; absent: none.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub tier: Vec<SlowTierSpec>,
    /// Drives that are read concurrently, each its share of every weight that does not fit in host
    /// memory; absent: no weights from NVMe.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub nvme: Vec<DriveSpec>,
    /// Costs of purchase and operation; absent: unknown.
    #[serde(default)]
    pub running: Option<OperatingCosts>,
    /// Measurements of the machine, from which the rates are derived; absent: it is only described.
    #[serde(default)]
    pub profile: Option<EmbeddedProfiles>,
}

/// Profiles as text, read by the component that measured them and not here.
#[derive(Debug, Clone, PartialEq, Deserialize, Serialize)]
#[serde(deny_unknown_fields)]
pub struct EmbeddedProfiles {
    #[serde(default)]
    pub with_device: Option<String>,
    /// Profile of all cores, without the device.
    #[serde(default)]
    pub alone: Option<String>,
}

impl Machine {
    /// Returns the CPU's rates.
    ///
    /// # Errors
    /// A format that the description does not have.
    pub fn cpu_rates(&self, dtype: Dtype) -> Result<&RooflineRates, MachineError> {
        self.rates("cpu", &self.cpu.bf16, self.cpu.f32.as_ref(), dtype)
    }

    /// Returns the GPU's rates.
    ///
    /// # Errors
    /// A format that the description does not have.
    pub fn gpu_rates(&self, dtype: Dtype) -> Result<&RooflineRates, MachineError> {
        self.rates("gpu", &self.gpu.bf16, self.gpu.f32.as_ref(), dtype)
    }

    fn rates<'a>(
        &self,
        device: &'static str,
        bf16: &'a RooflineRates,
        f32: Option<&'a RooflineRates>,
        dtype: Dtype,
    ) -> Result<&'a RooflineRates, MachineError> {
        let absent = || MachineError::NoRates { machine: self.name.clone(), device };
        match dtype {
            Dtype::Bf16 => Ok(bf16),
            Dtype::F32 => f32.ok_or_else(absent),
        }
    }

    /// Returns each drive's share of the weights, by its rate; `None` without drives.
    pub fn read_shares(&self) -> Option<ReadShares> {
        let mbps = |drive: &DriveSpec| (drive.read_gbps * 1e3).round().max(1.0) as u32;
        let shares = self.nvme.iter().map(mbps).collect();
        (!self.nvme.is_empty()).then(|| ReadShares::new(shares))
    }

    /// Returns true if drives read directly into device memory.
    pub fn reads_directly(&self) -> bool {
        !self.nvme.is_empty() && self.nvme.iter().all(|drive| drive.direct)
    }

    /// Returns the rates of the drives.
    pub fn storage_rates(&self) -> Vec<StorageRate> {
        let rate = |drive: &DriveSpec| StorageRate {
            read_bytes_per_s: drive.read_gbps * 1e9,
            latency_ns: 0.0,
        };
        self.nvme.iter().map(rate).collect()
    }

    /// Returns the rate of a drive.
    ///
    /// # Errors
    /// A drive that the description does not have.
    fn read_gbps(&self, drive: u16) -> Result<f64, MachineError> {
        let drives = self.nvme.len();
        let absent = || MachineError::NoDrive { machine: self.name.clone(), drives };
        self.nvme.get(usize::from(drive)).map(|drive| drive.read_gbps).ok_or_else(absent)
    }

    /// Returns the host memory that a run may use.
    pub fn dram_bytes(&self) -> u64 {
        let all = self.memory.dram_gib;
        let reserve = self.memory.os_reserve_gib.unwrap_or_else(|| (all / 32.0).max(1.0));
        gib((all - reserve).max(0.0))
    }

    /// Returns the capacity of the additional host memories for weights.
    pub fn slow_tier_bytes(&self) -> [u64; SLOW_TIERS_MAX] {
        std::array::from_fn(|number| self.tier.get(number).map_or(0, |tier| gib(tier.capacity_gib)))
    }

    /// Returns an additional host memory by its number.
    ///
    /// # Errors
    /// A memory that the description does not have.
    pub(crate) fn tier(&self, number: usize) -> Result<&SlowTierSpec, MachineError> {
        let absent = || MachineError::NoTier { machine: self.name.clone(), tiers: self.tier.len() };
        self.tier.get(number).ok_or_else(absent)
    }

    /// Returns the capacity of device memory.
    pub fn vram_bytes(&self) -> u64 {
        gib(self.memory.vram_gib)
    }
}

/// Returns `gib` GiB in bytes.
fn gib(gib: f64) -> u64 {
    (gib * f64::from(1u32 << 30)) as u64
}
