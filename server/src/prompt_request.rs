//! Admission and reading of requests of which only prompts are computed.

use std::sync::Arc;

use axum::extract::Request;
use axum::response::{IntoResponse, Response};
use engine_api::serving::GenerationRequest;
use openai::body::JsonFields;
use openai::input_line::Rejection;

use super::activity::{Activity, ConnectionPhase};
use super::admission::AdmissionPermit;
use super::answer_memory::AnswerMemoryPermit;
use super::error::ApiError;
use super::parsed_request::{check_model, parse_fields};
use super::prompt_results::{PromptBatch, PromptResults, metadata_of};
use super::request_id::RequestId;
use super::state::ServerState;

/// Endpoint whose requests have prompts alone.
pub trait PromptEndpoint: Send + Sized + 'static {
    /// Path of the endpoint.
    const PATH: &'static str;

    /// Reads the fields of a body.
    ///
    /// # Errors
    /// A field is missing, invalid or unknown.
    fn read(fields: &JsonFields, shared: &ServerState) -> Result<Self, Rejection>;

    /// Returns the number of sequences, and an estimate of the number of their tokens.
    fn estimate(&self) -> PromptEstimate;

    /// Returns what the engine has to compute.
    ///
    /// # Errors
    /// A text that cannot be tokenised, or more than the model supports.
    fn prompts(&mut self, shared: &ServerState) -> Result<Vec<GenerationRequest>, ApiError>;

    /// Returns the number of bytes of the answer.
    fn answer_bytes(&self, shared: &ServerState) -> u64;

    /// Returns the answer.
    ///
    /// # Errors
    /// Results that are not finite.
    fn answer(
        self,
        results: Vec<PromptResults>,
        shared: &ServerState,
    ) -> Result<Response, ApiError>;
}

/// Size of a request before its texts are tokenised.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct PromptEstimate {
    pub sequences: u64,
    pub tokens: u64,
}

/// A request that is admitted.
struct AdmittedPrompts<E> {
    endpoint: E,
    requests: Vec<GenerationRequest>,
    permit: AdmissionPermit,
    memory: AnswerMemoryPermit,
}

/// Handles a request.
pub async fn handle<E: PromptEndpoint>(shared: &Arc<ServerState>, request: Request) -> Response {
    match respond::<E>(shared, request).await {
        Ok(response) => response,
        Err(error) => error.into_response(),
    }
}

async fn respond<E: PromptEndpoint>(
    shared: &Arc<ServerState>,
    request: Request,
) -> Result<Response, ApiError> {
    let metadata = metadata_of(request.extensions().get::<RequestId>().map(RequestId::as_str));
    let activity = request.extensions().get::<Arc<Activity>>().cloned();
    let admitted = admit::<E>(shared, request, activity.as_deref()).await;
    let AdmittedPrompts { endpoint, requests, permit, memory } = admitted.inspect_err(|error| {
        shared.metrics.count_refused(error.code());
    })?;
    let batch = PromptBatch::submit(shared, E::PATH, requests, permit, metadata)?;
    let results = batch.results().await?;
    let state = Arc::clone(shared);
    let write = move || endpoint.answer(results, &state);
    let response = shared.blocking_pools.writing.run(write).await;
    drop(memory);
    response
}

async fn admit<E: PromptEndpoint>(
    shared: &Arc<ServerState>,
    request: Request,
    activity: Option<&Activity>,
) -> Result<AdmittedPrompts<E>, ApiError> {
    shared.check_open()?;
    shared.admission.check_capacity().map_err(|full| shared.admission_error(full))?;
    let (parts, body) = request.into_parts();
    let mut body = shared.body_reader.read(&parts.headers, body).await?;
    if let Some(activity) = activity {
        activity.set_phase(ConnectionPhase::Answering);
    }
    shared.check_open()?;
    let mut permit = shared.admission.admit().map_err(|full| shared.admission_error(full))?;
    let reader = Arc::clone(shared);
    let size_bytes = body.size_bytes();
    let parse = move || {
        let fields = parse_fields(body.bytes(), |_| false, &reader)?;
        check_model(&fields, &reader)?;
        let mut endpoint = E::read(&fields, &reader)?;
        drop(fields);
        let PromptEstimate { sequences, tokens } = endpoint.estimate();
        let mut count = |tokens| {
            permit.set_counts(sequences, tokens).map_err(|full| reader.admission_error(full))
        };
        count(tokens)?;
        let requests = endpoint.prompts(&reader)?;
        count(requests.iter().map(|request| request.prompt.len() as u64).sum())?;
        let retry_after_s = reader.admission.retry_after_s();
        let bytes = endpoint.answer_bytes(&reader);
        let memory = reader.answer_memory.acquire_bytes(bytes, bytes, retry_after_s)?;
        Ok(AdmittedPrompts { endpoint, requests, permit, memory })
    };
    shared.blocking_pools.parse_body(size_bytes, parse).await
}
