//! Arguments of `score`.

use std::path::PathBuf;

use clap::Args;

use super::prompt_cache::PromptCacheArgs;
use super::shared::{ModelArgs, PlacementArgs};
use super::stage::NvmeArgs;

/// Maximum number of log-probabilities in addition to a token's own: a word of the step table
/// counts both.
const TOP_MAX: i64 = u16::MAX as i64 - 1;

/// Arguments of `score`.
#[derive(Debug, Args)]
pub struct ScoreArgs {
    #[command(flatten)]
    pub of_model: ModelArgs,

    /// Input to score: .jsonl ({"prompt": ..., "continuations": [...]} per line), .txt (one text,
    /// for its perplexity), or - for JSON lines from stdin
    #[arg(long, value_name = "FILE", help_heading = "Work")]
    pub input: PathBuf,
    /// File for the scores; - is stdout [default: -]
    #[arg(long, value_name = "FILE", help_heading = "Work")]
    pub output: Option<PathBuf>,
    /// Continue the output of an earlier run; refused if it contains scores that the input no
    /// longer requests
    #[arg(long, requires = "output", help_heading = "Work")]
    pub resume: bool,
    /// Overwrite an existing output; with --resume, only scores that the input no longer requests
    #[arg(long, requires = "output", help_heading = "Work")]
    pub force: bool,
    /// Number of tokens from one window of a text to the next [default: half of a window]
    #[arg(long, value_name = "S", value_parser = clap::value_parser!(u32).range(1..))]
    #[arg(help_heading = "Work")]
    pub stride: Option<u32>,
    /// Number of tokens in a window of a text [default: the model's positions, at most 2048]
    #[arg(long, value_name = "C", value_parser = clap::value_parser!(u32).range(2..))]
    #[arg(help_heading = "Work")]
    pub context: Option<u32>,
    /// Also output the ids of the scored tokens
    #[arg(long, help_heading = "Work")]
    pub tokens: bool,
    /// Also output the K most likely tokens at the position of each scored one, up to the whole
    /// vocabulary
    #[arg(long, value_name = "K", default_value_t = 0, help_heading = "Work")]
    #[arg(value_parser = clap::value_parser!(u16).range(0..=TOP_MAX))]
    pub top: u16,
    /// Write a summary of all scores as JSON
    #[arg(long, value_name = "FILE", help_heading = "Work")]
    pub summary: Option<PathBuf>,
    /// Seed of dummy weights
    #[arg(long, value_name = "SEED", default_value_t = 0, help_heading = "Work")]
    pub seed: u64,

    /// Maximum number of sequences computed at a time [default: as many as fit in memory, at most
    /// 32]
    #[arg(long, value_name = "N", help_heading = "Placement")]
    #[arg(value_parser = clap::value_parser!(u16).range(1..))]
    pub slots: Option<u16>,
    #[command(flatten)]
    pub placement: PlacementArgs,
    #[command(flatten)]
    pub nvme: NvmeArgs,
    #[command(flatten)]
    pub prompts: PromptCacheArgs,

    /// Stop as on SIGTERM when stdin reaches its end, so that this process does not outlive the
    /// program that started it
    #[arg(long, help_heading = "Work")]
    pub stop_at_eof: bool,

    /// Write the measurements as JSON
    #[arg(long, value_name = "FILE", help_heading = "Verbosity")]
    pub report: Option<PathBuf>,
    /// Write a trace with a span for every instruction, for ui.perfetto.dev
    #[arg(long, value_name = "FILE", help_heading = "Verbosity")]
    pub trace: Option<PathBuf>,
    /// Print only errors
    #[arg(long, short, help_heading = "Verbosity")]
    pub quiet: bool,
}
