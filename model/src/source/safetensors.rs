//! Weights in safetensors files: one `model.safetensors`, or shards named by
//! `model.safetensors.index.json`.
//!
//! `files` finds tensors and reads their bytes. A matrix is kept plainly, or in one of the forms
//! that `quantization_config` names: `fp8`, `mxfp4`, `integers`. Whatever is kept plainly beside
//! those is told by its tensor.

use std::collections::HashMap;
use std::path::Path;
use std::sync::{Mutex, PoisonError};

use half::{bf16, f16};
use safetensors::tensor::Dtype as Stored;

use super::{SourceError, StoredType, TensorId, WeightSource};
use crate::config::ModelConfig;
use crate::family::tensor_names;
use crate::quantization::Quantization;

mod files;
mod fp8;
mod integers;
mod mxfp4;

use files::{Checkpoint, Stretch, format_error};

/// Bytes converted at a time, when the stored type is not the wanted one.
const PIECE_BYTES: usize = 64 << 10;
const SUPPORTED: &str = "supported: BF16, F16, F32, and F8_E4M3 where quantization_config says fp8";

/// An open checkpoint.
#[derive(Debug)]
pub struct SafetensorsSource {
    config: ModelConfig,
    quantization: Quantization,
    files: Checkpoint,
    /// Types of packed matrices that were looked at, by name: all scales are read for one.
    integer_types: Mutex<HashMap<String, StoredType>>,
}

/// A tensor that was found.
struct Tensor<'a> {
    name: String,
    form: Form<'a>,
}

