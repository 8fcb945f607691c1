//! GGUF files as a source of weights, with a bounds-checked reader.
//!
//! `parse` reads the head of a file, `parts` joins the files of a model that is split into several,
//! `metadata` contains their keys, `config` derives a model configuration from the keys and from
//! facts that only tensors reveal (`facts`), `dequantise` implements the tensor types, and `layout`
//! defines the names of tensors and the order of their rows. [`GgufSource`] combines them for the
//! loader; `gguf_tokenizer` reads its metadata. For writers of files, `export` makes the tensors of
//! a file from a model's, and `stored_tensors` reads a file as it is stored.
//!
//! Invariants: after [`GgufSource::open`] succeeds, every tensor of the configuration exists, has
//! the correct shape and a supported type, and is inside the file; and there is no unknown tensor.
//! Tensors are read with positioned reads, so that a file that is truncated later causes an error
//! instead of a signal.

use std::collections::HashSet;
use std::path::{Path, PathBuf};

use half::bf16;

use super::{SourceError, StoredType, TensorId, WeightSource};
use crate::config::ModelConfig;

mod blocks;
mod config;
mod dequantise;
pub mod export;
mod facts;
mod k_quants;
mod layout;
pub mod metadata;
mod parse;
mod parts;
mod piece;
mod states;
pub mod stored_tensors;
mod tables;

use dequantise::{SUPPORTED, TensorType, dequantise};
pub use dequantise::{dequantise as expand, type_code};
use facts::TensorFacts;
use layout::HeadOrder;
use metadata::Metadata;
use parts::GgufShards;
pub use parts::{first_part, model_name, part_paths};
use piece::GgufSlice;

/// Approximate size of the pieces in which rows are read: large enough that the cost of system
/// calls is negligible, and small enough for the second-level cache.
const READ_BYTES: usize = 256 << 10;

/// A GGUF file, or all parts of one, containing a model whose weights can be read.
#[derive(Debug)]
pub struct GgufSource {
    path: String,
    parts: GgufShards,
    config: ModelConfig,
}

/// Location and order of the rows of a tensor.
struct RowReader<'a> {
    name: String,
    stored: StoredType,
    part: usize,
    offset: u64,
    rows: usize,
    row_elements: usize,
    /// See [`GgufSlice::is_transposed`].
    is_transposed: bool,
    order: RowOrder,
    source: &'a GgufSource,
}

/// Order of a tensor's rows in the file.
#[derive(Debug, Clone, Copy)]
enum RowOrder {
    /// The model's order.
    Stored,
    /// Rows of each head are permuted for GGML's rope.
    PermutedRows(HeadOrder),
    /// Elements of each head of a vector are permuted for GGML's rope.
    PermutedElements(HeadOrder),
}

impl GgufSource {
    /// Opens a file, and all other parts if it is one of several, and checks their heads against
    /// the requirements of the architecture. Tensor data is not read, except for tables of rope
    /// factors.
    ///
    /// # Errors
    /// A file that cannot be read, is not a GGUF file or is damaged; a part that is missing or does
    /// not belong to the model; an architecture, a variant of one or a tensor type that is not
    /// supported; tensors that are missing or have another shape.
    pub fn open(path: &Path) -> Result<Self, SourceError> {
        let path_text = path.display().to_string();
        let parts = GgufShards::open(path)?;
        let facts = TensorFacts::read(&parts, &path_text)?;
        let config =
            config::model_config(&parts.metadata, model_name(path), &facts).map_err(|error| {
                SourceError::Format { path: path_text.clone(), reason: error.to_string() }
            })?;
        let source = Self { path: path_text, parts, config };
        source.check_tensors()?;
        Ok(source)
    }

    /// Returns the configuration of the model in the file.
    pub fn config(&self) -> &ModelConfig {
        &self.config
    }

    /// Returns all metadata, from which `gguf_tokenizer` builds a tokenizer.
    pub fn metadata(&self) -> &Metadata {
        &self.parts.metadata
    }

    /// Returns the paths of all files of the model, in order.
    pub fn files(&self) -> Vec<PathBuf> {
        self.parts.files.iter().map(|part| part.path.clone()).collect()
    }

