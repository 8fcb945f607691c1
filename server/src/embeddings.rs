//! The endpoint of embeddings.

use std::sync::Arc;

use axum::extract::{Request, State};
use axum::http::StatusCode;
use axum::response::Response;
use engine_api::codec::TextCodec;
use engine_api::serving::GenerationRequest;
use openai::body::JsonFields;
use openai::embeddings::line::not_finite;
use openai::embeddings::request::{EmbeddingBody, EmbeddingRequest};
use openai::embeddings::response::EmbeddingList;
use openai::embeddings::vector::embedding;
use openai::input_line::Rejection;

use super::error::ApiError;
use super::parsed_request::estimated_tokens;
use super::prompt_request::{PromptEndpoint, PromptEstimate, handle};
use super::prompt_results::PromptResults;
use super::reply::json;
use super::state::ServerState;

/// Bytes of an element of a vector as the engine reports it, and as JSON.
const ELEMENT_BYTES: u64 = 4 + 16;

/// Handles `/v1/embeddings`.
pub async fn embeddings(State(shared): State<Arc<ServerState>>, request: Request) -> Response {
    handle::<EmbeddingCall>(&shared, request).await
}

/// A request of embeddings: its body until it is tokenised.
struct EmbeddingCall {
    body: EmbeddingBody,
    request: Option<EmbeddingRequest>,
}

impl PromptEndpoint for EmbeddingCall {
    const PATH: &'static str = "/v1/embeddings";

    fn read(fields: &JsonFields, shared: &ServerState) -> Result<EmbeddingCall, Rejection> {
        Ok(EmbeddingCall { body: EmbeddingBody::read(fields, &shared.unread)?, request: None })
    }

    fn estimate(&self) -> PromptEstimate {
        let inputs = &self.body.inputs;
        let tokens = inputs.iter().map(estimated_tokens).sum();
        PromptEstimate { sequences: inputs.len() as u64, tokens }
    }

    fn prompts(&mut self, shared: &ServerState) -> Result<Vec<GenerationRequest>, ApiError> {
        let codec = shared.model.codec.as_deref().map(|codec| codec as &dyn TextCodec);
        shared.prompt_bounds.check(&self.body.inputs, codec)?;
        let (model, limits) = (&shared.model.embeddings, shared.prompt_limits());
        let request = EmbeddingRequest::build(&self.body, model, codec, limits)?;
        self.body.inputs = Vec::new();
        let request = self.request.insert(request);
        Ok((0..request.inputs.len()).map(|input| request.generation_request(input)).collect())
    }

    fn answer_bytes(&self, shared: &ServerState) -> u64 {
        let inputs = self.request.as_ref().map_or(0, |request| request.inputs.len() as u64);
        inputs * shared.model.embeddings.hidden_size as u64 * ELEMENT_BYTES
    }

    fn answer(
        self,
        results: Vec<PromptResults>,
        shared: &ServerState,
    ) -> Result<Response, ApiError> {
        let request = self.request.ok_or_else(|| ApiError::internal("The request is empty."))?;
        let to_vector = |(input, found): (usize, PromptResults)| {
            let hidden = Some(found.hidden).filter(|_| !found.has_broken_logits);
            let vector = hidden.and_then(|hidden| embedding(&hidden, request.dimensions));
            vector.ok_or_else(|| ApiError::internal(not_finite(input).message))
        };
        let vectors = results.into_iter().enumerate().map(to_vector).collect::<Result<_, _>>()?;
        Ok(json(StatusCode::OK, &EmbeddingList::new(&request, vectors, shared.model.name())))
    }
}