enum Form<'a> {
    Plain(&'a Stretch),
    Packed(Packed<'a>),
}

/// A matrix that is more than one tensor.
enum Packed<'a> {
    Fp8(fp8::Matrix<'a>),
    Mxfp4(mxfp4::Matrix<'a>),
    Integers(integers::Matrix<'a>),
}

impl Form<'_> {
    fn shape(&self) -> Vec<usize> {
        let (rows, columns) = match self {
            Form::Plain(stretch) => return stretch.shape.clone(),
            Form::Packed(Packed::Fp8(matrix)) => matrix.shape(),
            Form::Packed(Packed::Mxfp4(matrix)) => matrix.shape(),
            Form::Packed(Packed::Integers(matrix)) => matrix.shape(),
        };
        vec![rows, columns]
    }
}

impl Packed<'_> {
    /// Values of rows from `first_row` on.
    fn read(
        &self,
        files: &Checkpoint,
        first_row: usize,
        out: &mut [f32],
    ) -> Result<(), SourceError> {
        match self {
            Packed::Fp8(matrix) => matrix.read(files, first_row, out),
            Packed::Mxfp4(matrix) => matrix.read(files, first_row, out),
            Packed::Integers(matrix) => matrix.read(files, first_row, out),
        }
    }
}

impl SafetensorsSource {
    /// Opens the checkpoint of a directory. Its `config.json`, if there is one, says how matrices
    /// are kept.
    ///
    /// # Errors
    /// A file that is missing, cut off or no safetensors file; a `quantization_config` that is not
    /// supported.
    pub fn open(directory: &Path, config: &ModelConfig) -> Result<SafetensorsSource, SourceError> {
        Ok(SafetensorsSource {
            config: config.clone(),
            quantization: quantization(directory)?,
            files: Checkpoint::open(directory)?,
            integer_types: Mutex::default(),
        })
    }

    fn find(&self, id: TensorId) -> Result<Tensor<'_>, SourceError> {
        let names = tensor_names(&self.config, id);
        for name in &names {
            if let Some(form) = self.form(name)? {
                return Ok(Tensor { name: name.clone(), form });
            }
        }
        Err(SourceError::Missing {
            path: self.files.directory.display().to_string(),
            tensor: names.first().cloned().unwrap_or_else(|| format!("{id:?}")),
        })
    }

    fn form(&self, name: &str) -> Result<Option<Form<'_>>, SourceError> {
        let stem = name.strip_suffix(".weight").unwrap_or(name);
        let files = &self.files;
        let packed = match (files.get(name), self.quantization) {
            (Some(stretch), Quantization::Fp8 { block }) if stretch.stored == Stored::F8_E4M3 => {
                Some(Packed::Fp8(fp8::Matrix::new(files, name, stretch, block)?))
            }
            (Some(stretch), _) => return Ok(Some(Form::Plain(stretch))),
            (None, Quantization::Mxfp4) => mxfp4::Matrix::find(files, stem)?.map(Packed::Mxfp4),
            (None, quantization) => {
                integers::Matrix::find(files, stem, quantization)?.map(Packed::Integers)
            }
        };
        Ok(packed.map(Form::Packed))
    }

    /// The tensor and its shape, which the configuration was compared with.
    fn checked(&self, id: TensorId) -> Result<(Tensor<'_>, (usize, usize)), SourceError> {
        let tensor = self.find(id)?;
        let found = tensor.form.shape();
        let expected = id.expected_shape(&self.config);
        let matches = match (expected, found.as_slice()) {
            (Some((1, count)), [found]) => count == *found,
            (Some((rows, columns)), [found_rows, found_columns]) => {
                (rows, columns) == (*found_rows, *found_columns)
            }
            _ => false,
        };
        match expected {
            Some(shape) if matches => Ok((tensor, shape)),
            _ => {
                let expected = expected.map_or(Vec::new(), |(rows, columns)| vec![rows, columns]);
                let path = self.files.directory.display().to_string();
                Err(SourceError::Shape { path, tensor: tensor.name, found, expected })
            }
        }
    }

    /// The type whose blocks a packed matrix has.
    fn integer_type(
        &self,
        name: &str,
        matrix: &integers::Matrix<'_>,
    ) -> Result<StoredType, SourceError> {
        let known = || self.integer_types.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some(stored) = known().get(name) {
            return Ok(*stored);
        }
        let stored = matrix.stored_type(&self.files)?;
        known().insert(name.to_owned(), stored);
        Ok(stored)
    }

    /// Reads elements, converting piece by piece where `same` is not the stored type.
    fn read<T: bytemuck::Pod>(
        &self,
        id: TensorId,
        first_row: usize,
        out: &mut [T],
        same: Stored,
        convert: impl Fn(f32) -> T,
    ) -> Result<(), SourceError> {
        let (tensor, (rows, columns)) = self.checked(id)?;
        let start = first_row * columns;
        if start + out.len() > rows * columns {
            let (name, total) = (&tensor.name, rows * columns);
            let reason = format!("tensor {name} has {total} elements, more were asked for");
            return Err(format_error(&self.files.directory, reason));
        }
        let stretch = match &tensor.form {
            Form::Plain(stretch) => *stretch,
            Form::Packed(packed) => {
                if let Packed::Integers(matrix) = packed {
                    // Refuses what is not in order, once for each matrix.
                    self.integer_type(&tensor.name, matrix)?;
                }
                let mut values = vec![0.0; out.len()];
                packed.read(&self.files, first_row, &mut values)?;
                out.iter_mut().zip(values).for_each(|(out, value)| *out = convert(value));
                return Ok(());
            }
        };
        if stretch.stored == same {
            return self.files.read(stretch, start, bytemuck::cast_slice_mut(out));
        }
        let (_, element) = self.stored_type(id)?.block();
        let mut piece = vec![0u8; PIECE_BYTES];
        for (index, values) in out.chunks_mut(PIECE_BYTES / element).enumerate() {
            let bytes = &mut piece[..values.len() * element];
            self.files.read(stretch, start + index * (PIECE_BYTES / element), bytes)?;
            for (value, bytes) in values.iter_mut().zip(bytes.chunks_exact(element)) {
                *value = convert(match stretch.stored {
                    Stored::F16 => f16::from_le_bytes([bytes[0], bytes[1]]).to_f32(),
                    Stored::BF16 => bf16::from_le_bytes([bytes[0], bytes[1]]).to_f32(),
                    _ => f32::from_le_bytes([bytes[0], bytes[1], bytes[2], bytes[3]]),
                });
            }
        }
        Ok(())
    }
}

