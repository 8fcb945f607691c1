//! Weights in safetensors files: one `model.safetensors`, or shards named by
//! `model.safetensors.index.json`.
//!
//! `files` finds tensors and reads their bytes. Matrices are plain, or in a format that
//! `quantization_config` names: `fp8`, `mxfp4`, `nvfp4`, `integers`, `packed_integers`. Plain
//! matrices in a quantised checkpoint are recognised by their tensors.

use std::collections::HashMap;
use std::path::Path;
use std::sync::{Mutex, PoisonError};

use half::{bf16, f16};
use safetensors::tensor::Dtype as Stored;

use super::{SourceError, StoredType, TensorId, WeightSource};
use crate::config::ModelConfig;
use crate::family::{TensorSlice, gain_offset, layouts};
use crate::quantization::Quantization;

mod files;
mod formats;
mod fp8;
mod gptq_zeros;
mod integer_rows;
mod integers;
mod module_formats;
mod mxfp4;
mod nvfp4;
mod packed_integers;
mod token_table;

use files::{ByteRange, Checkpoint, format_error};
use formats::{PackedFormat, PackedRows, StorageFormat};
use module_formats::DeclaredFormats;

/// Number of bytes that are converted at a time if the stored type differs from the requested one.
const PIECE_BYTES: usize = 64 << 10;
const SUPPORTED: &str = "supported: BF16, F16, F32, and, where quantization_config says fp8, \
                         F8_E4M3, and I8 of experts where expert_dtype says fp4";
/// File of ModelOpt that describes matrices, if `config.json` does not.
const MODELOPT_FILE: &str = "hf_quant_config.json";

/// An open checkpoint.
#[derive(Debug)]
pub struct SafetensorsSource {
    config: ModelConfig,
    declared: DeclaredFormats,
    files: Checkpoint,
    /// Notice to the user about the files.
    notice: Option<String>,
    /// Types of packed matrices, cached by name, since determining one requires reading all of its
    /// scales.
    integer_types: Mutex<HashMap<String, StoredType>>,
}

/// Rows of a tensor that were found.
struct Part<'a> {
    form: StorageFormat<'a>,
    /// Piece of the tensor; its first name is the one that was found.
    piece: TensorSlice,
}

impl SafetensorsSource {
    /// Opens the checkpoint in a directory. Its `config.json`, if there is one, defines the format
    /// of matrices.
    ///
    /// # Errors
    /// A file that is missing, truncated or not a safetensors file; a `quantization_config` that is
    /// not supported.
    pub fn open(directory: &Path, config: &ModelConfig) -> Result<SafetensorsSource, SourceError> {
        let declared = quantization(directory)?;
        let files = Checkpoint::open(directory)?;
        let (quantization, notice) = gptq_zeros::resolve(&files, declared)?;
        Ok(SafetensorsSource {
            config: config.clone(),
            declared: DeclaredFormats::new(&files, quantization),
            files,
            notice,
            integer_types: Mutex::default(),
        })
    }

    /// Returns a notice if the files' description of themselves is wrong.
    pub fn notice(&self) -> Option<&str> {
        self.notice.as_deref()
    }