    /// Returns the path that was opened, for messages.
    pub fn path(&self) -> &str {
        &self.path
    }

    /// Checks that all tensors of the model exist, and that there are no others that would change
    /// its results.
    fn check_tensors(&self) -> Result<(), SourceError> {
        let mut known = HashSet::new();
        for id in layout::tensor_ids(&self.config) {
            self.pieces(id)?;
            known.extend(layout::layouts(&self.config, id).into_iter().flatten().map(|p| p.name));
        }
        // The alphabetically first name, so that the message does not depend on the hash order.
        let unknown = self
            .parts
            .tensors
            .keys()
            .filter(|name| !known.contains(*name) && !layout::is_ignored(&self.config, name))
            .min();
        match unknown {
            None => Ok(()),
            Some(name) => Err(SourceError::Format {
                path: self.path.clone(),
                reason: format!(
                    "tensor {name:?} belongs to a variant of the architecture that is not supported"
                ),
            }),
        }
    }

    /// Returns the consecutive pieces of a tensor, in the layout that the file has.
    fn pieces(&self, id: TensorId) -> Result<Vec<RowReader<'_>>, SourceError> {
        let mut layouts = layout::layouts(&self.config, id);
        let is_stored = |piece: &GgufSlice| self.parts.tensors.contains_key(&piece.name);
        let found = layouts.iter().position(|pieces| pieces.iter().all(is_stored));
        if layouts.is_empty() {
            return Err(SourceError::Missing {
                path: self.path.clone(),
                tensor: format!("for {id:?}"),
            });
        }
        let pieces = layouts.swap_remove(found.unwrap_or(0));
        pieces.into_iter().map(|piece| self.rows(id, piece)).collect()
    }

    fn rows(&self, id: TensorId, piece: GgufSlice) -> Result<RowReader<'_>, SourceError> {
        let GgufSlice { name, shape: expected, first_row, rows, elements, is_transposed } = piece;
        let missing = || SourceError::Missing { path: self.path.clone(), tensor: name.clone() };
        let info = self.parts.tensors.get(&name).ok_or_else(missing)?;
        // Dimensions of 1 do not change the order of elements: a vector may be stored as a matrix
        // of one row, and a convolution has four dimensions.
        let others = |shape: &[usize]| -> Vec<usize> {
            shape.iter().copied().filter(|dimension| *dimension != 1).collect()
        };
        if others(&info.shape) != others(&expected) {
            return Err(SourceError::Shape {
                path: self.path.clone(),
                tensor: name,
                found: info.shape.clone(),
                expected,
            });
        }
        let TensorType::Known(stored) = info.tensor_type else {
            return Err(SourceError::Type {
                path: self.path.clone(),
                tensor: name,
                found: info.tensor_type.name(),
                supported: SUPPORTED,
            });
        };
        let order = match layout::head_order(&self.config, id, &name) {
            None => RowOrder::Stored,
            Some(head) if id.is_vector() => RowOrder::PermutedElements(head),
            Some(head) => RowOrder::PermutedRows(head),
        };
        let stored_elements = if is_transposed { rows } else { elements };
        Ok(RowReader {
            name,
            stored,
            part: info.part,
            offset: info.offset + (first_row * stored.row_bytes(stored_elements)) as u64,
            rows,
            row_elements: elements,
            is_transposed,
            order,
            source: self,
        })
    }

    /// Reads rows, starting at `first_row`, into `out`, with `width` elements of `out` per row.
    /// `read` is called for each piece that contains some of them, with the index of the first such
    /// row and the range of `out` that its rows fill.
    fn read_pieces<T>(
        &self,
        pieces: &[RowReader<'_>],
        first_row: usize,
        width: usize,
        out: &mut [T],
        mut read: impl FnMut(&RowReader<'_>, usize, &mut [T]) -> Result<(), SourceError>,
    ) -> Result<(), SourceError> {
        let (mut wanted, mut before) = (first_row, 0);
        let mut left = out;
        for rows in pieces {
            let here = (before + rows.rows).saturating_sub(wanted).min(left.len() / width);
            let (first, rest) = std::mem::take(&mut left).split_at_mut(here * width);
            if here > 0 {
                read(rows, wanted - before, first)?;
            }
            (left, wanted, before) = (rest, wanted + here, before + rows.rows);
        }
        assert!(left.is_empty(), "rows from {first_row} on that a tensor does not have");
        Ok(())
    }

    /// Reads a whole vector as f32.
    fn read_vector(&self, id: TensorId, out: &mut [f32]) -> Result<(), SourceError> {
        let mut left = &mut *out;
        for rows in self.pieces(id)? {
            let (first, rest) = left.split_at_mut(rows.row_elements);
            rows.expand(0, first)?;
            rows.order.restore_elements(first);
            left = rest;
        }
        states::state_transform(&self.config, id).apply(out);
        Ok(())
    }
}

impl WeightSource for GgufSource {
    fn shape(&self, id: TensorId) -> Result<(usize, usize), SourceError> {
        let pieces = self.pieces(id)?;
        Ok(match id.is_vector() {
            true => (1, pieces.iter().map(|rows| rows.row_elements).sum()),
            false => (pieces.iter().map(|rows| rows.rows).sum(), pieces[0].row_elements),
        })
    }

    fn read_bf16(
        &self,
        id: TensorId,
        first_row: usize,
        out: &mut [bf16],
    ) -> Result<(), SourceError> {
        if id.is_vector() {
            let mut exact = vec![0.0; out.len()];
            self.read_vector(id, &mut exact)?;
            out.iter_mut().zip(exact).for_each(|(out, exact)| *out = bf16::from_f32(exact));
            return Ok(());
        }
        let pieces = self.pieces(id)?;
        let width = pieces[0].row_elements;
        let mut exact = vec![0.0; width];
        self.read_pieces(&pieces, first_row, width, out, |rows, first, out| {
            if rows.is_transposed {
                let mut exact = vec![0.0; out.len()];
                rows.expand(first, &mut exact)?;
                out.iter_mut().zip(exact).for_each(|(out, exact)| *out = bf16::from_f32(exact));
                return Ok(());
            }
            rows.visit(first, out.len(), |row, bytes| {
                dequantise(rows.stored, bytes, &mut exact);
                for (out, value) in out[row * width..][..width].iter_mut().zip(&exact) {
                    *out = bf16::from_f32(*value);
                }
            })
        })
    }

    fn read_f32(&self, id: TensorId, first_row: usize, out: &mut [f32]) -> Result<(), SourceError> {
        if id.is_vector() {
            return self.read_vector(id, out);
        }
        let pieces = self.pieces(id)?;
        let width = pieces[0].row_elements;
        self.read_pieces(&pieces, first_row, width, out, |rows, first, out| rows.expand(first, out))
    }

    /// Returns F32 if a file stores parts of a matrix in different types or its rows as columns,
    /// which no kernel supports.
    fn stored_type(&self, id: TensorId) -> Result<StoredType, SourceError> {
        let pieces = self.pieces(id)?;
        let stored = pieces[0].stored;
        let is_one = pieces.iter().all(|rows| rows.stored == stored && !rows.is_transposed);
        Ok(if is_one { stored } else { StoredType::F32 })
    }

    fn read_blocks(
        &self,
        id: TensorId,
        first_row: usize,
        out: &mut [u8],
    ) -> Result<(), SourceError> {
        let (pieces, stored) = (self.pieces(id)?, self.stored_type(id)?);
        // Elements of a permuted vector move between blocks, so its blocks are meaningless on their
        // own.
        if stored.grouped().is_none() || id.is_vector() {
            let tensor = pieces[0].name.clone();
            return Err(SourceError::NoBlocks { tensor, stored: stored.name() });
        }
        let row_bytes = stored.row_bytes(pieces[0].row_elements);
        assert_eq!(out.len() % row_bytes, 0, "{}: not whole rows", pieces[0].name);
        self.read_pieces(&pieces, first_row, row_bytes, out, |rows, first, out| {
            let elements = out.len() / row_bytes * rows.row_elements;
            rows.visit(first, elements, |row, bytes| {
                out[row * row_bytes..][..row_bytes].copy_from_slice(bytes);
            })
        })
    }
}

impl RowReader<'_> {
    /// Reads rows, starting at `first_row`, as f32.
    fn expand(&self, first_row: usize, out: &mut [f32]) -> Result<(), SourceError> {
        if self.is_transposed {
            return self.expand_columns(first_row, out);
        }
        let elements = self.row_elements;
        self.visit(first_row, out.len(), |row, bytes| {
            dequantise(self.stored, bytes, &mut out[row * elements..][..elements]);
        })
    }

    /// Reads columns of the stored rows, starting at `first_row`, as f32.
    ///
    /// # Panics
    /// If `out` is not a whole number of rows, or exceeds the rows from `first_row`.
    fn expand_columns(&self, first_row: usize, out: &mut [f32]) -> Result<(), SourceError> {
        let columns = self.row_elements;
        assert_eq!(out.len() % columns, 0, "{}: not whole rows", self.name);
        let last = first_row + out.len() / columns;
        assert!(last <= self.rows, "{} has {} columns, not {last}", self.name, self.rows);
        let row_bytes = self.stored.row_bytes(self.rows);
        let mut bytes = vec![0; columns * row_bytes];
        self.read_at(self.offset, &mut bytes)?;
        let mut exact = vec![0.0; self.rows];
        for (column, bytes) in bytes.chunks_exact(row_bytes).enumerate() {
            dequantise(self.stored, bytes, &mut exact);
            let rows = out.chunks_exact_mut(columns).zip(&exact[first_row..last]);
            rows.for_each(|(row, exact)| row[column] = *exact);
        }
        Ok(())
    }

    /// Fills `bytes` from an offset in the file.
    fn read_at(&self, at: u64, bytes: &mut [u8]) -> Result<(), SourceError> {
        let parts = &self.source.parts;
        parts.read(self.part, at, bytes).map_err(|source| SourceError::Io {
            path: format!("{}, tensor {}", parts.files[self.part].path.display(), self.name),
            source,
        })
    }

    /// Calls `each` with the index of a row, relative to `first_row`, and the row's stored bytes,
    /// for all rows in `out_elements` elements, in unspecified order.
    ///
    /// # Panics
    /// If `out_elements` is not a whole number of rows, or exceeds the rows from `first_row`.
    fn visit(
        &self,
        first_row: usize,
        out_elements: usize,
        mut each: impl FnMut(usize, &[u8]),
    ) -> Result<(), SourceError> {
        assert_eq!(out_elements % self.row_elements, 0, "{}: not whole rows", self.name);
        let count = out_elements / self.row_elements;
        let last = first_row.checked_add(count).filter(|last| *last <= self.rows);
        let last = last.unwrap_or_else(|| {
            panic!("{} has {} rows, not {first_row} + {count}", self.name, self.rows)
        });
        let row_bytes = self.stored.row_bytes(self.row_elements);
        // The rows of a head are permuted, so whole heads are read and the rows selected from them.
        let (first, step) = match self.order {
            RowOrder::PermutedRows(head) => (first_row / head.size * head.size, head.size),
            _ => (first_row, (READ_BYTES / row_bytes).max(1)),
        };
        let mut bytes = Vec::new();
        for start in (first..last).step_by(step) {
            let end = match self.order {
                RowOrder::PermutedRows(_) => start + step,
                _ => (start + step).min(last),
            };
            bytes.resize((end - start) * row_bytes, 0);
            self.read_at(self.offset + (start * row_bytes) as u64, &mut bytes)?;
            for row in start.max(first_row)..end.min(last) {
                let stored_row = match self.order {
                    RowOrder::PermutedRows(head) => head.stored_index(row - start),
                    _ => row - start,
                };
                each(row - first_row, &bytes[stored_row * row_bytes..][..row_bytes]);
            }
        }
        Ok(())
    }
}

impl RowOrder {
    /// Restores the model's order of the elements of a whole permuted vector.
    fn restore_elements(self, vector: &mut [f32]) {
        let RowOrder::PermutedElements(head) = self else {
            return;
        };
        let mut stored = Vec::with_capacity(head.size);
        for group in vector.chunks_exact_mut(head.size) {
            stored.clear();
            stored.extend_from_slice(group);
            for (index, element) in group.iter_mut().enumerate() {
                *element = stored[head.stored_index(index)];
            }
        }
    }
}

#[cfg(test)]
mod tests;
#[cfg(test)]
pub(crate) mod writer;
