//! Aggregate requirements of all requests, from which a run is planned.

use openai::input_line::CompletionRequest;

/// Maxima over the sequences that are to run.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct JobWorkload {
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
    pub evaluates_prompts: bool,
    /// True if an answer must follow a grammar.
    pub has_grammars: bool,
}

impl JobWorkload {
    /// Sums up the requests; returns `None` if there are none.
    pub(super) fn from_requests<'r>(
        requests: impl Iterator<Item = &'r CompletionRequest>,
    ) -> Option<JobWorkload> {
        let mut first: Option<&[u32]> = None;
        let prompts =
            requests.flat_map(|request| request.prompts.iter().map(move |p| (request, p)));
        prompts.fold(None, |demand, (request, prompt)| {
            let (tokens, max_new) = (prompt.tokens.len(), prompt.engine_max_new());
            let prompt_logprobs = request.logprobs_per_prompt_token();
            let old = demand.unwrap_or(JobWorkload {
                sequences: 0,
                max_prompt: 0,
                shared_prompt: tokens,
                max_new: 0,
                max_context: 0,
                logprobs: 0,
                evaluates_prompts: false,
                has_grammars: false,
            });
            let first = *first.get_or_insert(&prompt.tokens);
            Some(JobWorkload {
                sequences: old.sequences + request.n,
                max_prompt: old.max_prompt.max(tokens),
                shared_prompt: common_prefix_len(&first[..old.shared_prompt], &prompt.tokens),
                max_new: old.max_new.max(max_new),
                max_context: old.max_context.max(tokens + max_new as usize),
                logprobs: old.logprobs.max(request.logprobs_per_token()).max(prompt_logprobs),
                evaluates_prompts: old.evaluates_prompts
                    || prompt_logprobs > 0
                    || prompt.max_new == 0,
                has_grammars: old.has_grammars || request.grammar.is_some(),
            })
        })
    }
}

/// Returns the length of the common prefix.
fn common_prefix_len(a: &[u32], b: &[u32]) -> usize {
    a.iter().zip(b).take_while(|(a, b)| a == b).count()
}
