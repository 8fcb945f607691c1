//! Records of stored files, and the objects that clients see.

use serde::{Deserialize, Serialize};

/// Purpose of a stored file.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum FilePurpose {
    /// Input of batches, uploaded by a client.
    Batch,
    /// Output or error file of a batch.
    BatchOutput,
}

impl FilePurpose {
    /// Returns the purpose with this name.
    pub fn from_name(name: &str) -> Option<FilePurpose> {
        match name {
            "batch" => Some(FilePurpose::Batch),
            "batch_output" => Some(FilePurpose::BatchOutput),
            _ => None,
        }
    }
}

/// Record of a stored file, which is on disk next to it.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct FileRecord {
    /// Number that orders all files and batches by creation.
    pub number: u64,
    pub id: String,
    pub bytes: u64,
    /// Seconds since 1970.
    pub created_at: u64,
    /// Seconds since 1970; `None` if the file is kept until it is deleted.
    pub expires_at: Option<u64>,
    pub filename: String,
    pub purpose: FilePurpose,
}

/// A file in OpenAI's format.
#[derive(Debug, Serialize)]
pub struct FileObject<'a> {
    id: &'a str,
    object: &'static str,
    bytes: u64,
    created_at: u64,
    expires_at: Option<u64>,
    filename: &'a str,
    purpose: FilePurpose,
    status: &'static str,
    status_details: Option<&'a str>,
}

impl FileRecord {
    /// Returns the object that clients see.
    pub fn object(&self) -> FileObject<'_> {
        FileObject {
            id: &self.id,
            object: "file",
            bytes: self.bytes,
            created_at: self.created_at,
            expires_at: self.expires_at,
            filename: &self.filename,
            purpose: self.purpose,
            // The lines of a batch are checked when it runs.
            status: "processed",
            status_details: None,
        }
    }

    /// Returns true if the file is to be removed at `now_s`.
    pub fn is_expired(&self, now_s: u64) -> bool {
        self.expires_at.is_some_and(|expires_at| expires_at <= now_s)
    }
}
