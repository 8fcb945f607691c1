//! Measures the divergence of the next-token distributions of a GGUF file, computed directly from
//! its low-bit weights and, with `--kv`, over caches of few bits, from those of another file,
//! usually the same weights in bf16, over caches in bf16. The result is the mean Kullback-Leibler
//! divergence in nats over the second half of each window of text, as in llama.cpp's perplexity
//! tool.
//!
//!     cargo run --release -p workers --example divergence -- \
//!     [--kv kv8|kv4] BASE.gguf FILE.gguf TEXT...
//!
//! Both run in bf16. Used by `scripts/peers/divergence.py`.

mod windows;

use std::error::Error;
use std::path::Path;

use model::config::ModelConfig;
use model::quantized_format::WeightFormat;
use model::source::gguf::GgufSource;
use model::source::{TensorId, TensorPart, WeightSource};
use program::formats::{KvFormat, WeightFormats};
use program::map::DeviceMap;
use windows::{Comparison, Windows, on_cpu, predictions, tokens};

/// Windows of text, of which the predictions from the middle on are compared.
const WINDOWS: Windows = Windows { count: 8, tokens: 512, prompt: 512 / 2 + 1 };

fn main() -> Result<(), Box<dyn Error>> {
    let arguments: Vec<String> = std::env::args().skip(1).collect();
    let (kv_format, arguments) = match arguments.as_slice() {
        [option, name, rest @ ..] if option == "--kv" => (kv_format(name)?, rest),
        all => (KvFormat::Plain, all),
    };
    let [base, file, texts @ ..] = arguments else {
        return Err("usage: divergence [--kv kv8|kv4] BASE.gguf FILE.gguf TEXT...".into());
    };
    let (base, file) = (GgufSource::open(Path::new(base))?, GgufSource::open(Path::new(file))?);
    let tokens = tokens(&base, texts, WINDOWS)?;
    let predict = |source: &GgufSource, kv_format| -> Result<_, Box<dyn Error>> {
        let config = source.config();
        let weight_formats = stored(source, config)?;
        let map = DeviceMap { weight_formats, kv_format, ..on_cpu(config) };
        Ok(predictions(source, &map, WINDOWS, &tokens, &[])?.rows)
    };
    let Comparison { count, mean, error, same_choice } =
        Comparison::between(&predict(&base, KvFormat::Plain)?, &predict(&file, kv_format)?);
    println!(
        "tandem, {count} tokens: mean KL divergence {mean:.5} +- {error:.5}, same most likely \
         token {:.1} %",
        100.0 * same_choice,
    );
    Ok(())
}

fn kv_format(name: &str) -> Result<KvFormat, Box<dyn Error>> {
    match name {
        "kv8" => Ok(KvFormat::Eight),
        "kv4" => Ok(KvFormat::Four),
        _ => Err(format!("--kv {name}: caches are stored as kv8 or kv4").into()),
    }
}

/// Returns the format in which the file stores each matrix, if kernels support it.
fn stored(source: &GgufSource, config: &ModelConfig) -> Result<WeightFormats, Box<dyn Error>> {
    let of = |id| -> Result<WeightFormat, Box<dyn Error>> {
        let grouped = source.stored_type(id)?.grouped();
        Ok(grouped.map_or(WeightFormat::Plain, WeightFormat::Grouped))
    };
    let mut formats = WeightFormats::plain(config);
    formats.embedding = of(TensorId::Embedding)?;
    if !config.tied_embeddings {
        formats.head = of(TensorId::Head)?;
    }
    for (layer, formats) in formats.layers.iter_mut().enumerate() {
        for (op, format) in config.layer_ops(layer).iter().zip(formats) {
            if op.has_matrix(config) {
                *format = of(TensorId::Layer { layer, op: *op, part: TensorPart::Matrix })?;
            }
        }
    }
    Ok(formats)
}
