//! Arguments of `score`.

use std::path::PathBuf;

use clap::Args;

use super::prompt_cache::LowPrompts;
use super::shared::{LowModel, LowPlacement};
use super::stage::LowNvme;

/// Maximum number of log-probabilities in addition to a token's own: a word of the step table
/// counts both.
const TOP_MAX: i64 = u16::MAX as i64 - 1;

/// Arguments of `score`.
#[derive(Debug, Args)]
pub struct LowScore {
    #[command(flatten)]
    pub of_model: LowModel,

    /// What to score: .jsonl ({"prompt": ..., "continuations": [...]} a line), .txt (one text, for
    /// its perplexity), - is JSON lines from stdin
    #[arg(long, value_name = "FILE", help_heading = "Work")]
    pub input: PathBuf,
    /// Where the scores go; - is stdout [default: -]
    #[arg(long, value_name = "FILE", help_heading = "Work")]
    pub output: Option<PathBuf>,
    /// Go on with an output that an earlier run left; refused where it holds scores that the input
    /// no longer asks for
    #[arg(long, requires = "output", help_heading = "Work")]
    pub resume: bool,
    /// Overwrite an existing output; with --resume only the scores that are no longer asked for
    #[arg(long, requires = "output", help_heading = "Work")]
    pub force: bool,
    /// Of a text: tokens from one window to the next [default: half of a window]
    #[arg(long, value_name = "S", value_parser = clap::value_parser!(u32).range(1..))]
    #[arg(help_heading = "Work")]
    pub stride: Option<u32>,
    /// Of a text: tokens of a window [default: the model's positions, at most 2048]
    #[arg(long, value_name = "C", value_parser = clap::value_parser!(u32).range(2..))]
    #[arg(help_heading = "Work")]
    pub context: Option<u32>,
    /// Also tell the ids of the tokens that are scored
    #[arg(long, help_heading = "Work")]
    pub tokens: bool,
    /// Also tell the K most likely tokens in the place of each, up to the whole vocabulary
    #[arg(long, value_name = "K", default_value_t = 0, help_heading = "Work")]
    #[arg(value_parser = clap::value_parser!(u16).range(0..=TOP_MAX))]
    pub top: u16,
    /// Write what all scores say together as JSON
    #[arg(long, value_name = "FILE", help_heading = "Work")]
    pub summary: Option<PathBuf>,
    /// Key of dummy weights
    #[arg(long, value_name = "SEED", default_value_t = 0, help_heading = "Work")]
    pub seed: u64,

    /// Sequences that are computed at a time [default: as many as memory has room for, at most 32]
    #[arg(long, value_name = "N", help_heading = "Placement")]
    #[arg(value_parser = clap::value_parser!(u16).range(1..))]
    pub slots: Option<u16>,
    #[command(flatten)]
    pub placement: LowPlacement,
    #[command(flatten)]
    pub nvme: LowNvme,
    #[command(flatten)]
    pub prompts: LowPrompts,

    /// End as on SIGTERM once stdin ends: for programs that start this one and must not leave it
    /// behind
    #[arg(long, help_heading = "Work")]
    pub stop_at_eof: bool,

    /// Say nothing but errors
    #[arg(long, short, help_heading = "Verbosity")]
    pub quiet: bool,
}
