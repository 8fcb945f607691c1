//! Answers of APIs that have one answer per request, if they are not streamed.

use std::sync::Arc;

use axum::http::StatusCode;
use axum::response::Response;
use engine_api::codec::TextCodec;
use openai::messages::message::AnthropicMessage;
use openai::output::{Provenance, Usage};
use openai::raw_logprobs::RawLogprobs;
use openai::responses::response::{ResponseStatus, ResponseUsage};
use openai::stop::Answer;

use super::answer_events::CompletedAnswer;
use super::answer_memory::AnswerMemoryPermit;
use super::clock::now_s;
use super::error::ApiError;
use super::parsed_request::ParsedRequest;
use super::reply::json;
use super::request_api::RequestApi;
use super::state::ServerState;
use super::stored_response::store_response;

/// Maximum number of tokens and log-probabilities of an answer that is written on a socket thread.
const INLINE_ENTRIES_MAX: usize = 4096;

/// An answer, and what its response contains in addition.
pub struct SingleResponse {
    pub shared: Arc<ServerState>,
    pub parsed: Arc<ParsedRequest>,
    pub provenance: Provenance,
    pub usage: Usage,
    pub ended: Box<CompletedAnswer>,
}

impl SingleResponse {
    /// Returns the response, which is written on a writing thread if it is long or stored. `memory`
    /// is in use until then.
    ///
    /// # Errors
    /// The answer is not what was requested.
    pub async fn respond(self, memory: Option<AnswerMemoryPermit>) -> Result<Response, ApiError> {
        let logprobs = self.ended.logprobs.as_ref().map_or(0, RawLogprobs::len);
        let is_short = self.ended.answer.token_ids.len() + logprobs <= INLINE_ENTRIES_MAX;
        let response = self.parsed.request.response.as_ref();
        if is_short && !response.is_some_and(|settings| settings.is_stored) {
            return self.write();
        }
        let shared = Arc::clone(&self.shared);
        let write = move || {
            let _memory = memory;
            self.write()
        };
        shared.blocking_pools.writing.run(write).await
    }

    fn write(self) -> Result<Response, ApiError> {
        let SingleResponse { shared, parsed, provenance, usage, ended } = self;
        let codec = shared.model.codec.as_deref().map(|codec| codec as &dyn TextCodec);
        let CompletedAnswer { answer, logprobs, .. } = *ended;
        let answer = Answer { logprobs: logprobs.map(|found| found.decode(codec)), ..answer };
        if let Some(error) = &answer.error {
            return Err(ApiError::internal(error.clone()));
        }
        if parsed.api == RequestApi::Messages {
            let message = AnthropicMessage::new(&parsed.request, &provenance.model, answer, &usage);
            return Ok(json(StatusCode::OK, &message));
        }
        let head = parsed.response_head(provenance);
        let status = ResponseStatus::from_answer(&answer);
        let items = head.items(answer);
        let mut response = head.response(status, &items);
        response.usage = Some(ResponseUsage::new(&usage));
        response.completed_at = (status == ResponseStatus::Completed).then(now_s);
        Ok(json(StatusCode::OK, &store_response(&response, &head, &shared)))
    }
}
