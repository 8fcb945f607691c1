//! Models that can be quantised, as tensors under the names of a GGUF file.

use std::fmt::Debug;

use model::config::ModelConfig;
use model::source::gguf::GgufSource;
use model::source::gguf::stored_tensors::StoredTensor;
use model::source::{SourceError, StoredType};

use crate::error::QuantizeError;
use crate::header::{DEFAULT_ALIGNMENT, FileHeader};

/// A tensor of the input.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct InputTensor {
    pub name: String,
    /// Shape `[n]` or `[out, in]`, preceded by the number of experts if there are any.
    pub shape: Vec<usize>,
    /// Type of the tensor's stored blocks; `None` if it can only be read as f32.
    pub stored: Option<StoredType>,
}

/// A model whose tensors can be read in pieces, from several threads.
pub trait ModelInput: Debug + Sync {
    fn config(&self) -> &ModelConfig;

    /// Returns the metadata of the output, except for the type of the file.
    fn header(&self) -> &FileHeader;

    /// Returns the alignment of tensors that the metadata specifies, in bytes.
    fn alignment(&self) -> u32;

    /// Returns the tensors in the order of the output.
    fn tensors(&self) -> &[InputTensor];

    /// Fills `out` with consecutive rows of a tensor as f32, starting at `first_row`.
    ///
    /// # Errors
    /// A file that cannot be read.
    fn read_rows(&self, index: usize, first_row: usize, out: &mut [f32])
    -> Result<(), SourceError>;

    /// Fills `out` with the stored bytes of a tensor with a stored type, starting at byte `first`.
    ///
    /// # Errors
    /// A file that cannot be read.
    fn read_stored(&self, index: usize, first: u64, out: &mut [u8]) -> Result<(), SourceError>;
}

/// A GGUF file as the input, whose metadata is kept.
#[derive(Debug)]
pub struct GgufInput<'a> {
    source: &'a GgufSource,
    header: FileHeader,
    alignment: u32,
    stored: Vec<StoredTensor>,
    tensors: Vec<InputTensor>,
}

impl<'a> GgufInput<'a> {
    /// Reads the metadata and the tensor directory.
    ///
    /// # Errors
    /// A file that cannot be read, or a tensor of a type that is not supported.
    pub fn new(source: &'a GgufSource) -> Result<GgufInput<'a>, QuantizeError> {
        let mut header = FileHeader::from_entries(source.metadata_entries()?);
        // The output is one file, even if the input is several.
        header.remove(|key| key.starts_with("split."));
        let alignment = source.metadata().integer("general.alignment").ok().flatten();
        let stored = source.stored_tensors()?;
        let tensors = stored.iter().map(|tensor| InputTensor {
            name: tensor.name.clone(),
            shape: tensor.shape.clone(),
            stored: Some(tensor.stored),
        });
        let tensors = tensors.collect();
        let alignment = alignment.unwrap_or(DEFAULT_ALIGNMENT);
        Ok(GgufInput { source, header, alignment, stored, tensors })
    }

    /// Returns true if a matrix of the file has fewer bits than bf16, so that quantising it again
    /// adds to its errors.
    pub fn is_quantised(&self) -> bool {
        self.stored.iter().any(|tensor| tensor.stored.is_quantised())
    }
}

impl ModelInput for GgufInput<'_> {
    fn config(&self) -> &ModelConfig {
        self.source.config()
    }

    fn header(&self) -> &FileHeader {
        &self.header
    }

    fn alignment(&self) -> u32 {
        self.alignment
    }

    fn tensors(&self) -> &[InputTensor] {
        &self.tensors
    }

    fn read_rows(
        &self,
        index: usize,
        first_row: usize,
        out: &mut [f32],
    ) -> Result<(), SourceError> {
        self.source.read_stored_rows(&self.stored[index], first_row, out)
    }

    fn read_stored(&self, index: usize, first: u64, out: &mut [u8]) -> Result<(), SourceError> {
        self.source.read_stored(&self.stored[index].name, first, out)
    }
}
