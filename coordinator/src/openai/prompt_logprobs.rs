//! Log-probabilities of a prompt's tokens, in the format of vLLM.

use indexmap::IndexMap;
use serde::{Deserialize, Serialize};

use super::logprobs::TokenLogprob;
use crate::boundary::codec::TextCodec;
use crate::boundary::engine::Logprob;

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
    let told = |one: &Logprob, rank: Option<usize>| {
        let shown = TokenLogprob::new(*one, codec);
        let decoded_token = codec.map(|_| shown.token);
        (one.token.to_string(), PromptToken { logprob: shown.logprob, rank, decoded_token })
    };
    let place = |place: &[Logprob]| {
        let (own, others) = (place[0], &place[1..=usize::from(likely)]);
        let rank = others.iter().position(|other| other.token == own.token).map(|at| at + 1);
        let others = others.iter().zip(1..).map(|(other, rank)| told(other, Some(rank)));
        let mut tokens = IndexMap::from([told(&own, rank)]);
        for (id, other) in others {
            tokens.entry(id).or_insert(other);
        }
        Some(tokens)
    };
    std::iter::once(None).chain(found.chunks(width).map(place)).collect()
}
