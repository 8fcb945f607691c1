//! `coordinator quantize`: writes a model as a GGUF file with fewer bits per weight.

use std::ops::ControlFlow;
use std::path::Path;
use std::sync::{Mutex, PoisonError};

use anyhow::Context;
use engine_api::codec::TextCodec;
use kernels::{PoolOptions, Variant};
use model::source::WeightSource;
use model::source::gguf::GgufSource;
use model::source::safetensors::SafetensorsSource;
use planner::policy::{DefaultTiers, Policy, device_map};
use program::topology::MemoryId;
use protocol::messages::WeightsOrigin;
use quantizer::checkpoint::CheckpointInput;
use quantizer::error::QuantizeError;
use quantizer::importance::Importance;
use quantizer::input::{GgufInput, ModelInput};
use quantizer::job::{QuantizeOptions, QuantizeProgress, QuantizedFile, quantize};
use report::plain_table::{plain_table, right_aligned};
use workers::squared_inputs::{ObservedModel, squared_inputs};

use crate::cli::request::QuantizeRequest;
use session::argument_error::ArgumentError;
use session::byte_progress_bar::ByteProgressBar;
use session::exit::Exit;
use session::interrupt::Interrupt;
use session::model::ModelHandle;

/// Number of tokens of a calibration text that are computed together.
const WINDOW: usize = 512;
/// Minimum number of tokens of a calibration text: fewer say little about a model's inputs.
const MIN_CALIBRATION_TOKENS: usize = 512;

/// Writes the file.
///
/// # Errors
/// An error whose message is meant for the user.
pub fn run(request: &QuantizeRequest, interrupt: &Interrupt) -> anyhow::Result<Exit> {
    let model = ModelHandle::open(&request.model, 0)?;
    let done = match &model.weights {
        WeightsOrigin::Gguf { path } => {
            let source = GgufSource::open(Path::new(path))?;
            let input = GgufInput::new(&source)?;
            if input.is_quantised() && !request.quiet {
                eprintln!(
                    "{path}: the file is already quantised, which adds to the errors; a file in \
                     bf16 or f16 gives better results"
                );
            }
            quantize_from(request, &model, &source, &input, interrupt)
        }
        WeightsOrigin::Safetensors { directory } => {
            let directory = Path::new(directory);
            let source = SafetensorsSource::open(directory, &model.config)?;
            let input = CheckpointInput::new(&model.config, &source, directory)?;
            quantize_from(request, &model, &source, &input, interrupt)
        }
        WeightsOrigin::Dummy { .. } | WeightsOrigin::DummyRandomRouting { .. } => {
            let sentence = format!("{}: there are no weights to quantise", request.model.name);
            return Err(ArgumentError(sentence).into());
        }
    };
    match done {
        Ok(file) => {
            if !request.quiet {
                print_file(request, &file);
            }
            Ok(Exit::Done)
        }
        Err(error) if matches!(error.downcast_ref(), Some(QuantizeError::Interrupted)) => {
            eprintln!("interrupted");
            Ok(Exit::Interrupted)
        }
        Err(error) => Err(error),
    }
}

fn quantize_from(
    request: &QuantizeRequest,
    model: &ModelHandle,
    source: &dyn WeightSource,
    input: &dyn ModelInput,
    interrupt: &Interrupt,
) -> anyhow::Result<QuantizedFile> {
    let threads = match request.threads {
        Some(threads) => usize::from(threads),
        None => std::thread::available_parallelism().map_or(1, usize::from),
    };
    if request.output.exists() && !request.overwrites {
        let path = request.output.display().to_string();
        return Err(QuantizeError::Exists { path }.into());
    }
    let importance = match &request.calibrate {
        None => Importance::default(),
        Some(text) => measure_importance(request, model, source, text, threads, interrupt)
            .with_context(|| format!("--calibrate {}", text.display()))?,
    };
    let options = QuantizeOptions {
        file_type: request.file_type,
        importance: &importance,
        threads,
        overwrites: request.overwrites,
    };
    let bar = Mutex::new(ByteProgressBar::new("quantising", request.quiet));
    let written = quantize(input, &request.output, &options, &Progress { bar: &bar, interrupt });
    bar.lock().unwrap_or_else(PoisonError::into_inner).finish();
    Ok(written?)
}