impl WeightSource for SafetensorsSource {
    fn shape(&self, id: TensorId) -> Result<(usize, usize), SourceError> {
        self.checked(id).map(|(_, shape)| shape)
    }

    fn read_bf16(
        &self,
        id: TensorId,
        first_row: usize,
        out: &mut [bf16],
    ) -> Result<(), SourceError> {
        self.read(id, first_row, out, Stored::BF16, bf16::from_f32)
    }

    fn read_f32(&self, id: TensorId, first_row: usize, out: &mut [f32]) -> Result<(), SourceError> {
        self.read(id, first_row, out, Stored::F32, |value| value)
    }

    fn stored_type(&self, id: TensorId) -> Result<StoredType, SourceError> {
        let tensor = self.find(id)?;
        let stretch = match &tensor.form {
            Form::Plain(stretch) => *stretch,
            Form::Packed(Packed::Fp8(_)) => return Ok(StoredType::F8E4M3),
            Form::Packed(Packed::Mxfp4(_)) => return Ok(StoredType::Mxfp4),
            Form::Packed(Packed::Integers(matrix)) => {
                return self.integer_type(&tensor.name, matrix);
            }
        };
        match stretch.stored {
            Stored::F32 => Ok(StoredType::F32),
            Stored::F16 => Ok(StoredType::F16),
            Stored::BF16 => Ok(StoredType::Bf16),
            other => Err(SourceError::Type {
                path: self.files.path(stretch).display().to_string(),
                tensor: tensor.name,
                found: format!("{other:?}"),
                supported: SUPPORTED,
            }),
        }
    }

    fn read_blocks(
        &self,
        id: TensorId,
        first_row: usize,
        out: &mut [u8],
    ) -> Result<(), SourceError> {
        let (tensor, (rows, columns)) = self.checked(id)?;
        let stored = self.stored_type(id)?;
        let no_blocks = || {
            let tensor = tensor.name.clone();
            Err(SourceError::NoBlocks { tensor, stored: stored.name() })
        };
        if stored.grouped().is_none() {
            return no_blocks();
        }
        let row_bytes = stored.row_bytes(columns);
        assert_eq!(out.len() % row_bytes, 0, "{}: not whole rows", tensor.name);
        assert!(first_row + out.len() / row_bytes <= rows, "{}: rows behind it", tensor.name);
        match &tensor.form {
            Form::Packed(Packed::Mxfp4(matrix)) => matrix.read_blocks(&self.files, first_row, out),
            Form::Packed(Packed::Integers(matrix)) => {
                matrix.read_blocks(&self.files, stored, first_row, out)
            }
            Form::Plain(_) | Form::Packed(Packed::Fp8(_)) => no_blocks(),
        }
    }
}

/// What the `config.json` of a checkpoint says of its matrices; nothing where there is none.
///
/// # Errors
/// A file that cannot be read, or a method that is not supported.
pub fn quantization(directory: &Path) -> Result<Quantization, SourceError> {
    let path = directory.join("config.json");
    let text = match std::fs::read_to_string(&path) {
        Ok(text) => text,
        Err(error) if error.kind() == std::io::ErrorKind::NotFound => {
            return Ok(Quantization::None);
        }
        Err(source) => return Err(SourceError::Io { path: path.display().to_string(), source }),
    };
    let config: serde_json::Value =
        serde_json::from_str(&text).map_err(|error| format_error(&path, error.to_string()))?;
    Quantization::of(config.get("quantization_config"))
        .map_err(|error| format_error(&path, format!("{error} is not supported")))
}

#[cfg(test)]
mod quantized_tests;
#[cfg(test)]
mod tests;
