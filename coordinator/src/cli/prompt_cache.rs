//! Stored prompt prefixes: arguments of runs that store them, and of `cache`.

use std::path::PathBuf;

use clap::{Args, Subcommand};

use super::request::{CacheAction, CacheRequest, PromptCache};
use super::values::parse_size;

/// Default minimum number of tokens of a stored prompt; computing fewer takes little time.
const LEAST_TOKENS: u32 = 2048;

/// Arguments of a run that stores beginnings of prompts.
#[derive(Debug, Default, Args)]
pub struct LowPrompts {
    /// Keep the keys and values of long prompts in DIR, and find those there that any run of the
    /// same model has kept: a document is computed once, however often it is asked about
    #[arg(long, value_name = "DIR", help_heading = "Memory")]
    pub prompt_cache: Option<PathBuf>,
    /// Most that DIR may hold, e.g. 100GiB; what was not used for longest goes first [default: as
    /// much as the drive takes]
    #[arg(long, value_name = "SIZE", requires = "prompt_cache", help_heading = "Memory")]
    #[arg(value_parser = parse_size)]
    pub prompt_cache_max: Option<u64>,
    /// Prompts of fewer tokens are not stored [default: 2048]
    #[arg(long, value_name = "N", requires = "prompt_cache", help_heading = "Memory")]
    #[arg(value_parser = clap::value_parser!(u32).range(1..))]
    pub prompt_cache_min: Option<u32>,
}

impl LowPrompts {
    /// Converts the arguments; returns `None` if prompts are not stored.
    pub(super) fn meant(self) -> Option<PromptCache> {
        let directory = self.prompt_cache?;
        Some(PromptCache {
            directory,
            most_bytes: self.prompt_cache_max,
            least_tokens: self.prompt_cache_min.unwrap_or(LEAST_TOKENS),
        })
    }
}

/// What to do with a store.
#[derive(Debug, Subcommand)]
pub enum LowCache {
    /// Say which beginnings of prompts are stored, for which models
    List {
        /// What --prompt-cache was
        #[arg(value_name = "DIR")]
        directory: PathBuf,
        /// Say it as one JSON object
        #[arg(long)]
        json: bool,
    },
    /// Remove some of them, and what no run could use
    #[command(group = clap::ArgGroup::new("which").required(true).multiple(true))]
    Rm {
        /// What --prompt-cache was
        #[arg(value_name = "DIR")]
        directory: PathBuf,
        /// Beginnings, as `list` names them
        #[arg(value_name = "NAME", group = "which")]
        #[arg(value_parser = clap::builder::NonEmptyStringValueParser::new())]
        names: Vec<String>,
        /// All of a model, or of the folder that `list` says
        #[arg(long, value_name = "MODEL", group = "which")]
        model: Option<String>,
        /// All that was not used for so many days
        #[arg(long, value_name = "DAYS", group = "which")]
        unused_days: Option<u32>,
        /// All
        #[arg(long, group = "which")]
        all: bool,
    },
}

/// Converts the arguments to a request.
pub(super) fn cache(low: LowCache) -> CacheRequest {
    match low {
        LowCache::List { directory, json } => {
            CacheRequest { directory, action: CacheAction::List { json } }
        }
        LowCache::Rm { directory, names, model, unused_days, all } => {
            let action = CacheAction::Remove { names, model, unused_days, all };
            CacheRequest { directory, action }
        }
    }
}
