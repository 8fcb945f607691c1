//! Arguments of `profile`, and their conversion to a request.

use std::path::PathBuf;

use clap::Args;
use model::quantized_format::ActivationFormat;

use super::device::resolve_device;
use super::shared::LengthArgs;
use super::usage_error::UsageError;
use super::values::{DtypeChoice, NamedChoice, parse_batches, parse_device};
use session::request::{ModelChoice, ProfileRequest};
use session::values::{Batches, CompressChoice, DeviceChoice};

/// Arguments of `profile`.
#[derive(Debug, Args)]
pub struct ProfileArgs {
    /// Model: a directory, a .gguf file, org/name in the Hugging Face cache, or a known name like
    /// opt-30b; its weights are not read
    #[arg(long, value_name = "MODEL")]
    pub model: String,
    /// Use only the first LAYERS layers
    #[arg(long, value_name = "LAYERS", value_parser = clap::value_parser!(u32).range(1..))]
    pub layers: Option<u32>,
    /// N batches of B sequences
    #[arg(
        long,
        value_name = "NxB",
        default_value = "1x1",
        value_parser = parse_batches,
        allow_hyphen_values = true
    )]
    pub batches: Batches,
    #[command(flatten)]
    pub lengths: LengthArgs,
    /// Number format of weights, activations and KV cache
    #[arg(long, value_enum, default_value = "bf16")]
    pub dtype: DtypeChoice,
    /// Also measure these 4-bit formats
    #[arg(long, value_enum, value_name = "WHAT", default_value = "none")]
    pub compress: NamedChoice<CompressChoice>,
    /// Rounding of activations before they are multiplied by low-bit weights
    #[arg(long, value_enum, value_name = "HOW", default_value = "int8")]
    pub activations: NamedChoice<ActivationFormat>,
    /// Device to measure: none, auto, cuda:N or emulated
    #[arg(long, value_name = "DEVICE", default_value = "none", value_parser = parse_device)]
    pub device: DeviceChoice,
    /// Number of compute threads of the CPU worker [default: the cores that other workers leave
    /// free]
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u16).range(1..))]
    pub cpu_threads: Option<u16>,
    /// Number of compute threads of the emulated device [default: half of the cores]
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u16).range(1..))]
    pub emulated_threads: Option<u16>,
    /// Also measure concurrent reads of the weights that `stage` wrote to this directory, and
    /// divide every weight among all such directories so that their reads end at the same time; can
    /// be repeated
    #[arg(long, value_name = "DIR")]
    pub nvme: Vec<PathBuf>,
    /// Measure weights that `stage --dummy-weights` wrote, with --nvme
    #[arg(long, requires = "nvme")]
    pub dummy_weights: bool,
    /// Also write a description of this machine with its measurements, for plan --machine; requires
    /// a device and bf16
    #[arg(long, value_name = "FILE")]
    pub export: Option<PathBuf>,
    /// Measure again even if a valid profile is stored, and discard the placements rehearsed with
    /// it, with and without a device
    #[arg(long)]
    pub force: bool,
    /// Print only errors
    #[arg(long, short)]
    pub quiet: bool,
}

/// Converts the arguments to a request.
///
/// # Errors
/// Arguments that contradict each other, or a device that this machine does not have.
pub(super) fn profile(args: ProfileArgs) -> Result<ProfileRequest, UsageError> {
    let device = resolve_device(args.device)?;
    let is_emulated = matches!(device, DeviceChoice::Emulated { .. });
    if !is_emulated && args.emulated_threads.is_some() {
        return Err(UsageError::EmulatedThreadsWithoutDevice);
    }
    if args.export.is_some() && device == DeviceChoice::None {
        return Err(UsageError::ExportWithoutDevice);
    }
    if args.export.is_some() && args.dtype != DtypeChoice::Bf16 {
        return Err(UsageError::ExportWithoutBf16);
    }
    Ok(ProfileRequest {
        model: ModelChoice {
            name: args.model,
            revision: None,
            dummy_weights: true,
            layers: args.layers.map(|layers| layers as usize),
            positions: None,
        },
        dtype: args.dtype.dtype(),
        compress: args.compress.0,
        activations: args.activations.0,
        batches: args.batches,
        prompt_len: args.lengths.prompt_len,
        gen_len: args.lengths.gen_len,
        device,
        cpu_threads: args.cpu_threads,
        emulated_threads: args.emulated_threads,
        nvme: args.nvme,
        dummy_weights: args.dummy_weights,
        export: args.export,
        force: args.force,
        quiet: args.quiet,
    })
}
