//! A file as it is stored: its metadata as bytes, and its tensors by their names.

use super::GgufSource;
use super::dequantise::{SUPPORTED, TensorType, dequantise};
use super::parse::TensorInfo;
use crate::source::{SourceError, StoredType};

/// A tensor of a file.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct StoredTensor {
    pub name: String,
    /// Shape `[n]` or `[out, in]`, preceded by the number of experts if there are any.
    pub shape: Vec<usize>,
    pub stored: StoredType,
}

impl GgufSource {
    /// Returns every key of the metadata in the file's order, each with the bytes of key, type and
    /// value as the format stores them.
    ///
    /// # Errors
    /// A file that can no longer be read.
    pub fn metadata_entries(&self) -> Result<Vec<(String, Vec<u8>)>, SourceError> {
        let entries = self.parts.entries.iter().map(|(key, range)| {
            // The header has been read from this range, so its size is limited.
            let mut bytes = vec![0; (range.end - range.start) as usize];
            self.parts
                .read(0, range.start, &mut bytes)
                .map_err(|source| SourceError::Io { path: self.path.clone(), source })?;
            Ok((key.clone(), bytes))
        });
        entries.collect()
    }

    /// Returns the tensors in the order in which they are stored.
    ///
    /// # Errors
    /// A tensor of a type that is not supported.
    pub fn stored_tensors(&self) -> Result<Vec<StoredTensor>, SourceError> {
        let mut tensors: Vec<(&String, &TensorInfo)> = self.parts.tensors.iter().collect();
        tensors.sort_by_key(|(name, info)| (info.part, info.offset, *name));
        let stored = tensors.into_iter().map(|(name, info)| match info.tensor_type {
            TensorType::Known(stored) => {
                Ok(StoredTensor { name: name.clone(), shape: info.shape.clone(), stored })
            }
            other => Err(SourceError::Type {
                path: self.path.clone(),
                tensor: name.clone(),
                found: other.name(),
                supported: SUPPORTED,
            }),
        });
        stored.collect()
    }

    /// Fills `out` with a tensor's bytes, starting at byte `first`.
    ///
    /// # Errors
    /// A tensor that does not exist, or a file that ends early.
    pub fn read_stored(&self, name: &str, first: u64, out: &mut [u8]) -> Result<(), SourceError> {
        let info = self.parts.tensors.get(name).ok_or_else(|| SourceError::Missing {
            path: self.path.clone(),
            tensor: name.to_owned(),
        })?;
        self.parts.read(info.part, info.offset + first, out).map_err(|source| SourceError::Io {
            path: format!("{}, tensor {name}", self.parts.files[info.part].path.display()),
            source,
        })
    }

    /// Fills `out` with rows of a tensor in the file's order, starting at row `first_row`, as f32.
    /// Rows of all experts of a tensor are consecutive.
    ///
    /// # Errors
    /// As [`GgufSource::read_stored`].
    pub fn read_stored_rows(
        &self,
        tensor: &StoredTensor,
        first_row: usize,
        out: &mut [f32],
    ) -> Result<(), SourceError> {
        let elements = tensor.shape.last().copied().unwrap_or(1).max(1);
        let row_bytes = tensor.stored.row_bytes(elements);
        let mut bytes = vec![0; out.len() / elements * row_bytes];
        self.read_stored(&tensor.name, (first_row * row_bytes) as u64, &mut bytes)?;
        dequantise(tensor.stored, &bytes, out);
        Ok(())
    }
}