/// Progress of a job as a bar, ended by signals.
struct Progress<'a> {
    bar: &'a Mutex<ByteProgressBar>,
    interrupt: &'a Interrupt,
}

impl QuantizeProgress for Progress<'_> {
    fn update(&self, done_bytes: u64, total_bytes: u64) {
        self.bar.lock().unwrap_or_else(PoisonError::into_inner).update(done_bytes, total_bytes);
    }

    fn is_interrupted(&self) -> bool {
        self.interrupt.is_requested()
    }
}

/// Computes the model over a text and returns the importance of the columns of its matrices.
fn measure_importance(
    request: &QuantizeRequest,
    model: &ModelHandle,
    source: &dyn WeightSource,
    text: &Path,
    threads: usize,
    interrupt: &Interrupt,
) -> anyhow::Result<Importance> {
    let windows = windows(model, text)?;
    let config = &model.config;
    let tiers = DefaultTiers { kv: MemoryId::DRAM, prefill_hidden: MemoryId::DRAM };
    let map = device_map(&Policy::CpuOnly, config, true, tiers);
    let pool = PoolOptions::unpinned(threads);
    let observed =
        ObservedModel { config, source, map: &map, variant: Variant::from_env()?, pool: &pool };
    let total = windows.iter().map(Vec::len).sum::<usize>();
    if !request.quiet {
        eprintln!("calibrating with {total} tokens");
    }
    let sums = squared_inputs(&observed, &windows, &mut |_| {
        if interrupt.is_requested() { ControlFlow::Break(()) } else { ControlFlow::Continue(()) }
    })?;
    if interrupt.is_requested() {
        return Err(QuantizeError::Interrupted.into());
    }
    let importance = Importance::from_sums(config, &sums);
    anyhow::ensure!(!importance.is_empty(), "no inputs of this model can be measured");
    let unrouted = importance.unrouted_experts();
    if unrouted > 0 && !request.quiet {
        eprintln!(
            "{unrouted} matrices of experts had no inputs in the text; their columns have equal \
             weights"
        );
    }
    Ok(importance)
}

/// Returns the tokens of a text in windows, each preceded by the tokens that begin a text.
fn windows(model: &ModelHandle, text: &Path) -> anyhow::Result<Vec<Vec<u32>>> {
    let content = std::fs::read_to_string(text)?;
    let Some(codec) = model.codec()? else {
        anyhow::bail!("{} has no tokenizer", model.config.name);
    };
    let start = codec.encode("", WINDOW)?;
    let tokens = codec.encode_part(&content)?;
    anyhow::ensure!(
        tokens.len() >= MIN_CALIBRATION_TOKENS,
        "the text has {} tokens; at least {MIN_CALIBRATION_TOKENS} are needed",
        tokens.len()
    );
    let window = WINDOW.min(model.config.max_positions.saturating_sub(1));
    anyhow::ensure!(start.len() < window, "the model has only {window} positions");
    let windows = tokens.chunks(window - start.len());
    Ok(windows.map(|window| start.iter().chain(window).copied().collect()).collect())
}

/// Prints a table of the types in the file.
fn print_file(request: &QuantizeRequest, file: &QuantizedFile) {
    let mut table = plain_table();
    table.set_header(["type", "tensors", "MiB", "bits per weight"]);
    right_aligned(&mut table, 1..4);
    let mib = |bytes: u64| format!("{:.1}", bytes as f64 / f64::from(1u32 << 20));
    let (mut bytes, mut elements) = (0, 0);
    for total in &file.types {
        let bits = 8.0 * total.size_bytes as f64 / total.elements as f64;
        table.add_row([
            total.stored.name().to_owned(),
            total.tensors.to_string(),
            mib(total.size_bytes),
            format!("{bits:.2}"),
        ]);
        bytes += total.size_bytes;
        elements += total.elements;
    }
    eprintln!("{table}");
    eprintln!(
        "{} ({}): {} MiB, {:.2} bits per weight",
        request.output.display(),
        request.file_type,
        mib(file.size_bytes),
        8.0 * bytes as f64 / elements as f64
    );
}