    /// Returns the parts of a tensor in the first layout that is completely present.
    fn find(&self, id: TensorId) -> Result<Vec<Part<'_>>, SourceError> {
        // A model without its head computes hidden states; the logits of the embedding stand in for
        // those of a head.
        let id =
            if id == TensorId::Head && self.files.is_headless { TensorId::Embedding } else { id };
        let layouts = layouts(&self.config, id);
        let missing = layouts.first().and_then(|pieces| pieces.first()?.names.first().cloned());
        for pieces in layouts {
            if let Some(parts) = self.all_of(pieces)? {
                return Ok(parts);
            }
        }
        Err(SourceError::Missing {
            path: self.files.directory.display().to_string(),
            tensor: missing.unwrap_or_else(|| format!("{id:?}")),
        })
    }

    fn all_of(&self, pieces: Vec<TensorSlice>) -> Result<Option<Vec<Part<'_>>>, SourceError> {
        let mut parts = Vec::with_capacity(pieces.len());
        for mut piece in pieces {
            let mut form = None;
            for place in 0..piece.names.len() {
                form = StorageFormat::find(&self.files, &piece.names[place], &self.declared)?;
                if form.is_some() {
                    piece.names.swap(0, place);
                    break;
                }
            }
            let Some(form) = form else { return Ok(None) };
            parts.push(Part { form, piece });
        }
        Ok(Some(parts).filter(|parts| !parts.is_empty()))
    }

    /// Returns the parts of a tensor after checking their shapes.
    fn checked(&self, id: TensorId) -> Result<Vec<Part<'_>>, SourceError> {
        let parts = self.find(id)?;
        for Part { form, piece } in &parts {
            if let Some((found, expected)) = form.mismatch(piece) {
                let path = match form {
                    StorageFormat::Plain(stretch) => self.files.path(stretch),
                    StorageFormat::Packed(_) => &self.files.directory,
                };
                let (path, tensor) = (path.display().to_string(), piece.names[0].clone());
                return Err(SourceError::Shape { path, tensor, found, expected });
            }
        }
        Ok(parts)
    }

    /// Returns the GGUF type whose blocks represent a packed matrix of integers.
    fn integer_type(
        &self,
        name: &str,
        find: impl FnOnce(&Checkpoint) -> Result<StoredType, SourceError>,
    ) -> Result<StoredType, SourceError> {
        let known = || self.integer_types.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some(stored) = known().get(name) {
            return Ok(*stored);
        }
        let stored = find(&self.files)?;
        known().insert(name.to_owned(), stored);
        Ok(stored)
    }

    fn type_of(&self, part: &Part<'_>) -> Result<StoredType, SourceError> {
        let name = &part.piece.names[0];
        // Blocks of a packed tensor are along its own rows.
        if part.piece.is_transposed && matches!(part.form, StorageFormat::Packed(_)) {
            return Ok(StoredType::F32);
        }
        let stretch = match &part.form {
            StorageFormat::Plain(stretch) => *stretch,
            StorageFormat::Packed(PackedFormat::Fp8(_)) => return Ok(StoredType::F8E4M3),
            StorageFormat::Packed(PackedFormat::Mxfp4(_)) => return Ok(StoredType::Mxfp4),
            StorageFormat::Packed(PackedFormat::Nvfp4(_)) => return Ok(StoredType::Nvfp4),
            StorageFormat::Packed(PackedFormat::Integers(matrix)) => {
                return self.integer_type(name, |files| matrix.stored_type(files));
            }
        };
        match stretch.stored {
            Stored::F32 => Ok(StoredType::F32),
            Stored::F16 => Ok(StoredType::F16),
            Stored::BF16 => Ok(StoredType::Bf16),
            other => Err(SourceError::Type {
                path: self.files.path(stretch).display().to_string(),
                tensor: name.clone(),
                found: format!("{other:?}"),
                supported: SUPPORTED,
            }),
        }
    }

    /// Calls `read` for each part that contains some of the requested rows, starting at
    /// `first_row`, with the first such row of the part and the range of `out` that its rows fill.
    /// `size` is the number of elements of `out` per row of a piece.
    fn each_part<T>(
        &self,
        id: TensorId,
        first_row: usize,
        out: &mut [T],
        size: impl Fn(&TensorSlice) -> usize,
        mut read: impl FnMut(&Part<'_>, usize, &mut [T]) -> Result<(), SourceError>,
    ) -> Result<(), SourceError> {
        let (mut skipped, mut rest) = (first_row, out);
        for part in self.checked(id)? {
            let from = skipped.min(part.piece.rows);
            let size = size(&part.piece);
            let rows = (part.piece.rows - from).min(rest.len() / size);
            skipped -= from;
            let (own, rest_after) = rest.split_at_mut(rows * size);
            rest = rest_after;
            if rows > 0 {
                read(&part, from, own)?;
            }
        }
        if rest.is_empty() {
            return Ok(());
        }
        let reason = format!("{id:?} has fewer rows than were asked for");
        Err(format_error(&self.files.directory, reason))
    }

    /// Reads rows, and converts them in pieces if the stored type is not `same`.
    fn read<T: bytemuck::Pod>(
        &self,
        id: TensorId,
        first_row: usize,
        out: &mut [T],
        same: Stored,
        convert: impl Fn(f32) -> T + Copy,
    ) -> Result<(), SourceError> {
        // Parts of a vector are concatenated, regardless of how they divide into rows.
        let of_row = |piece: &TensorSlice| piece.columns;
        self.each_part(id, first_row, out, of_row, |part, from, out| {
            // Refuses unsupported types and orders.
            self.type_of(part)?;
            match &part.form {
                StorageFormat::Plain(stretch) => {
                    self.read_plain(stretch, &part.piece, from, out, same, convert)
                }
                StorageFormat::Packed(packed) if part.piece.is_transposed => {
                    self.read_transposed(packed, &part.piece, from, out, convert)
                }
                StorageFormat::Packed(packed) => {
                    let (rows, columns) = (PackedRows::of(&part.piece), part.piece.columns);
                    rows.each_run(from, out, columns, |row, out| {
                        let mut values = vec![0.0; out.len()];
                        packed.read(&self.files, row, &mut values)?;
                        out.iter_mut().zip(values).for_each(|(out, value)| *out = convert(value));
                        Ok(())
                    })
                }
            }
        })
    }

    /// Reads rows of a plain tensor, starting at row `from` of the piece.
    fn read_plain<T: bytemuck::Pod>(
        &self,
        stretch: &ByteRange,
        piece: &TensorSlice,
        from: usize,
        out: &mut [T],
        same: Stored,
        convert: impl Fn(f32) -> T + Copy,
    ) -> Result<(), SourceError> {
        let columns = piece.columns;
        let rows = out.len() / columns;
        let (row_stride, stride) = piece.strides;
        let start = piece.first + from * row_stride;
        if (row_stride, stride) == (columns, 1) || (rows == 1 && stride == 1) {
            return self.read_run(stretch, start, out, same, convert);
        }
        if rows == 1 {
            let mut span = vec![T::zeroed(); (columns - 1) * stride + 1];
            self.read_run(stretch, start, &mut span, same, convert)?;
            out.iter_mut().zip(span.iter().step_by(stride)).for_each(|(out, one)| *out = *one);
            return Ok(());
        }
        // Stored transposed: the elements of a column are close together, those of a row spread
        // over the tensor.
        let mut span = vec![T::zeroed(); (rows - 1) * row_stride + 1];
        for column in 0..columns {
            self.read_run(stretch, start + column * stride, &mut span, same, convert)?;
            let rows = out.chunks_exact_mut(columns).zip(span.iter().step_by(row_stride));
            rows.for_each(|(row, one)| row[column] = *one);
        }
        Ok(())
    }

    /// Reads rows that are columns of consecutive rows of a packed tensor, starting at row `from`
    /// of the piece.
    fn read_transposed<T>(
        &self,
        packed: &PackedFormat<'_>,
        piece: &TensorSlice,
        from: usize,
        out: &mut [T],
        convert: impl Fn(f32) -> T,
    ) -> Result<(), SourceError> {
        let PackedRows { first, shape: (_, width), .. } = PackedRows::of(piece);
        let first_column = piece.first % width + from;
        let mut values = vec![0.0; width];
        for column in 0..piece.columns {
            packed.read(&self.files, first + column, &mut values)?;
            let rows = out.chunks_exact_mut(piece.columns).zip(&values[first_column..]);
            rows.for_each(|(row, value)| row[column] = convert(*value));
        }
        Ok(())
    }

    /// Reads consecutive elements.
    fn read_run<T: bytemuck::Pod>(
        &self,
        stretch: &ByteRange,
        start: usize,
        out: &mut [T],
        same: Stored,
        convert: impl Fn(f32) -> T,
    ) -> Result<(), SourceError> {
        let total = stretch.elements();
        if start + out.len() > total {
            let reason = format!("a tensor has {total} elements, more were asked for");
            return Err(format_error(self.files.path(stretch), reason));
        }
        if stretch.stored == same {
            return self.files.read(stretch, start, bytemuck::cast_slice_mut(out));
        }
        let element = stretch.element_bytes();
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
        self.checked(id)?;
        let shape = id.expected_shape(&self.config);
        Ok(shape.expect("a tensor that lies somewhere has a shape"))
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
        if self.is_token_table(id) {
            return self.read_token_table(id, out);
        }
        self.read(id, first_row, out, Stored::F32, |value| value)?;
        let offset = gain_offset(&self.config, id);
        if offset != 0.0 {
            out.iter_mut().for_each(|value| *value += offset);
        }
        Ok(())
    }

    fn stored_type(&self, id: TensorId) -> Result<StoredType, SourceError> {
        let parts = self.find(id)?;
        let mut common = None;
        for part in &parts {
            let stored = self.type_of(part)?;
            common = Some(match common {
                None => stored,
                Some(known) if known == stored => known,
                // Blocks of Q5_0 represent every matrix of integers that has a block type.
                Some(StoredType::Q4_1 | StoredType::Q5_0)
                    if matches!(stored, StoredType::Q4_1 | StoredType::Q5_0) =>
                {
                    StoredType::Q5_0
                }
                Some(_) => StoredType::F32,
            });
        }
        Ok(common.unwrap_or(StoredType::F32))
    }

    fn read_blocks(
        &self,
        id: TensorId,
        first_row: usize,
        out: &mut [u8],
    ) -> Result<(), SourceError> {
        let stored = self.stored_type(id)?;
        let no_blocks =
            || Err(SourceError::NoBlocks { tensor: format!("{id:?}"), stored: stored.name() });
        if stored.grouped().is_none() {
            return no_blocks();
        }
        let (_, columns) = self.shape(id)?;
        let row_bytes = stored.row_bytes(columns);
        assert_eq!(out.len() % row_bytes, 0, "{id:?}: not whole rows");
        let of_row = |_: &TensorSlice| row_bytes;
        self.each_part(id, first_row, out, of_row, |part, from, out| {
            let rows = PackedRows::of(&part.piece);
            rows.each_run(from, out, row_bytes, |row, out| match &part.form {
                StorageFormat::Packed(PackedFormat::Mxfp4(matrix)) => {
                    matrix.read_blocks(&self.files, row, out)
                }
                StorageFormat::Packed(PackedFormat::Integers(matrix)) => {
                    matrix.read_blocks(&self.files, stored, row, out)
                }
                StorageFormat::Packed(PackedFormat::Nvfp4(matrix)) => {
                    matrix.read_blocks(&self.files, row, out)
                }
                StorageFormat::Plain(_) | StorageFormat::Packed(PackedFormat::Fp8(_)) => {
                    no_blocks()
                }
            })
        })
    }
}

/// Reads the quantisation from the `config.json` of a checkpoint, or, if it does not mention any,
/// from ModelOpt's file; none if `config.json` does not exist.
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
    let parsed = |path: &Path, text: &str| -> Result<serde_json::Value, SourceError> {
        serde_json::from_str(text).map_err(|error| format_error(path, error.to_string()))
    };
    let config = parsed(&path, &text)?;
    let field = |name: &str| config.get(name);
    let (path, found) = match std::fs::read_to_string(directory.join(MODELOPT_FILE)) {
        Ok(text) if Quantization::object(field).is_none() => {
            let path = directory.join(MODELOPT_FILE);
            let found = Quantization::parse_modelopt(&parsed(&path, &text)?);
            (path, found)
        }
        _ => (path, Quantization::parse_fields(field)),
    };
    found.map_err(|error| format_error(&path, format!("{error} is not supported")))
}

#[cfg(test)]
mod module_tests;
#[cfg(test)]
mod quantized_tests;
#[cfg(test)]
mod released_tests;
#[cfg(test)]
mod tests;
