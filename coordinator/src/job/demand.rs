//! Aggregate requirements of all requests, from which a run is planned.

use crate::openai::item::Request;

/// Maxima over the sequences that are to run.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Demand {
    pub sequences: usize,
    /// Longest prompt, in tokens.
    pub max_prompt: usize,
    /// Length of the prefix that all prompts share, in tokens.
    pub shared_prompt: usize,
    /// Largest number of new tokens of one sequence.
    pub max_new: u32,
    /// Longest prompt and new tokens of one sequence together.
    pub max_context: usize,
    /// Largest number of log-probabilities per token.
    pub logprobs: u16,
    /// True if log-probabilities of prompt tokens are requested, or a request has no new tokens.
    pub looks_at_prompts: bool,
    /// True if an answer must follow a grammar.
    pub forms: bool,
}

impl Demand {
    /// Sums up the requests; returns `None` if there are none.
    pub(super) fn of<'r>(requests: impl Iterator<Item = &'r Request>) -> Option<Demand> {
        let mut first: Option<&[u32]> = None;
        let prompts =
            requests.flat_map(|request| request.prompts.iter().map(move |p| (request, p)));
        prompts.fold(None, |demand, (request, prompt)| {
            let (tokens, max_new) = (prompt.tokens.len(), prompt.drawn());
            let of_prompt = request.logprobs_of_prompt_token();
            let old = demand.unwrap_or(Demand {
                sequences: 0,
                max_prompt: 0,
                shared_prompt: tokens,
                max_new: 0,
                max_context: 0,
                logprobs: 0,
                looks_at_prompts: false,
                forms: false,
            });
            let first = *first.get_or_insert(&prompt.tokens);
            Some(Demand {
                sequences: old.sequences + request.n,
                max_prompt: old.max_prompt.max(tokens),
                shared_prompt: common(&first[..old.shared_prompt], &prompt.tokens),
                max_new: old.max_new.max(max_new),
                max_context: old.max_context.max(tokens + max_new as usize),
                logprobs: old.logprobs.max(request.logprobs_of_token()).max(of_prompt),
                looks_at_prompts: old.looks_at_prompts || of_prompt > 0 || prompt.max_new == 0,
                forms: old.forms || request.grammar.is_some(),
            })
        })
    }
}

/// Returns the length of the common prefix.
fn common(one: &[u32], other: &[u32]) -> usize {
    one.iter().zip(other).take_while(|(one, other)| one == other).count()
}
