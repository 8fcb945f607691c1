//! Prompts in which a model judges a document, as in Qwen3-Reranker's model card.

use std::sync::Arc;

use engine_api::codec::TextCodec;
use engine_api::event::Logprob;
use engine_api::request::GenerationRequest;

use super::request::RerankBody;
use crate::input_line::{ErrorCode, Rejection};
use crate::prompt::ModelLimits;

const HEAD: &str = "<|im_start|>system\nJudge whether the Document meets the requirements based on \
                    the Query and the Instruct provided. Note that the answer can only be \"yes\" \
                    or \"no\".<|im_end|>\n<|im_start|>user\n";
const TAIL: &str = "<|im_end|>\n<|im_start|>assistant\n<think>\n\n</think>\n\n";
/// Tokens that the prompt requires.
const MARKERS: [&str; 2] = ["<|im_start|>", "<|im_end|>"];

/// Number of sequences of a document: one for each of the two answers.
pub const SEQUENCES_PER_DOCUMENT: usize = 2;

/// Parts of all prompts of a request, in tokens.
struct PromptParts {
    head: Vec<u32>,
    tail: Vec<u32>,
    /// The answers that are compared: "yes" and "no".
    answers: [u32; SEQUENCES_PER_DOCUMENT],
}

/// Returns what an engine has to compute: for each document a prompt followed by "yes", and the
/// same prompt followed by "no", of which the log-probability is reported.
///
/// # Errors
/// Returns a rejection if the model's tokenizer lacks a token of the prompt, or if a document
/// exceeds the context.
pub fn rerank_requests(
    body: &RerankBody,
    codec: Option<&dyn TextCodec>,
    limits: ModelLimits,
) -> Result<Vec<GenerationRequest>, Rejection> {
    let codec = codec.ok_or_else(|| {
        Rejection::new(ErrorCode::NoTokenizer, limits.missing_tokenizer_message(""))
    })?;
    let parts = PromptParts::new(codec)?;
    let mut requests = Vec::with_capacity(SEQUENCES_PER_DOCUMENT * body.documents.len());
    for (index, document) in body.documents.iter().enumerate() {
        let RerankBody { query, instruction, .. } = body;
        let text = format!("<Instruct>: {instruction}\n<Query>: {query}\n<Document>: {document}");
        let prompt = [&parts.head[..], &encode(&text, codec)?, &parts.tail].concat();
        let length = prompt.len() + 1;
        if length > limits.context {
            let message = format!(
                "This model's maximum context length is {} tokens. However, document {index} \
                 resulted in {length} tokens with the query and the answer. Please reduce the \
                 length of the documents.",
                limits.context
            );
            let rejection = Rejection::new(ErrorCode::ContextLengthExceeded, message);
            return Err(rejection.with_param("documents"));
        }
        limits.check_tokens(prompt.iter().copied())?;
        requests.extend(parts.answers.map(|answer| GenerationRequest {
            prompt: Arc::from([&prompt[..], &[answer]].concat()),
            any_logits: false,
            prompt_logprobs: 1,
            prompt_logprobs_from: prompt.len() as u32,
            ..GenerationRequest::greedy(Vec::new(), 0)
        }));
    }
    Ok(requests)
}

impl PromptParts {
    fn new(codec: &dyn TextCodec) -> Result<PromptParts, Rejection> {
        let refuse = |text: &str| {
            let message = format!(
                "This model cannot rank documents: its tokenizer has no single token for \
                 '{text}'. Use a model such as Qwen3-Reranker."
            );
            Rejection::new(ErrorCode::UnsupportedField, message)
        };
        for marker in MARKERS {
            let found = codec.special_token(marker).map_err(|error| {
                let what = "This model cannot rank documents";
                Rejection::from_codec_error(&error, ErrorCode::Tokenizer, what)
            })?;
            found.ok_or_else(|| refuse(marker))?;
        }
        let answer = |text: &str| match encode(text, codec)?[..] {
            [token] => Ok(token),
            _ => Err(refuse(text)),
        };
        Ok(PromptParts {
            head: encode(HEAD, codec)?,
            tail: encode(TAIL, codec)?,
            answers: [answer("yes")?, answer("no")?],
        })
    }
}

fn encode(text: &str, codec: &dyn TextCodec) -> Result<Vec<u32>, Rejection> {
    codec.encode_part(text).map_err(|error| {
        let what = "The documents cannot be tokenised";
        Rejection::from_codec_error(&error, ErrorCode::Tokenizer, what).with_param("documents")
    })
}

/// Returns the probability of "yes" if the answer is either "yes" or "no"; `None` if a
/// log-probability is not a number, or if both answers are impossible.
pub fn relevance(yes: Logprob, no: Logprob) -> Option<f64> {
    let difference = f64::from(no.logprob) - f64::from(yes.logprob);
    let score = 1.0 / (1.0 + difference.exp());
    (!score.is_nan()).then_some(score)
}
