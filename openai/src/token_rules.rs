//! Rules of a request about single tokens, resolved for a model.

use std::sync::Arc;

use engine_api::codec::TextCodec;
use engine_api::token_rules::{ReasoningBudget, TokenRules};

use super::body::Body;
use super::input_line::{ErrorCode, Rejection};
use super::prompt::ModelLimits;

/// Bias of tokens that must precede all others, or follow all others if it is negated. It exceeds
/// any difference between two logits, and leaves the differences between logits that both have it
/// unchanged to about four decimals.
const DECISIVE_BIAS: f32 = 1024.0;

/// Returns the rules of a request, including those that follow from `allowed_token_ids` and
/// `bad_words`, and a limit on its reasoning; `None` if there are none.
///
/// # Errors
/// Returns a rejection of a token outside the vocabulary, a word that is not a single token, or too
/// many tokens.
pub fn resolve_token_rules(
    body: &Body,
    reasoning_budget: Option<ReasoningBudget>,
    codec: Option<&dyn TextCodec>,
    limits: ModelLimits,
) -> Result<Option<Arc<TokenRules>>, Rejection> {
    limits.check_token_rules(body.token_rules.as_deref())?;
    let has_lists = !body.allowed_token_ids.is_empty() || !body.bad_words.is_empty();
    if !has_lists && reasoning_budget.is_none() {
        return Ok(body.token_rules.clone());
    }
    limits
        .check_tokens(body.allowed_token_ids.iter().copied())
        .map_err(|rejection| rejection.with_param("allowed_token_ids"))?;
    let mut rules = body.token_rules.as_deref().cloned().unwrap_or_default();
    rules.reasoning_budget = reasoning_budget;
    rules.logit_bias.extend(body.allowed_token_ids.iter().map(|token| (*token, DECISIVE_BIAS)));
    for word in &body.bad_words {
        let tokens = single_tokens(word, codec, limits)?;
        rules.logit_bias.extend(tokens.into_iter().map(|token| (token, -DECISIVE_BIAS)));
    }
    if rules.logit_bias.len() > TokenRules::LOGIT_BIASES_MAX {
        let message = format!(
            "Invalid value for 'logit_bias': 'logit_bias', 'allowed_token_ids' and 'bad_words' \
             together must name at most {} tokens.",
            TokenRules::LOGIT_BIASES_MAX
        );
        let rejection = Rejection::new(ErrorCode::InvalidValue, message);
        return Err(rejection.with_param("logit_bias"));
    }
    Ok(Some(Arc::new(rules)))
}

/// Returns the tokens that spell a word at the beginning of a text and after a space.
fn single_tokens(
    word: &str,
    codec: Option<&dyn TextCodec>,
    limits: ModelLimits,
) -> Result<Vec<u32>, Rejection> {
    let codec = codec.ok_or_else(|| {
        let consequence = ", so 'bad_words' is not supported; remove it";
        Rejection::new(ErrorCode::NoTokenizer, limits.missing_tokenizer_message(consequence))
    })?;
    let mut found = Vec::new();
    for text in [word.to_owned(), format!(" {}", word.trim_start())] {
        let tokens = codec.encode_part(&text).map_err(|error| {
            let what = "A word of 'bad_words' cannot be tokenised";
            Rejection::from_codec_error(&error, ErrorCode::Tokenizer, what)
        })?;
        if let [token] = tokens[..]
            && !found.contains(&token)
        {
            found.push(token);
        }
    }
    if found.is_empty() {
        let shown: String = word.chars().take(80).collect();
        let message = format!(
            "Unsupported value: {} in 'bad_words' is more than one token; only single tokens can \
             be excluded. Remove it.",
            serde_json::json!(shown)
        );
        return Err(Rejection::new(ErrorCode::UnsupportedField, message).with_param("bad_words"));
    }
    Ok(found)
}
