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
use crate::family::{Piece, gain_offset, layouts};

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

    /// The pieces of a tensor with the tensors that they lie in.
    fn find(&self, id: TensorId) -> Result<Vec<(&Stretch, Piece)>, SourceError> {
        let layouts = layouts(&self.config, id);
        let missing = layouts.first().and_then(|pieces| pieces.first()?.names.first().cloned());
        let all_of = |pieces: Vec<Piece>| -> Option<Vec<(&Stretch, Piece)>> {
            let found = pieces.into_iter().map(|mut piece| {
                let place = piece.names.iter().position(|name| self.tensors.contains_key(name))?;
                piece.names.swap(0, place);
                Some((self.tensors.get(&piece.names[0])?, piece))
            });
            found.collect::<Option<Vec<_>>>().filter(|pieces| !pieces.is_empty())
        };
        layouts.into_iter().find_map(all_of).ok_or_else(|| SourceError::Missing {
            path: self.directory.display().to_string(),
            tensor: missing.unwrap_or_else(|| format!("{id:?}")),
        })
    }

    /// Reads rows, converting piece by piece where `same` is not the stored type.
    fn read<T: bytemuck::Pod>(
        &self,
        id: TensorId,
        first_row: usize,
        out: &mut [T],
        same: Stored,
        convert: impl Fn(f32) -> T + Copy,
    ) -> Result<(), SourceError> {
        let (_, columns) = self.shape(id)?;
        self.stored_type(id)?;
        let (mut skipped, mut rest) = (first_row, out);
        for (stretch, piece) in self.find(id)? {
            let from = skipped.min(piece.rows);
            let rows = (piece.rows - from).min(rest.len() / columns);
            skipped -= from;
            let (own, behind) = rest.split_at_mut(rows * columns);
            rest = behind;
            if rows == 0 {
                continue;
            }
            let (row_stride, stride) = piece.strides;
            let start = piece.first + from * row_stride;
            if (row_stride, stride) == (columns, 1) || (rows == 1 && stride == 1) {
                self.read_run(stretch, start, own, same, convert)?;
                continue;
            }
            let last = (rows - 1) * row_stride + (columns - 1) * stride;
            let mut span = vec![T::zeroed(); last + 1];
            self.read_run(stretch, start, &mut span, same, convert)?;
            for (index, value) in own.iter_mut().enumerate() {
                *value = span[index / columns * row_stride + index % columns * stride];
            }
        }
        if rest.is_empty() {
            return Ok(());
        }
        let reason = format!("{id:?} has fewer rows than were asked for");
        Err(format_error(&self.directory, reason))
    }

    /// Reads elements that follow each other.
    fn read_run<T: bytemuck::Pod>(
        &self,
        stretch: &Stretch,
        start: usize,
        out: &mut [T],
        same: Stored,
        convert: impl Fn(f32) -> T,
    ) -> Result<(), SourceError> {
        let shard = &self.files[stretch.file];
        let element = stretch.stored.bitsize() / 8;
        let total: usize = stretch.shape.iter().product();
        if start + out.len() > total {
            let reason = format!("a tensor has {total} elements, more were asked for");
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
        for (stretch, piece) in self.find(id)? {
            if stretch.shape != piece.shape {
                return Err(SourceError::Shape {
                    path: self.files[stretch.file].path.display().to_string(),
                    tensor: piece.names[0].clone(),
                    found: stretch.shape.clone(),
                    expected: piece.shape,
                });
            }
        }
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
        self.read(id, first_row, out, Stored::F32, |value| value)?;
        let offset = gain_offset(&self.config, id);
        if offset != 0.0 {
            out.iter_mut().for_each(|value| *value += offset);
        }
        Ok(())
    }

    fn stored_type(&self, id: TensorId) -> Result<StoredType, SourceError> {
        let mut found = Err(SourceError::Missing {
            path: self.directory.display().to_string(),
            tensor: format!("{id:?}"),
        });
        for (stretch, piece) in self.find(id)? {
            let stored = match stretch.stored {
                Stored::F32 => StoredType::F32,
                Stored::F16 => StoredType::F16,
                Stored::BF16 => StoredType::Bf16,
                other => {
                    return Err(SourceError::Type {
                        path: self.files[stretch.file].path.display().to_string(),
                        tensor: piece.names[0].clone(),
                        found: format!("{other:?}"),
                        supported: SUPPORTED,
                    });
                }
            };
            found = Ok(stored);
        }
        found
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
