//! Weights in safetensors files: one `model.safetensors`, or shards named by
//! `model.safetensors.index.json`.
//!
//! Headers are read and checked by the `safetensors` crate when the source is opened; data is read
//! by position, in pieces, from any thread.

use std::collections::HashMap;
use std::fs::File;
use std::io::Read;
use std::os::unix::fs::FileExt;
use std::path::{Path, PathBuf};

use half::{bf16, f16};
use safetensors::tensor::{Dtype as Stored, Metadata};

use super::{SourceError, StoredType, TensorId, WeightSource};
use crate::config::ModelConfig;
use crate::family::tensor_names;

/// Bytes converted at a time, when the stored type is not the wanted one.
const PIECE_BYTES: usize = 64 << 10;
/// Far above any real header; a larger number is a damaged file, not a reason to allocate.
const HEADER_BYTES_MAX: u64 = 256 << 20;
const SUPPORTED: &str = "supported: BF16, F16, F32";

/// An open checkpoint.
#[derive(Debug)]
pub struct SafetensorsSource {
    config: ModelConfig,
    directory: PathBuf,
    files: Vec<Shard>,
    tensors: HashMap<String, Stretch>,
}

#[derive(Debug)]
struct Shard {
    path: PathBuf,
    file: File,
}

/// Where a tensor lies.
#[derive(Debug, Clone)]
struct Stretch {
    file: usize,
    offset_bytes: u64,
    stored: Stored,
    shape: Vec<usize>,
}

impl SafetensorsSource {
    /// Opens the checkpoint of a directory.
    ///
    /// # Errors
    /// A file that is missing, cut off or no safetensors file.
    pub fn open(directory: &Path, config: &ModelConfig) -> Result<SafetensorsSource, SourceError> {
        let mut source = SafetensorsSource {
            config: config.clone(),
            directory: directory.to_owned(),
            files: Vec::new(),
            tensors: HashMap::new(),
        };
        let single = directory.join("model.safetensors");
        if single.is_file() {
            source.add_file(&single)?;
            return Ok(source);
        }
        for name in shard_names(&directory.join("model.safetensors.index.json"))? {
            source.add_file(&directory.join(name))?;
        }
        Ok(source)
    }

    fn add_file(&mut self, path: &Path) -> Result<(), SourceError> {
        let file = File::open(path).map_err(|source| io(path, source))?;
        let (data_start, metadata) = read_header(path, &file)?;
        let size_bytes = file.metadata().map_err(|source| io(path, source))?.len();
        let ends = metadata.tensors().into_values().map(|info| info.data_offsets.1 as u64);
        let expected = data_start.saturating_add(ends.max().unwrap_or(0));
        if size_bytes < expected {
            let reason = format!(
                "the file is cut off: its header describes {expected} bytes, it has {size_bytes}; \
                 download it again"
            );
            return Err(format_error(path, reason));
        }
        let index = self.files.len();
        for (name, info) in metadata.tensors() {
            let stretch = Stretch {
                file: index,
                offset_bytes: data_start + info.data_offsets.0 as u64,
                stored: info.dtype,
                shape: info.shape.clone(),
            };
            self.tensors.insert(name, stretch);
        }
        self.files.push(Shard { path: path.to_owned(), file });
        Ok(())
    }

