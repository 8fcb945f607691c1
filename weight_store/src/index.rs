//! `index.json`: the content of a staged copy.

use std::io;
use std::path::Path;

use serde::{Deserialize, Serialize};

use crate::checksum::Checksum;
use crate::error::OpenStagedError;
use crate::identity::Identity;
use crate::layout::Layout;

/// Format that this version writes and reads.
pub(crate) const FORMAT: u64 = 1;

/// Maximum size of an index; a longer file is not an index.
const INDEX_BYTES_MAX: u64 = 256 << 20;

/// A blob's entry in the index.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub(crate) struct Blob {
    pub name: String,
    pub offset_bytes: u64,
    pub size_bytes: u64,
    pub checksum: Checksum,
}

/// Content of the index.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub(crate) struct Content {
    pub format: u64,
    pub identity: Identity,
    pub blobs: Vec<Blob>,
    pub weights_bytes: u64,
    pub blocks_checksum: Checksum,
}

#[derive(Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
struct File {
    checksum: Checksum,
    content: Content,
}

/// Only the format, which other versions store in the same field.
#[derive(Deserialize)]
struct AnyFile {
    content: AnyContent,
}

#[derive(Deserialize)]
struct AnyContent {
    format: u64,
}

impl Content {
    /// Returns the text of the file, with its checksum.
    pub fn text(&self) -> io::Result<String> {
        let checksum = Checksum::of_bytes(serde_json::to_string(self)?.as_bytes());
        let file = File { checksum, content: self.clone() };
        Ok(serde_json::to_string_pretty(&file)? + "\n")
    }

    /// Reads `path`. Rejects any text that [`Content::text`] would not have written.
    pub fn read(path: &Path) -> Result<Content, OpenStagedError> {
        let metadata = std::fs::metadata(path).map_err(|error| OpenStagedError::io(path, error))?;
        if metadata.len() > INDEX_BYTES_MAX {
            return Err(OpenStagedError::damaged(path, format!("it has {} bytes", metadata.len())));
        }
        let bytes = std::fs::read(path).map_err(|error| OpenStagedError::io(path, error))?;
        if let Ok(AnyFile { content: AnyContent { format } }) = serde_json::from_slice(&bytes)
            && format != FORMAT
        {
            return Err(OpenStagedError::Format {
                path: path.to_path_buf(),
                format,
                supported: FORMAT,
            });
        }
        let file: File = serde_json::from_slice(&bytes).map_err(|error| {
            OpenStagedError::damaged(path, format!("it is not an index ({error})"))
        })?;
        let text = file.content.text().map_err(|error| OpenStagedError::io(path, error))?;
        if text.as_bytes() != bytes {
            return Err(OpenStagedError::damaged(path, "its checksum does not match its content"));
        }
        Ok(file.content)
    }

    /// Returns the layout of the blobs, if the index agrees with it.
    pub fn layout(&self, path: &Path) -> Result<Layout, OpenStagedError> {
        let layout = Layout::from_sizes(self.blobs.iter().map(|blob| blob.size_bytes));
        let agrees = |layout: &Layout| {
            let mut pairs = layout.extents.iter().zip(&self.blobs);
            layout.weights_bytes == self.weights_bytes
                && pairs.all(|(place, blob)| place.offset_bytes == blob.offset_bytes)
        };
        layout.filter(agrees).ok_or_else(|| {
            OpenStagedError::damaged(path, "the offsets of its blobs do not match their sizes")
        })
    }
}
