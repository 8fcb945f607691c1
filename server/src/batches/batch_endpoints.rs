//! Endpoints of batches.

use std::sync::Arc;

use axum::extract::{Path, RawQuery, Request, State};
use axum::http::StatusCode;
use axum::response::{IntoResponse, Response};
use openai::body::unknown_fields::UnknownFieldPolicy;

use super::batch_record::BatchRecord;
use super::batch_request::BatchRequest;
use super::file_endpoints::answer;
use super::list_page::ListQuery;
use super::service::no_such_batch;
use crate::error::ApiError;
use crate::parsed_request::parse_fields;
use crate::reply::json;
use crate::state::ServerState;

/// Default and maximum number of batches in a page, OpenAI's.
const DEFAULT_PAGE_BATCHES: usize = 20;
const MAX_PAGE_BATCHES: usize = 100;

/// Handles `POST /v1/batches`.
pub async fn create(State(shared): State<Arc<ServerState>>, request: Request) -> Response {
    match create_batch(&shared, request).await {
        Ok(response) => response,
        Err(error) => {
            shared.metrics.count_refused(error.code());
            error.into_response()
        }
    }
}

async fn create_batch(shared: &Arc<ServerState>, request: Request) -> Result<Response, ApiError> {
    shared.check_open()?;
    shared.batch_service()?;
    let (parts, body) = request.into_parts();
    let mut body = shared.body_reader.read(&parts.headers, body).await?;
    let state = Arc::clone(shared);
    let size_bytes = body.size_bytes();
    let parse = move || {
        let fields = parse_fields(body.bytes(), |_| false, &state)?;
        // Of this request alone, since others are not to list its fields.
        let unknown_fields = UnknownFieldPolicy::new(state.options.ignore_unknown_fields);
        Ok(BatchRequest::read(&fields, &unknown_fields)?)
    };
    let request = shared.blocking_pools.parse_body(size_bytes, parse).await?;
    let state = Arc::clone(shared);
    let create = move || {
        let record = state.batch_service()?.create_batch(request, state.model.name())?;
        Ok(json(StatusCode::OK, &record.object()))
    };
    shared.blocking_pools.files.run(create).await
}

/// Handles `GET /v1/batches`.
pub async fn list(State(shared): State<Arc<ServerState>>, RawQuery(query): RawQuery) -> Response {
    answer(&shared, move |service| {
        let page = ListQuery::parse(query.as_deref(), DEFAULT_PAGE_BATCHES, MAX_PAGE_BATCHES)?;
        let index = service.storage.lock();
        let batches = index.batches.records().iter().collect();
        Ok(json(StatusCode::OK, &page.page(batches, BatchRecord::object)?))
    })
    .await
}

/// Handles `GET /v1/batches/ID`.
pub async fn retrieve(State(shared): State<Arc<ServerState>>, Path(id): Path<String>) -> Response {
    answer(&shared, move |service| {
        let index = service.storage.lock();
        let record = index.batches.find(&id).ok_or_else(|| no_such_batch(&id))?;
        Ok(json(StatusCode::OK, &record.object()))
    })
    .await
}

/// Handles `POST /v1/batches/ID/cancel`.
pub async fn cancel(State(shared): State<Arc<ServerState>>, Path(id): Path<String>) -> Response {
    answer(&shared, move |service| Ok(json(StatusCode::OK, &service.cancel_batch(&id)?.object())))
        .await
}
