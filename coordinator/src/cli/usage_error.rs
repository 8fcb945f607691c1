//! Messages for invalid combinations of arguments.

use ::cuda::CudaError;
use planner::split::SplitError;

/// An invalid combination of arguments.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum UsageError {
    #[error("--model is missing; write for example --model ./SmolLM2, or see --help.")]
    NoModel,
    #[error("plan needs --model MODEL, or --tables FILE with the times of a layer.")]
    NothingToPlan,
    #[error("--device cuda:{device}: {source} --device emulated studies a placement without one.")]
    NoCuda { device: u32, source: CudaError },
    #[error(
        "--policy {policy} needs a GPU, and this run has none; add --device emulated, or use \
         --policy cpu-only."
    )]
    NoDevice { policy: &'static str },
    #[error(
        "--split needs a GPU to run its part, and this run has none; add --device emulated, or \
         leave --split out."
    )]
    SplitWithoutDevice,
    #[error(
        "--host-attention is beside a GPU, and this run has none; add --device emulated, or leave \
         it out."
    )]
    HostAttentionWithoutDevice,
    #[error("--policy {policy} does not go with --split, which is --policy two-split.")]
    SplitWithPolicy { policy: &'static str },
    #[error("{0}.")]
    Split(#[from] SplitError),
    #[error("--{flag} needs a file to write to, but the answers go to stdout; add --output FILE.")]
    ModeOfStdout { flag: &'static str },
    #[error(
        "--stride and --context cut one text into windows, and the input holds lines; leave them \
         out, or give --input a .txt file."
    )]
    WindowsOfLines,
    #[error(
        "--stride {stride} leaves tokens out between windows of {context}; give at most \
         --context."
    )]
    LongStride { stride: u32, context: u32 },
    #[error(
        "--system needs a conversation, and a .txt file holds raw prompts; add --chat, or leave \
         it out."
    )]
    SystemWithoutChat,
    #[error(
        "--device emulated:timed lets given times pass and computes nothing; add --tables FILE or \
         --machine MACHINE, or use --device emulated."
    )]
    TimedWithoutTables,
    #[error(
        "--json is for --tables, --machine and the subcommands; a run's numbers go to --report \
         FILE."
    )]
    JsonWithoutTables,
    #[error("--prompt-cache keeps the prompts of --input or of a server; leave it out.")]
    PromptsWithoutInput,
    #[error(
        "A job with --prompt-cache runs as a server does, of which there is no --report and no \
         --trace; leave these out."
    )]
    PromptsWithReport,
    #[error("--stop-at-eof and --input - would both read stdin; give --input a file.")]
    StdinTwice,
    #[error("--{flag} runs on a machine that only lets time pass; add --device emulated:timed.")]
    TimesWithoutTimed { flag: &'static str },
    #[error("--chart with --serve draws what was replayed; add --timed POLICY.")]
    ChartWithoutReplay,
    #[error("--emulated-threads is only for --device emulated; leave it out.")]
    EmulatedThreads,
    #[error(
        "--export describes a machine with its device, and none is measured; add --device cuda:0 \
         or --device emulated."
    )]
    ExportWithoutDevice,
    #[error("--export needs rates in bf16, which every machine file has; leave --dtype out.")]
    ExportWithoutBf16,
    #[error("--kv-select is for runs on the CPU alone; add --device none, or leave it out.")]
    SelectOnDevice,
    #[error(
        "--prompt-cache keeps keys and values, and not what --kv-select chooses by; leave one of \
         them out."
    )]
    SelectWithPrompts,
    #[error("--kv-select selects within fused attention; leave --no-fuse out.")]
    SelectUnfused,
    #[error(
        "--kv-select changes what new tokens attend to, and score computes none; leave it out."
    )]
    SelectInScore,
    #[error("--kv-select-text {path} cannot be read: {reason}.")]
    SelectText { path: String, reason: String },
    #[error("--vram is only for a run with a device; leave it out, or add --device emulated.")]
    Vram,
    #[error("Device memory is given twice; write --vram or --device emulated:vram=..., not both.")]
    VramTwice,
}
