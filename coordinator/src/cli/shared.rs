//! Arguments that several commands share: the model, and where it is computed.

use std::path::PathBuf;

use clap::Args;
use model::quantized_format::ActivationFormat;
use planner::policy::name::PolicyName;

use super::kv_select::parse_kv_select;
use super::values::{DtypeChoice, NamedChoice, parse_device, parse_policy, parse_size};
use session::values::KvSelectRule;
use session::values::{CompressChoice, DeviceChoice, QuantizedChoice};

/// Arguments that select a model and its number formats.
#[derive(Debug, Default, Args)]
pub struct ModelArgs {
    /// Model: a directory, a .gguf file, org/name in the Hugging Face cache, or a known name like
    /// opt-30b
    #[arg(long, value_name = "MODEL", help_heading = "Model")]
    pub model: Option<String>,
    /// Branch, tag or commit of org/name [default: main]
    #[arg(long, value_name = "REVISION", help_heading = "Model")]
    pub revision: Option<String>,
    /// Use seeded random weights; a known name then needs no download
    #[arg(long, help_heading = "Model")]
    pub dummy_weights: bool,
    /// Use only the first LAYERS layers, so that layers of a large model run on a small machine
    #[arg(
        long,
        value_name = "LAYERS",
        value_parser = clap::value_parser!(u32).range(1..),
        help_heading = "Model"
    )]
    pub layers: Option<u32>,
    /// Number format of weights, activations and KV cache
    #[arg(long, value_enum, default_value = "bf16", help_heading = "Model")]
    pub dtype: DtypeChoice,
    /// Compress weights, the KV cache or both to 4 bits: less memory and data movement, slightly
    /// different answers. Works for any model, at load
    #[arg(long, value_enum, value_name = "WHAT", default_value = "auto", help_heading = "Model")]
    pub compress: NamedChoice<CompressChoice>,
    /// Treatment of weights that are stored quantised, in GGUF or in safetensors with a
    /// quantization_config [default: direct with bf16, expand with f32]
    #[arg(long, value_enum, value_name = "HOW", help_heading = "Model")]
    pub quantized: Option<NamedChoice<QuantizedChoice>>,
    /// Rounding of activations before they are multiplied by low-bit weights, with bf16 on the CPU
    #[arg(long, value_enum, value_name = "HOW", default_value = "int8", help_heading = "Model")]
    pub activations: NamedChoice<ActivationFormat>,
    /// Limit the attention of new tokens to cached positions whose approximate score is within A of
    /// the largest, and to at most the share M of all positions; for long prompts without a device.
    /// Changes answers
    #[arg(
        long,
        value_name = "alpha=A,max=M",
        value_parser = parse_kv_select,
        help_heading = "Model"
    )]
    pub kv_select: Option<KvSelectRule>,
    /// Text similar to the expected input, used to calibrate the approximate scores [default:
    /// tokens drawn with a seed]
    #[arg(long, value_name = "FILE", requires = "kv_select", help_heading = "Model")]
    pub kv_select_text: Option<PathBuf>,
}

/// Lengths of prompts and answers.
#[derive(Debug, Args)]
pub struct LengthArgs {
    /// Number of tokens of each prompt
    #[arg(
        long,
        value_name = "N",
        default_value_t = 512,
        value_parser = clap::value_parser!(u32).range(1..)
    )]
    pub prompt_len: u32,
    /// Number of new tokens of each sequence
    #[arg(
        long,
        value_name = "N",
        default_value_t = 32,
        value_parser = clap::value_parser!(u32).range(1..)
    )]
    pub gen_len: u32,
}

/// Arguments for placement and memory limits.
#[derive(Debug, Default, Args)]
pub struct PlacementArgs {
    /// Device: none, auto, cuda:N, or emulated[:vram=8GiB,link=16GB/s], a stand-in for tests and
    /// studies; with --tables or --machine, emulated:timed
    #[arg(
        long,
        value_name = "DEVICE",
        default_value = "auto",
        value_parser = parse_device,
        help_heading = "Placement"
    )]
    pub device: DeviceChoice,
    /// Placement policy: auto, two-split, one-split, gpu-only, resident (weights stay on the
    /// device), cpu-only, ellm (cpu-only with contiguous caches), lia, lia:spread, flexgen or
    /// flexgen:spread [default: auto with a device, otherwise cpu-only]
    #[arg(long, value_name = "POLICY", value_parser = parse_policy, help_heading = "Placement")]
    pub policy: Option<PolicyName>,
    /// Run operations A up to, but not including, B of each layer on the GPU in decode, e.g.
    /// scores:out; either may be omitted
    #[arg(long, value_name = "A:B", help_heading = "Placement")]
    pub split: Option<String>,
    /// Divide attention, or linears by their output rows, into N chunks between which a split may
    /// fall, and which --split can name (scores.3): scores=8, attention=8 or linears=8 [default:
    /// all are tried when the placement is searched; a CUDA device computes linears whole]
    #[arg(long, value_name = "KIND=N", help_heading = "Placement")]
    pub split_chunks: Option<String>,
    /// Never fuse attention, so that every placement gives the same bits
    #[arg(long, help_heading = "Placement")]
    pub no_fuse: bool,
    /// Compute every prompt in full, even if prompts share a prefix; answers do not change
    #[arg(long, help_heading = "Placement")]
    pub no_prefix_sharing: bool,
    /// Compute prompts in chunks of at most N tokens, which bounds the memory of long ones; answers
    /// do not change [default: prompts up to 4096 tokens whole, longer ones in chunks of 2048, or
    /// of 256 if memory is short]
    #[arg(long, value_name = "N", help_heading = "Placement")]
    #[arg(value_parser = clap::value_parser!(u32).range(1..))]
    pub prefill_chunk: Option<u32>,
    /// Number of compute threads of the CPU worker [default: the cores that other workers leave
    /// free, or fewer if that was measured to be faster on this machine]
    #[arg(
        long,
        value_name = "N",
        value_parser = clap::value_parser!(u16).range(1..),
        help_heading = "Placement"
    )]
    pub cpu_threads: Option<u16>,
    /// Number of compute threads of the emulated device [default: half of the cores]
    #[arg(
        long,
        value_name = "N",
        value_parser = clap::value_parser!(u16).range(1..),
        help_heading = "Placement"
    )]
    pub emulated_threads: Option<u16>,
    /// Maximum device memory to use, e.g. 8GiB [default: free memory]
    #[arg(long, value_name = "SIZE", value_parser = parse_size, help_heading = "Placement")]
    pub vram: Option<u64>,
    /// Maximum host memory to use, e.g. 16GiB [default: free memory]
    #[arg(long, value_name = "SIZE", value_parser = parse_size, help_heading = "Placement")]
    pub dram: Option<u64>,
    /// NUMA nodes for weights in host memory, e.g. 1 or 0,1; pages are interleaved over several
    /// nodes [default: chosen by the system]
    #[arg(long, value_name = "N,..", value_delimiter = ',', help_heading = "Placement")]
    pub weights_nodes: Vec<u16>,
    /// NUMA nodes for KV caches in host memory, e.g. 1 or 0,1; pages are interleaved over several
    /// nodes [default: chosen by the system]
    #[arg(long, value_name = "N,..", value_delimiter = ',', help_heading = "Placement")]
    pub kv_nodes: Vec<u16>,
}
