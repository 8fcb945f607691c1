//! Upload of a file: a multipart body that is written to disk as it arrives, never in memory as a
//! whole.

use std::fs::File;
use std::io::Write;
use std::sync::Arc;

use atomic_fs::TemporaryFile;
use axum::extract::{Request, State};
use axum::http::{StatusCode, header};
use axum::response::{IntoResponse, Response};
use openai::input_line::{ErrorCode, Rejection};

use super::batch_request::{LIFETIME_ANCHOR, is_lifetime, lifetime_description};
use super::file_record::FilePurpose;
use super::multipart::{MultipartEvent, MultipartParser};
use super::multipart_head::{PartHead, find_boundary};
use super::quota::QuotaReservation;
use super::service::{BatchService, storage_error, storage_full};
use crate::activity::{Activity, ConnectionPhase};
use crate::body_reader::{StreamedBody, format_bytes, incomplete_body};
use crate::error::{ApiError, INVALID_REQUEST};
use crate::reply::json;
use crate::state::ServerState;

/// Bytes that are written at a time.
const WRITE_BYTES: usize = 256 << 10;
/// Maximum size of a field that is not a file, in bytes.
const MAX_FIELD_BYTES: usize = 1024;
/// Maximum number of characters of a file's name; the rest is cut off.
const MAX_NAME_CHARACTERS: usize = 255;
/// Maximum size of the parts of a body other than the file, in bytes.
const MAX_OTHER_BYTES: u64 = 1 << 20;

/// Handles `POST /v1/files`.
pub async fn create_file(State(shared): State<Arc<ServerState>>, request: Request) -> Response {
    match receive(&shared, request).await {
        Ok(response) => response,
        Err(error) => {
            shared.metrics.count_refused(error.code());
            error.into_response()
        }
    }
}

async fn receive(shared: &Arc<ServerState>, request: Request) -> Result<Response, ApiError> {
    shared.check_open()?;
    let service = shared.batch_service()?;
    let state = Arc::clone(shared);
    let check = move || state.batch_service()?.check_file_count();
    shared.blocking_pools.files.run(check).await?;
    let activity = request.extensions().get::<Arc<Activity>>().cloned();
    let (parts, body) = request.into_parts();
    let mut body = shared.body_reader.stream(body);
    let boundary = find_boundary(&parts.headers).ok_or_else(|| {
        let message = "The request body must be multipart/form-data with a boundary.";
        ApiError::invalid("invalid_content_type", message)
    })?;
    let length = parts.headers.get(header::CONTENT_LENGTH).and_then(|value| value.to_str().ok());
    let length: u64 = length.and_then(|length| length.parse().ok()).unwrap_or(0);
    let received = if length > service.max_file_bytes.saturating_add(MAX_OTHER_BYTES) {
        Err(too_large(service))
    } else {
        receive_parts(shared, service, &boundary, &mut body).await
    };
    let upload = match received {
        Ok(upload) => upload,
        Err(error) => {
            body.discard().await;
            return Err(error);
        }
    };
    if let Some(activity) = activity {
        activity.set_phase(ConnectionPhase::Answering);
    }
    shared.check_open()?;
    // Writes the record, for which other requests on this thread do not wait.
    tokio::task::block_in_place(|| upload.store(service))
}

/// Reads all parts of a body.
async fn receive_parts<'s>(
    shared: &Arc<ServerState>,
    service: &'s BatchService,
    boundary: &str,
    body: &mut StreamedBody<'_>,
) -> Result<Upload<'s>, ApiError> {
    let mut upload = Upload::begin(service)?;
    let mut parser = MultipartParser::new(boundary);
    let (mut is_complete, mut received_bytes) = (false, 0_u64);
    while let Some(data) = body.next_data().await? {
        received_bytes += data.len() as u64;
        if received_bytes > service.max_file_bytes.saturating_add(MAX_OTHER_BYTES) {
            return Err(too_large(service));
        }
        parser.push(&data);
        drop(data);
        loop {
            let event = parser.next_event().map_err(|error| {
                let message = format!("The multipart body is invalid: {error}.");
                ApiError::invalid("invalid_multipart", message)
            })?;
            match event {
                None => break,
                Some(MultipartEvent::Part(head)) => upload.begin_part(head)?,
                Some(MultipartEvent::Data(data)) => upload.add(&data)?,
                Some(MultipartEvent::End) => is_complete = true,
            }
            if upload.buffer.len() >= WRITE_BYTES {
                upload.write(shared).await?;
            }
        }
    }
    if !is_complete {
        return Err(incomplete_body());
    }
    upload.write(shared).await?;
    Ok(upload)
}

fn too_large(service: &BatchService) -> ApiError {
    let bytes = usize::try_from(service.max_file_bytes).unwrap_or(usize::MAX);
    let message = format!("File is too large. The maximum size is {}.", format_bytes(bytes));
    let status = StatusCode::PAYLOAD_TOO_LARGE;
    ApiError::new(status, INVALID_REQUEST, "file_too_large", message).with_param("file")
}

/// Part of the body that is being read.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum UploadPart {
    File,
    /// A field, by its index.
    Field(usize),
}

/// Fields that an upload may have, in addition to the file.
const FIELDS: [&str; 3] = ["purpose", "expires_after[anchor]", "expires_after[seconds]"];

/// A file that is being received, which is removed when this is dropped.
struct Upload<'s> {
    service: &'s BatchService,
    temporary: TemporaryFile<'s>,
    file: Arc<File>,
    /// Bytes that are not written yet.
    buffer: Vec<u8>,
    /// Bytes of the file so far.
    bytes: u64,
    reservation: QuotaReservation,
    part: Option<UploadPart>,
    filename: Option<String>,
    /// Values of the fields.
    fields: [Option<Vec<u8>>; FIELDS.len()],
}

