//! Conversion of the arguments that decide how a model is computed.

use planner::policy::name::PolicyName;
use planner::split::parse_chunking;
use protocol::messages::SegmentNodes;

use super::device::resolve_device;
use super::kv_select_check::validate_kv_select;
use super::prompt_cache::PromptCacheArgs;
use super::shared::{ModelArgs, PlacementArgs};
use super::speculation::SpeculationArgs;
use super::stage::NvmeArgs;
use super::usage_error::UsageError;
use session::cuda_device;
use session::request::{ModelChoice, PlacementChoice, SessionOptions, Verbosity};
use session::values::{DeviceChoice, QuantizedChoice};

/// Arguments of all commands that compute a model.
pub(super) struct SessionArgs {
    pub(super) of_model: ModelArgs,
    pub(super) placement: PlacementArgs,
    pub(super) nvme: NvmeArgs,
    pub(super) prompts: PromptCacheArgs,
    pub(super) speculation: SpeculationArgs,
    /// Maximum number of positions; `None`: the model's own.
    pub(super) positions: Option<u32>,
    pub(super) seed: u64,
    pub(super) stop_at_eof: bool,
    pub(super) verbosity: Verbosity,
}

impl SessionArgs {
    /// Validates the arguments.
    ///
    /// # Errors
    /// Arguments that contradict each other, or that this machine does not support.
    pub(super) fn into_options(self) -> Result<SessionOptions, UsageError> {
        let SessionArgs { of_model, placement: args, nvme, prompts, .. } = self;
        if prompts.prompt_cache.is_some() && of_model.kv_select.is_some() {
            return Err(UsageError::SelectWithPrompts);
        }
        let device = validate_device(&args)?;
        let placement = validate_placement(&args, device)?;
        let kv_select = validate_kv_select(&of_model, device, !args.no_fuse)?;
        let dtype = of_model.dtype.dtype();
        let max_drafts = self.speculation.max_drafts();
        let drafts_all = self.speculation.drafts_all();
        let uses_prediction_layer = self.speculation.uses_prediction_layer();
        let drafts_over_states = self.speculation.drafts_over_states();
        let draft_model = self.speculation.draft_model.map(|name| ModelChoice {
            name,
            revision: None,
            dummy_weights: of_model.dummy_weights,
            layers: None,
            positions: None,
        });
        Ok(SessionOptions {
            model: ModelChoice {
                name: of_model.model.ok_or(UsageError::NoModel)?,
                revision: of_model.revision,
                dummy_weights: of_model.dummy_weights,
                layers: of_model.layers.map(|layers| layers as usize),
                positions: self.positions.map(|positions| positions as usize),
            },
            dtype,
            compress: of_model.compress.0,
            quantized: of_model
                .quantized
                .map_or_else(|| QuantizedChoice::default_for(dtype), |how| how.0),
            activations: of_model.activations.0,
            kv_select,
            seed: self.seed,
            placement,
            chunking: args.split_chunks.as_deref().map(parse_chunking).transpose()?,
            fuse_attention: !args.no_fuse,
            shares_prompts: !args.no_prefix_sharing,
            prefill_chunk: args.prefill_chunk,
            cpu_threads: args.cpu_threads,
            emulated_threads: args.emulated_threads,
            vram_bytes: match device {
                DeviceChoice::Emulated { vram_bytes, .. } => args.vram.or(vram_bytes),
                DeviceChoice::Cuda(index) => {
                    Some(cuda_device::vram_bytes(index, args.vram, nvme.direct_drives()))
                }
                _ => args.vram,
            },
            device,
            dram_bytes: args.dram,
            nodes: SegmentNodes { weights: args.weights_nodes, kv: args.kv_nodes },
            nvme: nvme.nvme,
            nvme_ops: nvme.nvme_ops.unwrap_or_default(),
            nvme_experts: nvme.nvme_experts.unwrap_or_default().0,
            expert_cache_bytes: nvme.expert_cache.unwrap_or(0),
            nvme_direct: nvme.nvme_direct.unwrap_or_default().0,
            routing: nvme.routing.unwrap_or_default().0,
            prompt_cache: prompts.into_config(),
            max_drafts,
            drafts_all,
            drafts_over_states,
            uses_prediction_layer,
            draft_model,
            stop_at_eof: self.stop_at_eof,
            verbosity: self.verbosity,
        })
    }
}

/// Returns the verbosity of a command without `--verbose`.
pub(super) const fn quiet_or_normal(quiet: bool) -> Verbosity {
    if quiet { Verbosity::Quiet } else { Verbosity::Normal }
}

/// Returns the device of a run, after checking the arguments that depend on it.
fn validate_device(args: &PlacementArgs) -> Result<DeviceChoice, UsageError> {
    let device = resolve_device(args.device)?;
    match device {
        DeviceChoice::Emulated { vram_bytes: Some(_), .. } if args.vram.is_some() => {
            Err(UsageError::ConflictingVram)
        }
        DeviceChoice::None if args.emulated_threads.is_some() => {
            Err(UsageError::EmulatedThreadsWithoutDevice)
        }
        DeviceChoice::None if args.vram.is_some() => Err(UsageError::VramWithoutDevice),
        _ => Ok(device),
    }
}

fn validate_placement(
    args: &PlacementArgs,
    device: DeviceChoice,
) -> Result<PlacementChoice, UsageError> {
    let has_device = device != DeviceChoice::None;
    if let Some(split) = &args.split {
        match args.policy {
            Some(PolicyName::TwoSplit) | None => {}
            Some(other) => return Err(UsageError::SplitWithPolicy { policy: other.name() }),
        }
        if !has_device {
            return Err(UsageError::SplitWithoutDevice);
        }
        let chunking = args.split_chunks.as_deref().map(parse_chunking).transpose()?;
        return Ok(PlacementChoice::Split { split: split.clone(), chunking });
    }
    if args.split_chunks.is_some() && !has_device {
        return Err(UsageError::SplitWithoutDevice);
    }
    match (args.policy, has_device) {
        (Some(policy), true) => Ok(PlacementChoice::Named(policy)),
        (None, true) => Ok(PlacementChoice::Named(PolicyName::Auto)),
        (Some(PolicyName::CpuOnly | PolicyName::Auto) | None, false) => {
            Ok(PlacementChoice::Named(PolicyName::CpuOnly))
        }
        (Some(PolicyName::Ellm), false) => Ok(PlacementChoice::Named(PolicyName::Ellm)),
        (Some(policy), false) => Err(UsageError::NoDevice { policy: policy.name() }),
    }
}
