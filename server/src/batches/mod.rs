//! OpenAI's Files and Batch APIs: files that clients upload, and batches of requests that the
//! server computes while it has idle slots.
//!
//! Everything is kept in a directory ([`storage`]), so that batches continue after a restart. One
//! thread ([`runner`]) computes one batch after the other with the job engine of the crate `batch`,
//! at background priority: its answers are those of a batch job, byte for byte, and are written to
//! a working file as they are finished. [`results`] divides that file into output and error file.

mod attempt;
mod batch_endpoints;
mod batch_failure;
pub mod batch_record;
mod batch_request;
mod directory_scan;
mod file_endpoints;
mod file_record;
mod ids;
mod input_check;
mod list_page;
mod multipart;
mod multipart_head;
mod quota;
mod record_file;
mod results;
pub mod routes;
mod run_state;
pub mod runner;
pub mod service;
mod storage;
mod storage_index;
mod upload;
