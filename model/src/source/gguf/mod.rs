//! GGUF files as a source of weights: a bounds-checked reader of our own.
//!
//! `parse` reads the head of a file, `parts` joins the files of a model that has several,
//! `metadata` holds their keys, `config` makes a model configuration of them and of what only
//! tensors tell (`facts`), `dequantise` knows the tensor types and `layout` which tensor holds what
//! in which order of rows. [`GgufSource`] joins them for the loader; `gguf_tokenizer` reads its
//! metadata.
//!
//! Invariants: when [`GgufSource::open`] succeeds, every tensor of the configuration is there, has
//! its shape and a supported type and lies inside the file; and there is no tensor whose meaning is
//! not known. Tensors are read with positioned reads, so a file cut off later is an error, not a
//! signal.

use std::collections::HashSet;
use std::path::{Path, PathBuf};

use half::bf16;

use super::{SourceError, StoredType, TensorId, WeightSource};
use crate::config::ModelConfig;

mod blocks;
mod config;
mod dequantise;
mod facts;
mod k_quants;
mod layout;
pub mod metadata;
mod parse;
mod parts;
mod tables;

#[cfg(test)]
pub(crate) use dequantise::dequantise as expand;
use dequantise::{SUPPORTED, TensorType, dequantise};
use facts::TensorFacts;
use metadata::Metadata;
use parts::Parts;
pub use parts::{first_part, model_name, part_paths};

/// Rows are read in pieces of about this size: large enough that the system call does not matter,
/// small enough for the second-level cache.
const READ_BYTES: usize = 256 << 10;

/// A GGUF file, or all parts of one, with a model whose weights can be read.
#[derive(Debug)]
pub struct GgufSource {
    path: String,
    parts: Parts,
    config: ModelConfig,
}

/// A tensor that was looked up: where its rows are and how they are ordered.
struct Rows<'a> {
    name: String,
    stored: StoredType,
    part: usize,
    offset: u64,
    rows: usize,
    row_elements: usize,
    order: Order,
    source: &'a GgufSource,
}

/// How the file orders a tensor's rows.
#[derive(Debug, Clone, Copy)]
enum Order {
    /// As the model means them.
    Stored,
    /// The rows of each group of `head` rows are permuted for GGML's rope.
    PermutedRows { head: usize },
    /// The same for the elements of a vector.
    PermutedElements { head: usize },
}

impl GgufSource {
    /// Opens a file, and all others where it is a part of several, and checks their heads against
    /// the needs of the architecture. Tensor data is not read, except for a rope factor table.
    ///
    /// # Errors
    /// A file that cannot be read, is no GGUF file or is damaged; a part that is missing or does
    /// not belong; an architecture, a variant of one or a tensor type that is not supported;
    /// missing or misshapen tensors.
    pub fn open(path: &Path) -> Result<Self, SourceError> {
        let path_text = path.display().to_string();
        let parts = Parts::open(path)?;
        let facts = TensorFacts::read(&parts, &path_text)?;
        let config =
            config::model_config(&parts.metadata, model_name(path), &facts).map_err(|error| {
                SourceError::Format { path: path_text.clone(), reason: error.to_string() }
            })?;
        let source = Self { path: path_text, parts, config };
        source.check_tensors()?;
        Ok(source)
    }

    /// The model in the file.
    pub fn config(&self) -> &ModelConfig {
        &self.config
    }

    /// All metadata; `gguf_tokenizer` makes a tokenizer of it.
    pub fn metadata(&self) -> &Metadata {
        &self.parts.metadata
    }

    /// The paths of all files that the model is in, in order.
    pub fn files(&self) -> Vec<PathBuf> {
        self.parts.files.iter().map(|part| part.path.clone()).collect()
    }

    /// The path that was opened, for messages.
    pub fn path(&self) -> &str {
        &self.path
    }

    /// That everything the model needs is there, and nothing else that would change its results.
    fn check_tensors(&self) -> Result<(), SourceError> {
        let mut known = HashSet::new();
        for id in layout::tensor_ids(&self.config) {
            known.insert(self.rows(id)?.name);
        }
        // The first in the alphabet, so that the message does not depend on the hash order.
        let unknown = self
            .parts
            .tensors
            .keys()
            .filter(|name| !known.contains(*name) && !layout::is_ignored(name))
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

    fn rows(&self, id: TensorId) -> Result<Rows<'_>, SourceError> {
        let missing = |tensor: String| SourceError::Missing { path: self.path.clone(), tensor };
        let (Some(place), Some((rows, row_elements))) =
            (layout::place(&self.config, id), id.expected_shape(&self.config))
        else {
            return Err(missing(format!("for {id:?}")));
        };
        let layout::Place { name, shape: expected, first_row } = place;
        let info = self.parts.tensors.get(&name).ok_or_else(|| missing(name.clone()))?;
        if info.shape != expected {
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
        let head = self.config.head_dim;
        let order = match layout::is_permuted(&self.config, id) {
            false => Order::Stored,
            true if id.is_vector() => Order::PermutedElements { head },
            true => Order::PermutedRows { head },
        };
        let (part, first_byte) = (info.part, first_row * stored.row_bytes(row_elements));
        let offset = info.offset + first_byte as u64;
        Ok(Rows { name, stored, part, offset, rows, row_elements, order, source: self })
    }
}

impl WeightSource for GgufSource {
    fn shape(&self, id: TensorId) -> Result<(usize, usize), SourceError> {
        self.rows(id).map(|rows| (rows.rows, rows.row_elements))
    }