    fn find(&self, id: TensorId) -> Result<(&Stretch, String), SourceError> {
        let names = tensor_names(&self.config, id);
        let found = names.iter().find_map(|name| Some((self.tensors.get(name)?, name.clone())));
        found.ok_or_else(|| SourceError::Missing {
            path: self.directory.display().to_string(),
            tensor: names.first().cloned().unwrap_or_else(|| format!("{id:?}")),
        })
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
        let (_, columns) = self.shape(id)?;
        let (stretch, name) = self.find(id)?;
        let shard = &self.files[stretch.file];
        let (_, element) = self.stored_type(id)?.block();
        let start = first_row * columns;
        let total: usize = stretch.shape.iter().product();
        if start + out.len() > total {
            let reason = format!("tensor {name} has {total} elements, more were asked for");
            return Err(format_error(&shard.path, reason));
        }
        let offset = stretch.offset_bytes + (start * element) as u64;
        let read = |bytes: &mut [u8], offset| {
            shard.file.read_exact_at(bytes, offset).map_err(|source| io(&shard.path, source))
        };
        if stretch.stored == same {
            return read(bytemuck::cast_slice_mut(out), offset);
        }
        let mut piece = vec![0u8; PIECE_BYTES];
        for (index, values) in out.chunks_mut(PIECE_BYTES / element).enumerate() {
            let bytes = &mut piece[..values.len() * element];
            read(bytes, offset + (index * PIECE_BYTES) as u64)?;
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
        let (stretch, tensor) = self.find(id)?;
        let mismatch = |expected: Vec<usize>| SourceError::Shape {
            path: self.files[stretch.file].path.display().to_string(),
            tensor: tensor.clone(),
            found: stretch.shape.clone(),
            expected,
        };
        let expected = id.expected_shape(&self.config);
        let matches = match (expected, stretch.shape.as_slice()) {
            (Some((1, count)), [found]) => count == *found,
            (Some((rows, columns)), [found_rows, found_columns]) => {
                (rows, columns) == (*found_rows, *found_columns)
            }
            _ => false,
        };
        match expected {
            Some(shape) if matches => Ok(shape),
            Some((rows, columns)) => Err(mismatch(vec![rows, columns])),
            None => Err(mismatch(Vec::new())),
        }
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
        let (stretch, tensor) = self.find(id)?;
        match stretch.stored {
            Stored::F32 => Ok(StoredType::F32),
            Stored::F16 => Ok(StoredType::F16),
            Stored::BF16 => Ok(StoredType::Bf16),
            other => Err(SourceError::Type {
                path: self.files[stretch.file].path.display().to_string(),
                tensor,
                found: format!("{other:?}"),
                supported: SUPPORTED,
            }),
        }
    }
}

fn io(path: &Path, source: std::io::Error) -> SourceError {
    SourceError::Io { path: path.display().to_string(), source }
}

fn format_error(path: &Path, reason: String) -> SourceError {
    SourceError::Format { path: path.display().to_string(), reason }
}

/// Offset of the data, and the header.
fn read_header(path: &Path, mut file: &File) -> Result<(u64, Metadata), SourceError> {
    let mut length = [0u8; 8];
    let cut_off =
        |_| format_error(path, "the file ends inside its header; download it again".into());
    file.read_exact(&mut length).map_err(cut_off)?;
    let header_bytes = u64::from_le_bytes(length);
    let size_bytes = file.metadata().map_err(|source| io(path, source))?.len();
    if header_bytes > HEADER_BYTES_MAX || 8 + header_bytes > size_bytes {
        let reason = format!(
            "this is no safetensors file, or it is cut off: its header claims {header_bytes} bytes"
        );
        return Err(format_error(path, reason));
    }
    let mut bytes = length.to_vec();
    bytes.resize(8 + header_bytes as usize, 0);
    file.read_exact(&mut bytes[8..]).map_err(cut_off)?;
    // Not `SafeTensors::read_metadata`, which wants the whole file in memory.
    let metadata: Metadata = serde_json::from_slice(&bytes[8..])
        .map_err(|error| format_error(path, format!("the header cannot be read: {error}")))?;
    for (name, info) in metadata.tensors() {
        let (start, end) = info.data_offsets;
        let elements = info.shape.iter().try_fold(1usize, |product, n| product.checked_mul(*n));
        let bits = elements.and_then(|elements| elements.checked_mul(info.dtype.bitsize()));
        if end < start || bits.is_none_or(|bits| bits.div_ceil(8) != end - start) {
            let reason = format!("the header contradicts itself about tensor {name}");
            return Err(format_error(path, reason));
        }
    }
    Ok((8 + header_bytes, metadata))
}

/// The files that an index names, each once.
fn shard_names(index: &Path) -> Result<Vec<String>, SourceError> {
    let text = std::fs::read_to_string(index).map_err(|source| io(index, source))?;
    let bad = |reason: String| format_error(index, reason);
    let json: serde_json::Value = serde_json::from_str(&text).map_err(|e| bad(e.to_string()))?;
    let map = json["weight_map"].as_object().ok_or_else(|| bad("it has no weight_map".into()))?;
    let mut names: Vec<String> =
        map.values().filter_map(|name| name.as_str().map(str::to_owned)).collect();
    names.sort();
    names.dedup();
    if let Some(name) = names.iter().find(|name| name.contains('/')) {
        return Err(bad(format!("it names {name}, which is outside the directory")));
    }
    Ok(names)
}

#[cfg(test)]
#[path = "safetensors_tests.rs"]
mod tests;
