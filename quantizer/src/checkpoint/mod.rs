//! A safetensors checkpoint as the input: its tensors and metadata as a GGUF file has them.

mod metadata;
mod tokenizer;

use std::path::Path;

use model::config::ModelConfig;
use model::source::gguf::export::{ExportTensor, export_tensors};
use model::source::{SourceError, WeightSource};

use crate::error::QuantizeError;
use crate::header::FileHeader;
use crate::input::{InputTensor, ModelInput};
use metadata::{RopeFactors, add_config, unsupported};

pub(crate) use metadata::QUANTIZATION_VERSION;

/// A model of a checkpoint.
#[derive(Debug)]
pub struct CheckpointInput<'a> {
    config: &'a ModelConfig,
    source: &'a dyn WeightSource,
    header: FileHeader,
    tensors: Vec<InputTensor>,
    exported: Vec<ExportTensor>,
    /// Tables that follow the exported tensors.
    rope: Vec<RopeFactors>,
}

impl<'a> CheckpointInput<'a> {
    /// Converts the configuration of a model and the tokenizer in a directory.
    ///
    /// # Errors
    /// A model or tokenizer that a file cannot express.
    pub fn new(
        config: &'a ModelConfig,
        source: &'a dyn WeightSource,
        tokenizer_directory: &Path,
    ) -> Result<CheckpointInput<'a>, QuantizeError> {
        let mut header = FileHeader::default();
        let rope = add_config(&mut header, config)?;
        tokenizer::add_tokenizer(&mut header, config, tokenizer_directory)?;
        let Some(exported) = export_tensors(config) else {
            return Err(unsupported(config, "its tensors are stored in another form there"));
        };
        let of_model = exported.iter().map(|tensor| InputTensor {
            name: tensor.name.clone(),
            shape: tensor.shape.clone(),
            stored: None,
        });
        let of_rope = rope.iter().map(|table| InputTensor {
            name: table.name.to_owned(),
            shape: vec![table.factors.len()],
            stored: None,
        });
        let tensors = of_model.chain(of_rope).collect();
        Ok(CheckpointInput { config, source, header, tensors, exported, rope })
    }
}

impl ModelInput for CheckpointInput<'_> {
    fn config(&self) -> &ModelConfig {
        self.config
    }

    fn header(&self) -> &FileHeader {
        &self.header
    }

    fn alignment(&self) -> u32 {
        crate::header::DEFAULT_ALIGNMENT
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
        match self.exported.get(index) {
            Some(tensor) => tensor.read_rows(self.config, self.source, first_row, out),
            None => {
                out.copy_from_slice(&self.rope[index - self.exported.len()].factors);
                Ok(())
            }
        }
    }

    fn read_stored(&self, index: usize, _first: u64, _out: &mut [u8]) -> Result<(), SourceError> {
        unreachable!("{} has no stored type", self.tensors[index].name)
    }
}
