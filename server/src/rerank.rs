//! The endpoint that ranks documents.

use std::sync::Arc;

use axum::extract::{Request, State};
use axum::http::StatusCode;
use axum::response::Response;
use engine_api::codec::TextCodec;
use engine_api::event::Logprob;
use engine_api::serving::GenerationRequest;
use openai::body::{JsonFields, RawPrompt};
use openai::input_line::{ErrorCode, Rejection};
use openai::rerank::prompt::{SEQUENCES_PER_DOCUMENT, relevance, rerank_requests};
use openai::rerank::request::RerankBody;
use openai::rerank::response::RerankList;

use super::error::ApiError;
use super::parsed_request::BYTES_PER_TOKEN;
use super::prompt_request::{PromptEndpoint, PromptEstimate, handle};
use super::prompt_results::PromptResults;
use super::reply::json;
use super::state::ServerState;

/// Bytes of a result as JSON, without its document.
const RESULT_BYTES: u64 = 128;

/// Handles `/v1/rerank`.
pub async fn rerank(State(shared): State<Arc<ServerState>>, request: Request) -> Response {
    handle::<RerankCall>(&shared, request).await
}

/// A request to rank documents.
struct RerankCall {
    body: RerankBody,
    /// Number of tokens of the prompts, each of which is computed for two answers.
    prompt_tokens: u64,
}

impl PromptEndpoint for RerankCall {
    const PATH: &'static str = "/v1/rerank";

    fn read(fields: &JsonFields, shared: &ServerState) -> Result<RerankCall, Rejection> {
        Ok(RerankCall { body: RerankBody::read(fields, &shared.unread)?, prompt_tokens: 0 })
    }

    fn estimate(&self) -> PromptEstimate {
        let RerankBody { query, instruction, documents, .. } = &self.body;
        let shared = query.len() + instruction.len();
        let bytes: usize = documents.iter().map(|document| shared + document.len()).sum();
        let sequences = (SEQUENCES_PER_DOCUMENT * documents.len()) as u64;
        PromptEstimate { sequences, tokens: (bytes / BYTES_PER_TOKEN) as u64 }
    }

    fn prompts(&mut self, shared: &ServerState) -> Result<Vec<GenerationRequest>, ApiError> {
        if shared.engine.limits().logprobs == 0 {
            let message = "This server computes no log-probabilities, by which documents are \
                           ranked.";
            return Err(Rejection::new(ErrorCode::UnsupportedField, message).into());
        }
        let codec = shared.model.codec.as_deref().map(|codec| codec as &dyn TextCodec);
        let RerankBody { query, instruction, documents, .. } = &self.body;
        let texts = documents.iter().chain([query, instruction]);
        let texts: Vec<RawPrompt> = texts.map(|text| RawPrompt::Text(text.clone())).collect();
        shared.prompt_bounds.check(&texts, codec)?;
        let requests = rerank_requests(&self.body, codec, shared.prompt_limits())?;
        let lengths = requests.iter().step_by(SEQUENCES_PER_DOCUMENT);
        self.prompt_tokens = lengths.map(|request| request.prompt.len() as u64 - 1).sum();
        Ok(requests)
    }

    fn answer_bytes(&self, _: &ServerState) -> u64 {
        let texts = if self.body.returns_documents { &self.body.documents[..] } else { &[] };
        let bytes: usize = texts.iter().map(String::len).sum();
        bytes as u64 + RESULT_BYTES * self.body.documents.len() as u64
    }

    fn answer(
        self,
        results: Vec<PromptResults>,
        shared: &ServerState,
    ) -> Result<Response, ApiError> {
        let of_answer = |found: &PromptResults| -> Option<Logprob> {
            found.logprobs.last().copied().filter(|_| !found.has_broken_logits)
        };
        let to_score = |(document, pair): (usize, &[PromptResults])| {
            let score = match pair {
                [yes, no] => of_answer(yes).zip(of_answer(no)),
                _ => None,
            };
            score.and_then(|(yes, no)| relevance(yes, no)).ok_or_else(|| {
                ApiError::internal(format!(
                    "The model's logits for document {document} contain infinities or NaN. Its \
                     weights may be damaged, or too large for this --dtype."
                ))
            })
        };
        let pairs = results.chunks(SEQUENCES_PER_DOCUMENT).enumerate();
        let scores = pairs.map(to_score).collect::<Result<Vec<f64>, _>>()?;
        let (id, model) = (format!("rerank-{}", shared.next_id()), shared.model.name());
        let list = RerankList::new(id, self.body, &scores, self.prompt_tokens, model);
        Ok(json(StatusCode::OK, &list))
    }
}
