//! Measures the divergence of the next-token distributions of a model whose new tokens attend to
//! selected positions from those of the same model that attends to all, and the share of the
//! positions that it reads. The divergence is the mean Kullback-Leibler divergence in nats over the
//! last tokens of windows of a text.
//!
//!     cargo run --release -p workers --example selection -- FILE.gguf CALIBRATION TEXT... \
//!         -- 4:0.2 8:0.5 4:0.2:all
//!
//! Weights are expanded to bf16. CALIBRATION is a text file, or `seeded`; a rule is alpha:max, or
//! alpha:max:share with the share of a key's columns by which positions are selected, where `all`
//! selects by the scores of attention themselves. Prints a line for each rule. Used by
//! `scripts/selection.py`.

mod windows;

use std::error::Error;
use std::path::Path;

use model::source::gguf::GgufSource;
use program::map::DeviceMap;
use program::select::{COLUMNS_THOUSANDTHS, KvSelect, seeded_text};
use windows::{Comparison, Windows, on_cpu, predictions, tokens};

const WINDOWS: Windows = Windows { count: 4, tokens: 4096, prompt: 4096 - 128 };
/// Number of tokens of the calibration text.
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
        let kv_select = parse(rule)?;
        let map = DeviceMap { kv_select: Some(kv_select), ..map.clone() };
        let found = predictions(&source, &map, WINDOWS, &text, &calibration)?;
        let Comparison { count, mean, error, same_choice } =
            Comparison::between(&expected.rows, &found.rows);
        let (read, all) = found.selected;
        println!(
            "rule {rule}, {} columns, {count} tokens: {:.2} % of KV read, mean KL divergence \
             {mean:.5} +- {error:.5}, same most likely token {:.1} %",
            kv_select.partial_columns(config.head_dim),
            100.0 * read as f64 / all as f64,
            100.0 * same_choice,
        );
    }
    Ok(())
}

/// Parses a rule in command-line syntax.
fn parse(rule: &str) -> Result<KvSelect, Box<dyn Error>> {
    let parts: Vec<&str> = rule.split(':').collect();
    let thousandths = |text: &str| Ok::<_, Box<dyn Error>>((1e3 * text.parse::<f64>()?).round());
    let (alpha, max, columns_thousandths) = match parts[..] {
        [alpha, max] => (alpha, max, COLUMNS_THOUSANDTHS),
        [alpha, max, "all"] => (alpha, max, 1000),
        [alpha, max, share] => (alpha, max, thousandths(share)? as u16),
        _ => return Err(format!("{rule} is no rule; write alpha:max, as in 4:0.2").into()),
    };
    Ok(KvSelect {
        alpha_thousandths: thousandths(alpha)? as u32,
        max_thousandths: thousandths(max)? as u16,
        columns_thousandths,
        text: 0,
    })
}

/// Returns the first tokens of a file, or pseudorandom ones.
fn calibration_tokens(source: &GgufSource, from: &str) -> Result<Vec<u32>, Box<dyn Error>> {
    if from != "seeded" {
        let one = Windows { count: 1, tokens: CALIBRATION, prompt: 1 };
        let mut tokens = tokens(source, &[from.to_owned()], one)?;
        tokens.truncate(CALIBRATION);
        return Ok(tokens);
    }
    Ok(seeded_text(source.config().vocab_size, CALIBRATION))
}
