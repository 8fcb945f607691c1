//! Stored prompt prefixes: arguments of runs that store them, and of `cache`.

use std::path::PathBuf;

use clap::{Args, Subcommand};

use super::request::{CacheAction, CacheRequest};
use super::values::parse_size;
use session::request::PromptCacheConfig;

/// Default minimum number of tokens of a stored prompt; computing fewer takes little time.
const DEFAULT_MIN_TOKENS: u32 = 2048;

/// Arguments of a run that stores prompt prefixes.
#[derive(Debug, Default, Args)]
pub struct PromptCacheArgs {
    /// Store the keys and values of long prompts in DIR, and reuse those that any run of the same
    /// model stored there, so that a document is computed only once
    #[arg(long, value_name = "DIR", help_heading = "Memory")]
    pub prompt_cache: Option<PathBuf>,
    /// Maximum size of DIR, e.g. 100GiB; the least recently used contents are removed first
    /// [default: limited by the drive]
    #[arg(long, value_name = "SIZE", requires = "prompt_cache", help_heading = "Memory")]
    #[arg(value_parser = parse_size)]
    pub prompt_cache_max: Option<u64>,
    /// Minimum number of tokens of a prompt to store [default: 2048]
    #[arg(long, value_name = "N", requires = "prompt_cache", help_heading = "Memory")]
    #[arg(value_parser = clap::value_parser!(u32).range(1..))]
    pub prompt_cache_min: Option<u32>,
}

impl PromptCacheArgs {
    /// Converts the arguments; returns `None` if prompts are not stored.
    pub(super) fn into_config(self) -> Option<PromptCacheConfig> {
        let directory = self.prompt_cache?;
        Some(PromptCacheConfig {
            directory,
            max_bytes: self.prompt_cache_max,
            min_tokens: self.prompt_cache_min.unwrap_or(DEFAULT_MIN_TOKENS),
        })
    }
}

/// Actions on a store of prompt prefixes.
#[derive(Debug, Subcommand)]
pub enum CacheArgs {
    /// List the stored prompt prefixes and their models
    List {
        /// Directory of --prompt-cache
        #[arg(value_name = "DIR")]
        directory: PathBuf,
        /// Print one JSON object
        #[arg(long)]
        json: bool,
    },
    /// Remove stored prompt prefixes, and all files that no run can use
    #[command(group = clap::ArgGroup::new("which").required(true).multiple(true))]
    Rm {
        /// Directory of --prompt-cache
        #[arg(value_name = "DIR")]
        directory: PathBuf,
        /// Prefixes to remove, as named by `list`
        #[arg(value_name = "NAME", group = "which")]
        #[arg(value_parser = clap::builder::NonEmptyStringValueParser::new())]
        names: Vec<String>,
        /// Remove all prefixes of a model, or of a folder that `list` names
        #[arg(long, value_name = "MODEL", group = "which")]
        model: Option<String>,
        /// Remove all prefixes that were not used in the last DAYS days
        #[arg(long, value_name = "DAYS", group = "which")]
        unused_days: Option<u32>,
        /// Remove all prefixes
        #[arg(long, group = "which")]
        all: bool,
    },
}

/// Converts the arguments to a request.
pub(super) fn cache(args: CacheArgs) -> CacheRequest {
    match args {
        CacheArgs::List { directory, json } => {
            CacheRequest { directory, action: CacheAction::List { json } }
        }
        CacheArgs::Rm { directory, names, model, unused_days, all } => {
            let action = CacheAction::Remove { names, model, unused_days, all };
            CacheRequest { directory, action }
        }
    }
}
