//! Log-probabilities of a prompt's tokens, in the format of vLLM.

use engine_api::codec::TextCodec;
use engine_api::event::Logprob;
use indexmap::IndexMap;
use serde::{Deserialize, Serialize};

use super::logprobs::{Spelling, TokenLogprob};

/// Log-probabilities of each token of a prompt and of the most likely tokens at its position, by
/// token id; null for the first token, for which none are known.
pub type PromptLogprobs = Vec<Option<IndexMap<String, PromptToken>>>;

/// A token at a position of a prompt.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct PromptToken {
    pub logprob: f32,
    /// Rank among the most likely tokens, from 1; null if the token is not among those reported.
    pub rank: Option<usize>,
    /// Text of the token; null for a model without a tokenizer.
    pub decoded_token: Option<String>,
}

/// Returns the log-probabilities of a prompt: for each token but the first its own and those of
/// `likely` most likely tokens. `found` has `width` entries for each of these tokens, the token's
/// own in front.
pub fn prompt_logprobs(
    found: &[Logprob],
    width: usize,
    likely: u16,
    codec: Option<&dyn TextCodec>,
) -> PromptLogprobs {
    let to_entry = |entry: &Logprob, rank: Option<usize>| {
        let shown = TokenLogprob::new(*entry, Spelling::text(codec));
        let decoded_token = codec.map(|_| shown.token);
        (entry.token.to_string(), PromptToken { logprob: shown.logprob, rank, decoded_token })
    };
    let to_position = |place: &[Logprob]| {
        let (actual, likeliest) = (place[0], &place[1..=usize::from(likely)]);
        let rank = likeliest.iter().position(|other| other.token == actual.token).map(|at| at + 1);
        let ranked = likeliest.iter().zip(1..).map(|(other, rank)| to_entry(other, Some(rank)));
        let mut tokens = IndexMap::from([to_entry(&actual, rank)]);
        for (id, other) in ranked {
            tokens.entry(id).or_insert(other);
        }
        Some(tokens)
    };
    std::iter::once(None).chain(found.chunks(width).map(to_position)).collect()
}
