//! Weights on NVMe drives: arguments of `stage`, and of runs that read staged weights.

use std::path::PathBuf;

use clap::{ArgGroup, Args};
use program::expert_reads::ExpertReads;

use super::request::{StageAction, StageRequest};
use super::values::{DtypeChoice, NamedChoice, StagedFormat, parse_nvme_ops, parse_size};
use session::request::ModelChoice;
use session::routing_file::{RoutingChoice, parse_routing};
use session::values::{NvmeDirect, NvmeOps, QuantizedChoice};

/// Arguments of a run whose weights do not all stay in memory.
#[derive(Debug, Default, Args)]
pub struct NvmeArgs {
    /// Directory on an NVMe drive; repeat for each drive. Weights that do not fit in memory are
    /// read from all drives in every step. Weights that `coordinator stage` has not written there
    /// yet are written first
    #[arg(long, value_name = "DIR", help_heading = "Memory")]
    pub nvme: Vec<PathBuf>,
    /// Weights to read in every step: auto (the minimum that memory requires), all, or names of
    /// operations, as in q,k,fc0
    #[arg(
        long,
        value_name = "WHAT",
        value_parser = parse_nvme_ops,
        requires = "nvme",
        help_heading = "Memory"
    )]
    pub nvme_ops: Option<NvmeOps>,
    /// Experts to read in a step of those that the CPU multiplies [default: auto]
    #[arg(long, value_name = "WHICH", value_enum, requires = "nvme", help_heading = "Memory")]
    pub nvme_experts: Option<NamedChoice<ExpertReads>>,
    /// Host memory in which experts that were read stay for later steps, as in 8G
    #[arg(
        long,
        value_name = "SIZE",
        value_parser = parse_size,
        requires = "nvme",
        help_heading = "Memory"
    )]
    pub expert_cache: Option<u64>,
    /// Distribution of tokens over experts: even, or the --report of an earlier run. Placements are
    /// chosen for it, and of a file the experts that were used most stay in half of --expert-cache
    /// from the start [default: even]
    #[arg(long, value_name = "even|FILE", value_parser = parse_routing, help_heading = "Memory")]
    pub routing: Option<RoutingChoice>,
    /// Read drives directly into device memory, bypassing host memory (NVIDIA's cuFile); such reads
    /// are not verified [default: auto]
    #[arg(long, value_name = "WHETHER", value_enum, requires = "nvme", help_heading = "Memory")]
    pub nvme_direct: Option<NamedChoice<NvmeDirect>>,
}

impl NvmeArgs {
    /// Returns the number of drives that may be read directly to a device.
    pub(super) fn direct_drives(&self) -> usize {
        if self.nvme_direct == Some(NamedChoice(NvmeDirect::Off)) { 0 } else { self.nvme.len() }
    }
}

/// Arguments of `stage`.
#[derive(Debug, Args)]
#[command(group = ArgGroup::new("action").args(["verify", "status"]))]
pub struct StageArgs {
    /// Model: a directory, a .gguf file, org/name in the Hugging Face cache, or a known name like
    /// opt-30b
    #[arg(long, value_name = "MODEL", required_unless_present = "status")]
    pub model: Option<String>,
    /// Branch, tag or commit of org/name [default: main]
    #[arg(long, value_name = "REVISION")]
    pub revision: Option<String>,
    /// Directory on an NVMe drive; repeat for each drive. Each drive gets all weights
    #[arg(long, value_name = "DIR", required = true)]
    pub nvme: Vec<PathBuf>,
    /// Use seeded random weights; a known name then needs no download
    #[arg(long)]
    pub dummy_weights: bool,
    /// Use only the first LAYERS layers
    #[arg(long, value_name = "LAYERS", value_parser = clap::value_parser!(u32).range(1..))]
    pub layers: Option<u32>,
    /// Number format in which runs will compute
    #[arg(long, value_enum, default_value = "bf16")]
    pub dtype: DtypeChoice,
    /// Compress the layers' linears to 4 bits, for a quarter of the space and read time
    #[arg(long, value_enum, value_name = "WHAT", default_value = "none")]
    pub compress: StagedFormat,
    /// Treatment of weights that are stored quantised, in GGUF or in safetensors with a
    /// quantization_config [default: direct with bf16, expand with f32]
    #[arg(long, value_enum, value_name = "HOW")]
    pub quantized: Option<NamedChoice<QuantizedChoice>>,
    /// Seed of --dummy-weights
    #[arg(long, value_name = "SEED", default_value_t = 0)]
    pub seed: u64,
    /// Read all staged weights and verify their checksums
    #[arg(long)]
    pub verify: bool,
    /// List the weights staged in the directories; needs no model
    #[arg(long)]
    pub status: bool,
    /// Print only errors
    #[arg(long, short)]
    pub quiet: bool,
}

/// Converts the arguments to a request.
pub(super) fn stage(args: StageArgs) -> StageRequest {
    StageRequest {
        model: ModelChoice {
            name: args.model.unwrap_or_default(),
            revision: args.revision,
            dummy_weights: args.dummy_weights,
            layers: args.layers.map(|layers| layers as usize),
            positions: None,
        },
        dtype: args.dtype.dtype(),
        format: args.compress,
        quantized: args
            .quantized
            .map_or_else(|| QuantizedChoice::default_for(args.dtype.dtype()), |how| how.0),
        directories: args.nvme,
        seed: args.seed,
        action: match (args.verify, args.status) {
            (true, _) => StageAction::Verify,
            (_, true) => StageAction::Status,
            _ => StageAction::Stage,
        },
        quiet: args.quiet,
    }
}
