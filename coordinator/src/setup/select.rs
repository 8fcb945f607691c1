//! What `--kv-select` asks for, as a plan and its workers need it.

use anyhow::Context;
use program::select::{COLUMNS_THOUSANDTHS, KvSelect, seeded_text};
use sha2::{Digest, Sha256};

use super::model::Opened;
use super::usage::Usage;
use crate::boundary::codec::TextCodec;
use crate::cli::request::Run;

/// Tokens of the text by seed.
const SEEDED_TOKENS: usize = 512;
/// Most and least tokens of a text that are used.
const TEXT_TOKENS_MAX: usize = 1024;
const TEXT_TOKENS_MIN: usize = 64;

/// The rule of a run.
pub(crate) fn rule(run: &Run) -> Option<KvSelect> {
    run.kv_select.as_ref().map(|choice| KvSelect {
        alpha_thousandths: choice.rule.alpha_thousandths,
        max_thousandths: choice.rule.max_thousandths,
        columns_thousandths: COLUMNS_THOUSANDTHS,
        text: choice.text.as_deref().map_or(0, identity),
    })
}

/// What tells a text from others.
fn identity(text: &str) -> u64 {
    let digest = Sha256::digest(text.as_bytes());
    digest.iter().take(8).fold(0, |all, byte| all << 8 | u64::from(*byte))
}

/// What is said of it.
pub(crate) fn note(run: &Run) -> Option<String> {
    let rule = rule(run)?;
    let (alpha, share) = (f64::from(rule.alpha_thousandths), f64::from(rule.max_thousandths));
    Some(format!(
        "New tokens attend to selected positions (--kv-select): those whose approximate score is \
         within {} of the largest, {} % of all at most, and the last {}. This changes answers; \
         what is predicted is for attention to all.",
        alpha / 1e3,
        share / 10.0,
        program::select::RECENT
    ))
}

/// Tokens of the text by which positions are selected; none where they are not.
///
/// # Errors
/// A text that the model's tokenizer cannot read, or that is too short.
pub(crate) fn text(run: &Run, opened: &Opened) -> anyhow::Result<Vec<u32>> {
    let Some(choice) = &run.kv_select else { return Ok(Vec::new()) };
    let most = opened.config.max_positions.saturating_sub(1);
    let Some(text) = &choice.text else {
        return Ok(seeded_text(opened.config.vocab_size, SEEDED_TOKENS.min(most)));
    };
    let codec = opened.codec()?.context("--kv-select-text needs a model with a tokenizer")?;
    let mut tokens = codec.encode(text, usize::MAX)?;
    if tokens.len() < TEXT_TOKENS_MIN {
        let found = tokens.len();
        let sentence = format!(
            "The text of --kv-select-text has {found} tokens; {TEXT_TOKENS_MIN} are needed, and \
             the first {TEXT_TOKENS_MAX} are used"
        );
        return Err(Usage(sentence).into());
    }
    tokens.truncate(TEXT_TOKENS_MAX.min(most));
    Ok(tokens)
}
