//! What all requests together need, by which a run is planned.

use crate::openai::item::Request;

/// Maxima over sequences that are to run, for the plan.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Demand {
    pub sequences: usize,
    /// Longest prompt, tokens.
    pub max_prompt: usize,
    /// Tokens with which all prompts begin.
    pub shared_prompt: usize,
    /// Largest number of new tokens.
    pub max_new: u32,
    /// Longest prompt + new tokens of one sequence.
    pub max_context: usize,
    /// Log-probabilities of a token.
    pub logprobs: u16,
    /// Whether something is to be said of a prompt's tokens.
    pub looks_at_prompts: bool,
    /// Whether an answer must have a form.
    pub forms: bool,
}

impl Demand {
    /// Of some requests; `None` when there are none.
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

/// Tokens with which both begin.
fn common(one: &[u32], other: &[u32]) -> usize {
    one.iter().zip(other).take_while(|(one, other)| one == other).count()
}
