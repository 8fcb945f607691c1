//! Log-probabilities of a prompt's tokens, as vLLM tells them.

use indexmap::IndexMap;
use serde::{Deserialize, Serialize};

use super::logprobs::TokenLogprob;
use crate::boundary::codec::TextCodec;
use crate::boundary::engine::Logprob;

/// For each token of a prompt, by their ids, it and those that were most likely in its place; null
/// for the first, of which nothing is known.
pub type PromptLogprobs = Vec<Option<IndexMap<String, PromptToken>>>;

/// A token in a place of a prompt.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct PromptToken {
    pub logprob: f32,
    /// Its place among the most likely ones, from 1; null where it is none of those told.
    pub rank: Option<usize>,
    /// Null for a model without tokenizer.
    pub decoded_token: Option<String>,
}

/// Those of a prompt of which `found` has `width` entries for each token but the first, its own in
/// front; told are its own and `likely` others.
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
