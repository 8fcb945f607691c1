//! The rule and the text of `--kv-select` for a plan and its workers.

use anyhow::Context;
use engine_api::codec::TextCodec;
use program::select::{COLUMNS_THOUSANDTHS, KvSelect, seeded_text};
use sha2::{Digest, Sha256};

use super::argument_error::ArgumentError;
use crate::session::Session;

/// Number of tokens of the seeded text.
const SEEDED_TOKENS: usize = 512;
/// Bounds on the number of tokens of a given text: shorter ones are refused, and the end of longer
/// ones is ignored.
const TEXT_TOKENS_MAX: usize = 1024;
const TEXT_TOKENS_MIN: usize = 64;

/// Returns the selection rule of a run; `None` if new tokens attend to all positions.
pub(crate) fn selection_rule(session: &Session<'_>) -> Option<KvSelect> {
    session.options.kv_select.as_ref().map(|choice| KvSelect {
        alpha_thousandths: choice.rule.alpha_thousandths,
        max_thousandths: choice.rule.max_thousandths,
        columns_thousandths: COLUMNS_THOUSANDTHS,
        text: choice.text.as_deref().map_or(0, identity),
    })
}

/// Returns a hash that identifies a text.
fn identity(text: &str) -> u64 {
    let digest = Sha256::digest(text.as_bytes());
    digest.iter().take(8).fold(0, |all, byte| all << 8 | u64::from(*byte))
}

/// Returns the sentence that is printed about the selection.
pub(crate) fn note(session: &Session<'_>) -> Option<String> {
    let rule = selection_rule(session)?;
    let (alpha, share) = (f64::from(rule.alpha_thousandths), f64::from(rule.max_thousandths));
    Some(format!(
        "New tokens attend to selected positions (--kv-select): those whose approximate score is \
         within {} of the largest, at most {} % of all, and the last {}. This changes answers; \
         predictions assume attention to all positions.",
        alpha / 1e3,
        share / 10.0,
        program::select::RECENT
    ))
}

/// Returns the tokens of the text whose queries and keys determine the skew for selected positions;
/// empty if positions are not selected.
///
/// # Errors
/// A text that the model's tokenizer cannot read, or that is too short.
pub(crate) fn calibration_tokens(session: &Session<'_>) -> anyhow::Result<Vec<u32>> {
    let Some(choice) = &session.options.kv_select else { return Ok(Vec::new()) };
    let max_tokens = session.model.config.max_positions.saturating_sub(1);
    let Some(text) = &choice.text else {
        return Ok(seeded_text(session.model.config.vocab_size, SEEDED_TOKENS.min(max_tokens)));
    };
    let codec =
        session.model.codec()?.context("--kv-select-text requires a model with a tokenizer")?;
    let mut tokens = codec.encode(text, usize::MAX)?;
    if tokens.len() < TEXT_TOKENS_MIN {
        let found = tokens.len();
        let sentence = format!(
            "The text of --kv-select-text has {found} tokens; at least {TEXT_TOKENS_MIN} are \
             required, and the first {TEXT_TOKENS_MAX} are used"
        );
        return Err(ArgumentError(sentence).into());
    }
    tokens.truncate(TEXT_TOKENS_MAX.min(max_tokens));
    Ok(tokens)
}
