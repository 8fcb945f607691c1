//! How far the next-token distributions of a model whose new tokens attend to selected positions
//! lie from those of the same model that attends to all, and what share of the positions it reads:
//! the mean Kullback-Leibler divergence in nats over the last tokens of windows of a text.
//!
//!     cargo run --release -p workers --example selection -- FILE.gguf CALIBRATION TEXT... \
//!         -- 4:0.2 8:0.5
//!
//! Weights are expanded to bf16. CALIBRATION is a file of text, or `seeded`; a rule is alpha:max.
//! Prints a line for each rule. Used by `scripts/selection.py`.

mod windows;

use std::error::Error;
use std::path::Path;

use model::source::gguf::GgufSource;
use program::map::DeviceMap;
use program::select::{KvSelect, seeded_text};
use windows::{Comparison, Windows, on_cpu, predictions, tokens};

const WINDOWS: Windows = Windows { count: 4, tokens: 4096, prompt: 4096 - 128 };
/// Tokens of the calibration.
const CALIBRATION: usize = 512;

fn main() -> Result<(), Box<dyn Error>> {
    let arguments: Vec<String> = std::env::args().skip(1).collect();
    let mut parts = arguments.split(|argument| argument == "--");
    let (Some([file, calibration, texts @ ..]), Some(rules)) = (parts.next(), parts.next()) else {
        return Err("usage: selection FILE.gguf CALIBRATION TEXT... -- ALPHA:MAX...".into());
    };
    let source = GgufSource::open(Path::new(file))?;
    let config = source.config();
    let text = tokens(&source, texts, WINDOWS)?;
    let calibration = calibration_tokens(&source, calibration)?;
    let map = on_cpu(config);
    let expected = predictions(&source, &map, WINDOWS, &text, &[])?;
    for rule in rules {
        let Some((alpha, max)) = rule.split_once(':') else {
            return Err(format!("{rule} is no rule; write alpha:max, as in 4:0.2").into());
        };
        let (alpha, max): (f64, f64) = (alpha.parse()?, max.parse()?);
        let kv_select = Some(KvSelect {
            alpha_thousandths: (1e3 * alpha).round() as u32,
            max_thousandths: (1e3 * max).round() as u16,
            text: 0,
        });
        let map = DeviceMap { kv_select, ..map.clone() };
        let found = predictions(&source, &map, WINDOWS, &text, &calibration)?;
        let Comparison { count, mean, error, same_choice } =
            Comparison::of(&expected.rows, &found.rows);
        let (read, all) = found.selected;
        println!(
            "alpha {alpha} max {max}, {count} tokens: {:.2} % of KV read, mean KL divergence \
             {mean:.5} +- {error:.5}, same most likely token {:.1} %",
            100.0 * read as f64 / all as f64,
            100.0 * same_choice,
        );
    }
    Ok(())
}

/// The first tokens of a file, or some by seed.
fn calibration_tokens(source: &GgufSource, from: &str) -> Result<Vec<u32>, Box<dyn Error>> {
    if from != "seeded" {
        let one = Windows { count: 1, tokens: CALIBRATION, prompt: 1 };
        let mut tokens = tokens(source, &[from.to_owned()], one)?;
        tokens.truncate(CALIBRATION);
        return Ok(tokens);
    }
    Ok(seeded_text(source.config().vocab_size, CALIBRATION))
}
