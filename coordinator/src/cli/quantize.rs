//! Arguments of `quantize`.

use std::path::PathBuf;

use clap::Args;
use quantizer::file_type::{FileType, UnknownFileType};

use super::request::QuantizeRequest;
use session::request::ModelChoice;

/// Arguments of `quantize`.
#[derive(Debug, Args)]
pub struct QuantizeArgs {
    /// Model to convert: a directory with safetensors, a .gguf file, or org/name in the Hugging
    /// Face cache
    #[arg(value_name = "IN")]
    pub model: String,
    /// GGUF file to write
    #[arg(value_name = "OUT")]
    pub output: PathBuf,
    /// Type of the file: q4_k_m, q8_0, q6_k, q5_k_m, q4_0, iq4_xs, q3_k_m, q2_k or another name of
    /// llama.cpp
    #[arg(long = "type", value_name = "TYPE", value_parser = parse_file_type)]
    pub file_type: FileType,
    /// Text for calibration, some 10,000 to 100,000 words: columns of matrices that have large
    /// inputs in it are rounded with smaller errors
    #[arg(long, value_name = "FILE")]
    pub calibrate: Option<PathBuf>,
    /// Branch, tag or commit of org/name [default: main]
    #[arg(long, value_name = "REVISION")]
    pub revision: Option<String>,
    /// Number of threads [default: one for each CPU]
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u16).range(1..))]
    pub threads: Option<u16>,
    /// Overwrite an existing output
    #[arg(long)]
    pub force: bool,
    /// Print only errors
    #[arg(long, short)]
    pub quiet: bool,
}

fn parse_file_type(name: &str) -> Result<FileType, UnknownFileType> {
    name.parse()
}

/// Converts the arguments to a request.
pub(super) fn quantize(args: QuantizeArgs) -> QuantizeRequest {
    QuantizeRequest {
        model: ModelChoice {
            name: args.model,
            revision: args.revision,
            dummy_weights: false,
            layers: None,
            positions: None,
        },
        output: args.output,
        file_type: args.file_type,
        calibrate: args.calibrate,
        threads: args.threads,
        overwrites: args.force,
        quiet: args.quiet,
    }
}