impl<'s> Upload<'s> {
    fn begin(service: &'s BatchService) -> Result<Upload<'s>, ApiError> {
        let temporary = service.storage.begin_file().map_err(|error| storage_error(&error))?;
        let file = temporary.file().try_clone().map_err(|error| storage_error(&error))?;
        Ok(Upload {
            service,
            temporary,
            file: Arc::new(file),
            buffer: Vec::new(),
            bytes: 0,
            reservation: QuotaReservation::new(&service.storage.quota),
            part: None,
            filename: None,
            fields: Default::default(),
        })
    }

    fn begin_part(&mut self, head: PartHead) -> Result<(), ApiError> {
        let repeated = |name: &str| invalid(name, "given once");
        if head.name == "file" {
            if self.filename.is_some() {
                return Err(repeated("file"));
            }
            let name = head.filename.filter(|name| !name.is_empty());
            let name = name.ok_or_else(|| invalid("file", "a file with a name"))?;
            self.filename = Some(name.chars().take(MAX_NAME_CHARACTERS).collect());
            self.part = Some(UploadPart::File);
            return Ok(());
        }
        let Some(index) = FIELDS.iter().position(|name| *name == head.name) else {
            let name: String = head.name.chars().take(100).collect();
            let message = format!("Unrecognized request argument supplied: {name}. Remove it.");
            return Err(Rejection::new(ErrorCode::UnsupportedField, message).into());
        };
        if self.fields[index].replace(Vec::new()).is_some() {
            return Err(repeated(FIELDS[index]));
        }
        self.part = Some(UploadPart::Field(index));
        Ok(())
    }

    fn add(&mut self, data: &[u8]) -> Result<(), ApiError> {
        match self.part {
            Some(UploadPart::File) => {
                self.bytes += data.len() as u64;
                if self.bytes > self.service.max_file_bytes {
                    return Err(too_large(self.service));
                }
                self.buffer.extend_from_slice(data);
            }
            Some(UploadPart::Field(index)) => {
                let value = self.fields[index].get_or_insert_default();
                if value.len() + data.len() > MAX_FIELD_BYTES {
                    let expected = format!("at most {MAX_FIELD_BYTES} bytes long");
                    return Err(invalid(FIELDS[index], &expected));
                }
                value.extend_from_slice(data);
            }
            None => {}
        }
        Ok(())
    }

    /// Writes the buffered bytes.
    async fn write(&mut self, shared: &ServerState) -> Result<(), ApiError> {
        if !self.reservation.grow(self.bytes) {
            return Err(storage_full());
        }
        let (file, mut buffer) = (Arc::clone(&self.file), std::mem::take(&mut self.buffer));
        let write = move || {
            (&*file).write_all(&buffer).map_err(|error| storage_error(&error))?;
            buffer.clear();
            Ok(buffer)
        };
        self.buffer = shared.blocking_pools.files.run(write).await?;
        Ok(())
    }

    fn field(&self, index: usize) -> Result<Option<&str>, ApiError> {
        let value = self.fields[index].as_deref().map(std::str::from_utf8).transpose();
        value.map_err(|_| invalid(FIELDS[index], "UTF-8"))
    }

    /// Checks the fields; returns the lifetime of the file in seconds, if it has one.
    fn check_fields(&self) -> Result<Option<u64>, ApiError> {
        let missing = |name: &str| {
            let message = format!("Missing required parameter: '{name}'.");
            ApiError::from(Rejection::new(ErrorCode::MissingField, message).with_param(name))
        };
        let purpose = self.field(0)?.ok_or_else(|| missing("purpose"))?;
        if FilePurpose::from_name(purpose) != Some(FilePurpose::Batch) {
            let shown: String = purpose.chars().take(100).collect();
            let message = format!("Invalid value: '{shown}'. Supported values are: 'batch'.");
            let rejection = Rejection::new(ErrorCode::InvalidValue, message);
            return Err(rejection.with_param("purpose").into());
        }
        if self.filename.is_none() {
            return Err(missing("file"));
        }
        if self.bytes == 0 {
            return Err(ApiError::invalid("empty_file", "File is empty.").with_param("file"));
        }
        match (self.field(1)?, self.field(2)?) {
            (None, None) => Ok(None),
            (Some(LIFETIME_ANCHOR), Some(seconds)) => {
                let seconds = seconds.parse().ok().filter(|seconds| is_lifetime(*seconds));
                seconds.map(Some).ok_or_else(invalid_lifetime)
            }
            _ => Err(invalid_lifetime()),
        }
    }

    /// Stores the file.
    fn store(self, service: &BatchService) -> Result<Response, ApiError> {
        let lifetime_s = self.check_fields()?;
        let Upload { temporary, reservation, filename, bytes, .. } = self;
        let record = service.uploaded_file(filename.unwrap_or_default(), bytes, lifetime_s);
        let response = json(StatusCode::OK, &record.object());
        service
            .storage
            .put_file(record, temporary, reservation)
            .map_err(|error| storage_error(&error))?;
        service.update_gauges(&service.storage.lock());
        Ok(response)
    }
}

fn invalid(name: &str, expected: &str) -> ApiError {
    let message = format!("Invalid value for '{name}': must be {expected}.");
    Rejection::new(ErrorCode::InvalidValue, message).with_param(name).into()
}

fn invalid_lifetime() -> ApiError {
    invalid("expires_after", &lifetime_description())
}
