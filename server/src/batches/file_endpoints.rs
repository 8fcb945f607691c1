//! Endpoints of stored files.

use std::fs::File;
use std::io::{self, Read};
use std::sync::Arc;

use axum::body::{Body, Bytes};
use axum::extract::{Path, RawQuery, State};
use axum::http::{HeaderValue, StatusCode, header};
use axum::response::{IntoResponse, Response};
use futures_util::stream::unfold;
use serde::Serialize;

use super::file_record::{FilePurpose, FileRecord};
use super::list_page::ListQuery;
use super::service::{BatchService, no_such_file, storage_error};
use crate::clock::now_s;
use crate::error::ApiError;
use crate::query::parameter;
use crate::reply::json;
use crate::state::ServerState;

/// Maximum and default number of files in a page, OpenAI's.
const MAX_PAGE_FILES: usize = 10_000;

/// Bytes of a file that are read at a time.
const CHUNK_BYTES: usize = 256 << 10;

/// A file that was deleted.
#[derive(Serialize)]
struct DeletedFile<'a> {
    id: &'a str,
    object: &'static str,
    deleted: bool,
}

/// Handles `GET /v1/files`.
pub async fn list(State(shared): State<Arc<ServerState>>, RawQuery(query): RawQuery) -> Response {
    answer(&shared, move |service| {
        let page = ListQuery::parse(query.as_deref(), MAX_PAGE_FILES, MAX_PAGE_FILES)?;
        let purpose = parameter(query.as_deref(), "purpose");
        let now_s = now_s();
        let index = service.storage.lock();
        let is_listed = |file: &&FileRecord| {
            let wanted = purpose.as_deref();
            !file.is_expired(now_s)
                && wanted.is_none_or(|name| FilePurpose::from_name(name) == Some(file.purpose))
        };
        let files = index.files.records().iter().filter(is_listed).collect();
        Ok(json(StatusCode::OK, &page.page(files, FileRecord::object)?))
    })
    .await
}

/// Handles `GET /v1/files/ID`.
pub async fn retrieve(State(shared): State<Arc<ServerState>>, Path(id): Path<String>) -> Response {
    answer(&shared, move |service| Ok(json(StatusCode::OK, &find_file(service, &id)?.object())))
        .await
}

/// Handles `DELETE /v1/files/ID`.
pub async fn delete(State(shared): State<Arc<ServerState>>, Path(id): Path<String>) -> Response {
    answer(&shared, move |service| {
        service.delete_file(&id)?;
        Ok(json(StatusCode::OK, &DeletedFile { id: &id, object: "file", deleted: true }))
    })
    .await
}

/// Handles `GET /v1/files/ID/content`. A file that is deleted meanwhile is still sent to its end.
pub async fn content(State(shared): State<Arc<ServerState>>, Path(id): Path<String>) -> Response {
    let state = Arc::clone(&shared);
    answer(&shared, move |service| {
        let record = find_file(service, &id)?;
        let file = service.storage.open_content(&id).map_err(|error| storage_error(&error))?;
        let rest = FileReader { shared: state, file, remaining_bytes: record.bytes };
        let mut response = Response::new(Body::from_stream(unfold(rest, FileReader::next)));
        let headers = response.headers_mut();
        let octets = HeaderValue::from_static("application/octet-stream");
        headers.insert(header::CONTENT_TYPE, octets);
        headers.insert(header::X_CONTENT_TYPE_OPTIONS, HeaderValue::from_static("nosniff"));
        headers.insert(header::CONTENT_LENGTH, HeaderValue::from(record.bytes));
        Ok(response)
    })
    .await
}

/// Answers a request on a thread that may wait for a drive.
pub async fn answer(
    shared: &Arc<ServerState>,
    respond: impl FnOnce(&BatchService) -> Result<Response, ApiError> + Send + 'static,
) -> Response {
    let state = Arc::clone(shared);
    let respond = move || respond(state.batch_service()?);
    let answered = shared.blocking_pools.files.run(respond).await;
    answered.unwrap_or_else(|error| {
        shared.metrics.count_refused(error.code());
        error.into_response()
    })
}

fn find_file(service: &BatchService, id: &str) -> Result<FileRecord, ApiError> {
    let index = service.storage.lock();
    let file = index.files.find(id).filter(|file| !file.is_expired(now_s()));
    file.cloned().ok_or_else(|| no_such_file(id))
}

/// Reader of a file that is sent part by part.
struct FileReader {
    shared: Arc<ServerState>,
    file: File,
    remaining_bytes: u64,
}

impl FileReader {
    /// Returns the next bytes; `None` at the end. The connection ends early if the file cannot be
    /// read, so that no client mistakes it for a complete one.
    async fn next(mut self) -> Option<(io::Result<Bytes>, FileReader)> {
        if self.remaining_bytes == 0 {
            return None;
        }
        let shared = Arc::clone(&self.shared);
        let read = move || {
            let bytes =
                CHUNK_BYTES.min(usize::try_from(self.remaining_bytes).unwrap_or(usize::MAX));
            let mut chunk = vec![0; bytes];
            let read = self.file.read_exact(&mut chunk);
            self.remaining_bytes -= bytes as u64;
            Ok((read.map(|()| Bytes::from(chunk)), self))
        };
        shared.blocking_pools.files.run(read).await.ok()
    }
}
