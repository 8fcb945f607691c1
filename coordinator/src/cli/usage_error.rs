//! Messages for invalid combinations of arguments.

use cuda::CudaError;
use planner::split::SplitError;

/// An invalid combination of arguments.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum UsageError {
    #[error("--model is missing; write for example --model ./SmolLM2, or see --help.")]
    NoModel,
    #[error("plan requires --model MODEL, or --tables FILE with the times of a layer.")]
    PlanWithoutModel,
    #[error(
        "--device cuda:{device}: {source} Use --device emulated to study a placement without a GPU."
    )]
    NoCuda { device: u32, source: CudaError },
    #[error(
        "--policy {policy} requires a GPU, and this run has none; add --device emulated, or use \
         --policy cpu-only."
    )]
    NoDevice { policy: &'static str },
    #[error(
        "--split requires a GPU, and this run has none; add --device emulated, or remove --split."
    )]
    SplitWithoutDevice,
    #[error(
        "--host-attention requires a GPU, and this run has none; add --device emulated, or remove \
         --host-attention."
    )]
    HostAttentionWithoutDevice,
    #[error("--policy {policy} cannot be combined with --split, which implies --policy two-split.")]
    SplitWithPolicy { policy: &'static str },
    #[error("{0}.")]
    Split(#[from] SplitError),
    #[error("--{flag} requires an output file, but answers go to stdout; add --output FILE.")]
    OutputModeWithStdout { flag: &'static str },
    #[error(
        "--stride and --context split one text into windows, but the input consists of lines; \
         remove both, or pass a .txt file to --input."
    )]
    WindowsWithJsonLines,
    #[error(
        "--stride {stride} skips tokens between windows of {context} tokens; use at most the \
         value of --context."
    )]
    StrideExceedsContext { stride: u32, context: u32 },
    #[error(
        "--system requires a conversation, but a .txt file contains raw prompts; add --chat, or \
         remove --system."
    )]
    SystemWithoutChat,
    #[error(
        "--device emulated:timed replays specified times and computes nothing; add --tables FILE \
         or --machine MACHINE, or use --device emulated."
    )]
    TimedWithoutTables,
    #[error(
        "--json applies to --tables, --machine and subcommands; use --report FILE for the \
         figures of a run."
    )]
    JsonWithoutTables,
    #[error(
        "--prompt-cache stores prompts of --input or of a server, and this run has neither; \
         remove it."
    )]
    PromptsWithoutInput,
    #[error(
        "--speculate and --draft-model draft tokens of requests; pass a file of requests to \
         --input, or use serve."
    )]
    SpeculationWithoutInput,
    #[error("--stop-at-eof and --input - would both read stdin; pass a file to --input.")]
    RepeatedStdin,
    #[error(
        "--{flag} runs on a device that replays times without computing; add --device \
         emulated:timed."
    )]
    TimesWithoutTimed { flag: &'static str },
    #[error(
        "the gain of drafts depends on how many of them are accepted; add --acceptance RATE, for \
         example 0.7."
    )]
    DraftsWithoutAcceptance,
    #[error(
        "plan predicts drafts for described machines; add --machine MACHINE, without --serve, or \
         remove --{flag}."
    )]
    DraftsWithoutMachine { flag: &'static str },
    #[error(
        "timed emulation does not emulate the layer that drafts; use --speculate ngram, or plan \
         --speculate mtp."
    )]
    TimedPredictionLayer,
    #[error("--chart with --serve draws a replay; add --timed POLICY.")]
    ChartWithoutReplay,
    #[error("--emulated-threads requires --device emulated; remove it.")]
    EmulatedThreadsWithoutDevice,
    #[error(
        "--export describes a machine with its device, but no device is measured; add --device \
         cuda:0 or --device emulated."
    )]
    ExportWithoutDevice,
    #[error("--export requires rates in bf16, as machine files contain; remove --dtype.")]
    ExportWithoutBf16,
    #[error("--kv-select is supported only on the CPU; add --device none, or remove it.")]
    SelectOnDevice,
    #[error(
        "--prompt-cache stores keys and values, but not the data by which --kv-select selects; \
         remove one of the two."
    )]
    SelectWithPrompts,
    #[error("--kv-select requires fused attention; remove --no-fuse.")]
    SelectWithoutFusion,
    #[error("--kv-select affects only generated tokens, and score generates none; remove it.")]
    SelectInScore,
    #[error("--kv-select-text {path} cannot be read: {reason}.")]
    UnreadableSelectText { path: String, reason: String },
    #[error("--vram requires a device; remove it, or add --device emulated.")]
    VramWithoutDevice,
    #[error("Device memory is set twice; use --vram or --device emulated:vram=..., not both.")]
    ConflictingVram,
}