    fn read_bf16(
        &self,
        id: TensorId,
        first_row: usize,
        out: &mut [bf16],
    ) -> Result<(), SourceError> {
        let rows = self.rows(id)?;
        let (elements, stored) = (rows.row_elements, rows.stored);
        let mut exact = vec![0.0; elements];
        rows.visit(first_row, out.len(), |row, bytes| {
            dequantise(stored, bytes, &mut exact);
            for (out, value) in out[row * elements..][..elements].iter_mut().zip(&exact) {
                *out = bf16::from_f32(*value);
            }
        })?;
        rows.order.restore_elements(out);
        Ok(())
    }

    fn read_f32(&self, id: TensorId, first_row: usize, out: &mut [f32]) -> Result<(), SourceError> {
        let rows = self.rows(id)?;
        let (elements, stored) = (rows.row_elements, rows.stored);
        rows.visit(first_row, out.len(), |row, bytes| {
            dequantise(stored, bytes, &mut out[row * elements..][..elements]);
        })?;
        rows.order.restore_elements(out);
        Ok(())
    }

    fn stored_type(&self, id: TensorId) -> Result<StoredType, SourceError> {
        self.rows(id).map(|rows| rows.stored)
    }

    fn read_blocks(
        &self,
        id: TensorId,
        first_row: usize,
        out: &mut [u8],
    ) -> Result<(), SourceError> {
        let rows = self.rows(id)?;
        // Elements of a permuted vector move between blocks, so its blocks mean nothing alone.
        if rows.stored.grouped().is_none() || matches!(rows.order, Order::PermutedElements { .. }) {
            let stored = rows.stored.name();
            return Err(SourceError::NoBlocks { tensor: rows.name, stored });
        }
        let row_bytes = rows.stored.row_bytes(rows.row_elements);
        assert_eq!(out.len() % row_bytes, 0, "{}: not whole rows", rows.name);
        let elements = out.len() / row_bytes * rows.row_elements;
        rows.visit(first_row, elements, |row, bytes| {
            out[row * row_bytes..][..row_bytes].copy_from_slice(bytes);
        })
    }
}

impl Rows<'_> {
    /// Calls `each` with the number of a row, counted from `first_row`, and the row's stored bytes,
    /// for as many rows as `out_elements` hold, in no certain order.
    ///
    /// # Panics
    /// When `out_elements` are no whole rows, or more than there are behind `first_row`.
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
        // A head's rows lie among each other, so a head is read whole and picked from.
        let (first, step) = match self.order {
            Order::PermutedRows { head } => (first_row / head * head, head),
            _ => (first_row, (READ_BYTES / row_bytes).max(1)),
        };
        let mut bytes = Vec::new();
        for start in (first..last).step_by(step) {
            let end = match self.order {
                Order::PermutedRows { .. } => start + step,
                _ => (start + step).min(last),
            };
            bytes.resize((end - start) * row_bytes, 0);
            let at = self.offset + (start * row_bytes) as u64;
            let parts = &self.source.parts;
            parts.read(self.part, at, &mut bytes).map_err(|source| SourceError::Io {
                path: format!("{}, tensor {}", parts.files[self.part].path.display(), self.name),
                source,
            })?;
            for row in start.max(first_row)..end.min(last) {
                let stored_row = match self.order {
                    Order::PermutedRows { head } => layout::permuted_index(row - start, head),
                    _ => row - start,
                };
                each(row - first_row, &bytes[stored_row * row_bytes..][..row_bytes]);
            }
        }
        Ok(())
    }
}

impl Order {
    /// Puts the elements of a permuted vector, read whole, into the model's order.
    fn restore_elements<T: Copy>(self, vector: &mut [T]) {
        let Order::PermutedElements { head } = self else {
            return;
        };
        let mut stored = Vec::with_capacity(head);
        for group in vector.chunks_exact_mut(head) {
            stored.clear();
            stored.extend_from_slice(group);
            for (index, element) in group.iter_mut().enumerate() {
                *element = stored[layout::permuted_index(index, head)];
            }
        }
    }
}

#[cfg(test)]
mod tests;
#[cfg(test)]
pub(crate) mod writer;
