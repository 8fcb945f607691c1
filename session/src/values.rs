//! Values of a request, of types that only represent valid ones.

use std::fmt;

use model::config::Dtype;
use program::formats::KvFormat;

/// Value of `--batches NxB`: N batches of B sequences, both at least 1.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Batches {
    pub count: u16,
    /// Number of sequences in each batch.
    pub size: u16,
}

impl Batches {
    /// Returns the batches reduced to the number and size that `sequences` can fill.
    #[must_use]
    pub fn clamp_to_sequences(self, sequences: usize) -> Batches {
        let sequences = sequences.clamp(1, usize::from(u16::MAX)) as u16;
        let count = self.count.min(sequences);
        Batches { count, size: self.size.min(sequences.div_ceil(count)) }
    }
}

impl fmt::Display for Batches {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}x{}", self.count, self.size)
    }
}

/// Value of `--batches`: specified, or the shape with the highest predicted throughput.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum BatchesChoice {
    Auto,
    Fixed(Batches),
}

/// Device that runs GPU operations.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum DeviceChoice {
    /// The best real device of the machine, or none if it has none; never the emulated one.
    #[default]
    Auto,
    /// No device: everything runs on the CPU.
    None,
    /// Emulated device that computes with CPU kernels in a separate process.
    Emulated {
        /// Size of the device memory; `None`: as much as the plan needs.
        vram_bytes: Option<u64>,
        /// Rate of the link; `None`: the rate of memory.
        link_bytes_per_s: Option<u64>,
    },
    /// Emulated device whose operations take the times of a table without computing anything.
    Timed,
    /// CUDA device with this index.
    Cuda(u32),
}

/// Compression of weights to 4 bits, and of the KV cache to 8 or 4.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum CompressChoice {
    /// No compression if that fits in memory, otherwise what is needed to fit; the choice is
    /// printed
    #[default]
    Auto,
    /// No compression
    None,
    /// Weights of the layers' linears in 4 bits, in groups of 64 with a scale and a minimum each
    W4,
    /// KV cache in 8 bits, in groups of up to 32 along a head
    Kv8,
    /// Weights in 4 bits and KV cache in 8
    W4kv8,
    /// KV cache in 4 bits, in groups of up to 64 along a head
    Kv4,
    /// Weights and KV cache in 4 bits
    W4kv4,
}

impl CompressChoice {
    /// Returns true if weights are quantised to 4 bits.
    pub const fn compresses_weights(self) -> bool {
        matches!(self, CompressChoice::W4 | CompressChoice::W4kv8 | CompressChoice::W4kv4)
    }

    /// Returns the format of the KV cache; plain for `Auto`, which has not chosen yet.
    pub const fn kv_format(self) -> KvFormat {
        match self {
            CompressChoice::Auto | CompressChoice::None | CompressChoice::W4 => KvFormat::Plain,
            CompressChoice::Kv8 | CompressChoice::W4kv8 => KvFormat::Eight,
            CompressChoice::Kv4 | CompressChoice::W4kv4 => KvFormat::Four,
        }
    }

    /// Returns the choice that stores weights and KV in these formats.
    pub const fn of_formats(weights_in_4_bits: bool, kv: KvFormat) -> CompressChoice {
        match (weights_in_4_bits, kv) {
            (false, KvFormat::Plain) => CompressChoice::None,
            (false, KvFormat::Eight) => CompressChoice::Kv8,
            (false, KvFormat::Four) => CompressChoice::Kv4,
            (true, KvFormat::Plain) => CompressChoice::W4,
            (true, KvFormat::Eight) => CompressChoice::W4kv8,
            (true, KvFormat::Four) => CompressChoice::W4kv4,
        }
    }

    /// Returns the name on the command line and in reports.
    pub const fn name(self) -> &'static str {
        match self {
            CompressChoice::Auto => "auto",
            CompressChoice::None => "none",
            CompressChoice::W4 => "w4",
            CompressChoice::Kv8 => "kv8",
            CompressChoice::W4kv8 => "w4kv8",
            CompressChoice::Kv4 => "kv4",
            CompressChoice::W4kv4 => "w4kv4",
        }
    }
}

/// Treatment of weights that a file stores quantised.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum QuantizedChoice {
    /// Multiply types that kernels read (Q4_0 to Q8_0, Q4_K to Q6_K, IQ4, MXFP4) as stored, and
    /// expand others
    Direct,
    /// Expand all types to --dtype
    Expand,
}

impl QuantizedChoice {
    /// Returns the default for a number format.
    pub const fn default_for(dtype: Dtype) -> QuantizedChoice {
        match dtype {
            Dtype::Bf16 => QuantizedChoice::Direct,
            Dtype::F32 => QuantizedChoice::Expand,
        }
    }
}

/// Weights that are read from drives in every step.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub enum NvmeOps {
    /// The minimum that memory requires.
    #[default]
    Auto,
    All,
    /// Weights of the operations with these names, in every layer.
    Named(Vec<String>),
}

/// Path of weights from drives to the device.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum NvmeDirect {
    /// Direct if a CUDA device and cuFile support it; never with an emulated device
    #[default]
    Auto,
    /// Direct; fail if that is not possible
    On,
    /// Through host memory
    Off,
}

/// Parsed value of `alpha=4,max=0.2`, in thousandths.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct KvSelectRule {
    /// Maximum difference between a position's score and the largest one.
    pub alpha_thousandths: u32,
    /// Maximum share of all positions that are selected.
    pub max_thousandths: u16,
}

/// Selection rule, and the text that it is calibrated with.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct KvSelectChoice {
    pub rule: KvSelectRule,
    /// Text whose queries and keys determine the partial keys; `None`: tokens drawn with the seed.
    pub text: Option<String>,
}
