//! Arguments that several commands share: the model, and where it is computed.

use std::path::PathBuf;

use clap::Args;
use planner::policy::by_name::PolicyName;

use super::select::{SelectRule, parse_select};
use super::values::{
    CompressChoice, DeviceChoice, DtypeChoice, QuantizedChoice, parse_device, parse_policy,
    parse_size,
};

/// Which model, and in which numbers.
#[derive(Debug, Default, Args)]
pub struct LowModel {
    /// A directory, a .gguf file, org/name in the Hugging Face cache, or a known name like opt-30b
    #[arg(long, value_name = "MODEL", help_heading = "Model")]
    pub model: Option<String>,
    /// Branch, tag or commit of org/name [default: main]
    #[arg(long, value_name = "REVISION", help_heading = "Model")]
    pub revision: Option<String>,
    /// Seeded random weights: a known name then needs no download
    #[arg(long, help_heading = "Model")]
    pub dummy_weights: bool,
    /// Only the first LAYERS layers, so that a large model's layers run on a small machine
    #[arg(
        long,
        value_name = "LAYERS",
        value_parser = clap::value_parser!(u32).range(1..),
        help_heading = "Model"
    )]
    pub layers: Option<u32>,
    /// Of `plan`.
    #[arg(skip)]
    pub positions: Option<u32>,
    /// Number format of weights, activations and KV cache
    #[arg(long, value_enum, default_value = "bf16", help_heading = "Model")]
    pub dtype: DtypeChoice,
    /// Keep weights, KV cache or both in 4 bits: less memory and less to move, slightly other
    /// answers. Works for any model, at load
    #[arg(long, value_enum, value_name = "WHAT", default_value = "auto", help_heading = "Model")]
    pub compress: CompressChoice,
    /// Weights that a file holds quantised, GGUF or safetensors with a quantization_config
    /// [default: direct with bf16, expand with f32]
    #[arg(long, value_enum, value_name = "HOW", help_heading = "Model")]
    pub quantized: Option<QuantizedChoice>,
    /// New tokens attend to the cached positions whose approximate score is within A of the
    /// largest, to at most the share M of all: for long prompts without a device. Answers change
    #[arg(
        long,
        value_name = "alpha=A,max=M",
        value_parser = parse_select,
        help_heading = "Model"
    )]
    pub kv_select: Option<SelectRule>,
    /// A text like those that will come, by which the scores are approximated [default: tokens by
    /// seed]
    #[arg(long, value_name = "FILE", requires = "kv_select", help_heading = "Model")]
    pub kv_select_text: Option<PathBuf>,
}

/// How long prompts and answers are.
#[derive(Debug, Args)]
pub struct LowLengths {
    /// Tokens of each prompt
    #[arg(
        long,
        value_name = "N",
        default_value_t = 512,
        value_parser = clap::value_parser!(u32).range(1..)
    )]
    pub prompt_len: u32,
    /// New tokens of each sequence
    #[arg(
        long,
        value_name = "N",
        default_value_t = 32,
        value_parser = clap::value_parser!(u32).range(1..)
    )]
    pub gen_len: u32,
}

/// Who computes what, and with how much memory.
#[derive(Debug, Default, Args)]
pub struct LowPlacement {
    /// none, auto, cuda:N, or emulated[:vram=8GiB,link=16GB/s], a stand-in for tests and studies;
    /// with --tables or --machine emulated:timed
    #[arg(
        long,
        value_name = "DEVICE",
        default_value = "auto",
        value_parser = parse_device,
        help_heading = "Placement"
    )]
    pub device: DeviceChoice,
    /// Who computes what: auto, two-split, one-split, gpu-only, resident (weights stay on the
    /// device), cpu-only, lia, lia:spread, flexgen or flexgen:spread [default: auto with a device,
    /// else cpu-only]
    #[arg(long, value_name = "POLICY", value_parser = parse_policy, help_heading = "Placement")]
    pub policy: Option<PolicyName>,
    /// The GPU runs operations A to before B of each layer in decode, e.g. scores:out; either side
    /// may be empty
    #[arg(long, value_name = "A:B", help_heading = "Placement")]
    pub split: Option<String>,
    /// Cut attention, or linears by their output rows, into chunks that a split may come between,
    /// and --split can name (scores.3): scores=8, attention=8 or linears=8 [default: all are tried
    /// where the placement is searched; a CUDA device computes linears whole]
    #[arg(long, value_name = "KIND=N", help_heading = "Placement")]
    pub split_chunks: Option<String>,
    /// Never fuse attention, so that every placement gives the same bits
    #[arg(long, help_heading = "Placement")]
    pub no_fuse: bool,
    /// Compute every prompt whole, also where prompts begin alike; the answers are the same
    #[arg(long, help_heading = "Placement")]
    pub no_prefix_sharing: bool,
    /// Prompts are computed in chunks of at most N tokens, which bounds the memory of long ones;
    /// the answers are the same [default: whole prompts up to 4096 tokens, 2048 of longer ones, 256
    /// where memory is short]
    #[arg(long, value_name = "N", help_heading = "Placement")]
    #[arg(value_parser = clap::value_parser!(u32).range(1..))]
    pub prefill_chunk: Option<u32>,
    /// Compute threads of the cpu worker [default: the cores the others leave, or fewer where this
    /// machine was measured to be faster so]
    #[arg(
        long,
        value_name = "N",
        value_parser = clap::value_parser!(u16).range(1..),
        help_heading = "Placement"
    )]
    pub cpu_threads: Option<u16>,
    /// Compute threads of the emulated device [default: half of the cores]
    #[arg(
        long,
        value_name = "N",
        value_parser = clap::value_parser!(u16).range(1..),
        help_heading = "Placement"
    )]
    pub emulated_threads: Option<u16>,
    /// Device memory to use at most, e.g. 8GiB [default: what is free]
    #[arg(long, value_name = "SIZE", value_parser = parse_size, help_heading = "Placement")]
    pub vram: Option<u64>,
    /// Host memory to use at most, e.g. 16GiB [default: what is free]
    #[arg(long, value_name = "SIZE", value_parser = parse_size, help_heading = "Placement")]
    pub dram: Option<u64>,
    /// NUMA nodes on which the weights lie in host memory, e.g. 1 or 0,1; on several their pages
    /// take turns [default: where the system puts them]
    #[arg(long, value_name = "N,..", value_delimiter = ',', help_heading = "Placement")]
    pub weights_nodes: Vec<u16>,
    /// The same of KV caches
    #[arg(long, value_name = "N,..", value_delimiter = ',', help_heading = "Placement")]
    pub kv_nodes: Vec<u16>,
}
