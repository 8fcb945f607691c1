//! Tensors of a GGUF file made from those of a model of any format: the names, shapes and order of
//! rows that `layout` defines, in the opposite direction.

use std::collections::HashMap;

use super::layout::{self, HeadOrder};
use super::states::{StateTransform, state_transform};
use crate::config::{Family, ModelConfig};
use crate::family::description;
use crate::source::{SourceError, TensorId, WeightSource};

pub use super::layout::ROPE_FACTORS;

/// A tensor of a file and the tensors of the model that are its rows.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ExportTensor {
    pub name: String,
    /// Shape `[n]` or `[out, in]`, preceded by the number of experts if there are any.
    pub shape: Vec<usize>,
    /// Tensors of the model in the order of their rows, each with the number of its rows.
    parts: Vec<(TensorId, usize)>,
}

/// Returns the value of `general.architecture` for a model; `None` for a family without files.
pub fn architecture(config: &ModelConfig) -> Option<&'static str> {
    let has_temperature = config
        .layers
        .kinds()
        .iter()
        .any(|kind| kind.rope.as_ref().is_some_and(|rope| rope.temperature.is_some()));
    match config.family {
        // Files of both have the architecture of LLaMA.
        Family::Mixtral => Some("llama"),
        Family::Mistral if !has_temperature => Some("llama"),
        family => description(family).gguf.names.first().copied(),
    }
}

/// Returns the tensors of a file of the model, in the order of its layers; `None` if a tensor of
/// the model is stored in a form that cannot be written.
pub fn export_tensors(config: &ModelConfig) -> Option<Vec<ExportTensor>> {
    let mut tensors: Vec<ExportTensor> = Vec::new();
    let mut indices = HashMap::new();
    for id in layout::tensor_ids(config) {
        if id == TensorId::Head && config.tied_embeddings {
            continue;
        }
        let layout = layout::layouts(config, id).into_iter().next()?;
        let [piece] = layout.as_slice() else { return None };
        if piece.is_transposed || state_transform(config, id) != StateTransform::None {
            return None;
        }
        let rows = if id.is_vector() { 1 } else { piece.rows };
        match indices.get(&piece.name) {
            None => {
                indices.insert(piece.name.clone(), tensors.len());
                let (name, shape) = (piece.name.clone(), piece.shape.clone());
                tensors.push(ExportTensor { name, shape, parts: vec![(id, rows)] });
            }
            Some(index) => {
                let known: &mut ExportTensor = &mut tensors[*index];
                let follows = known.parts.iter().map(|(_, rows)| rows).sum::<usize>();
                if piece.first_row != follows {
                    return None;
                }
                known.parts.push((id, rows));
            }
        }
    }
    Some(tensors)
}

/// Returns the names under which files store the matrices of a model. A matrix that some files
/// store as a part of a larger one has both names.
pub fn matrix_names(config: &ModelConfig) -> Vec<(TensorId, String)> {
    let ids = layout::tensor_ids(config).filter(|id| !id.is_vector());
    let mut names: Vec<(TensorId, String)> = ids
        .flat_map(|id| {
            let pieces = layout::layouts(config, id).into_iter().flatten();
            pieces.filter(|piece| !piece.is_transposed).map(move |piece| (id, piece.name))
        })
        .collect();
    names.dedup();
    names
}

impl ExportTensor {
    /// Returns the first tensor of the model that is part of this one.
    pub fn id(&self) -> TensorId {
        self.parts[0].0
    }

    /// Fills `out` with consecutive rows in the file's order as f32, starting at `first_row`. Rows
    /// of all experts are consecutive; a vector is one row, which is read whole.
    ///
    /// # Errors
    /// As [`WeightSource::read_f32`].
    ///
    /// # Panics
    /// If `out` is not whole rows of the tensor.
    pub fn read_rows(
        &self,
        config: &ModelConfig,
        source: &dyn WeightSource,
        first_row: usize,
        out: &mut [f32],
    ) -> Result<(), SourceError> {
        let elements = self.shape.last().copied().unwrap_or(1);
        if self.id().is_vector() {
            let mut vector = vec![0.0; out.len()];
            source.read_f32(self.id(), 0, &mut vector)?;
            let order = layout::head_order(config, self.id(), &self.name);
            reorder(order, 1, &vector, 0, out);
            return Ok(());
        }
        assert_eq!(out.len() % elements, 0, "{}: not whole rows", self.name);
        let (mut skipped, mut rest) = (first_row, out);
        for (id, rows) in &self.parts {
            let from = skipped.min(*rows);
            skipped -= from;
            let count = (rows - from).min(rest.len() / elements);
            let (here, after) = std::mem::take(&mut rest).split_at_mut(count * elements);
            rest = after;
            if count > 0 {
                let order = layout::head_order(config, *id, &self.name);
                read_ordered(order, source, *id, elements, from, here)?;
            }
        }
        assert!(rest.is_empty(), "{} has fewer rows", self.name);
        Ok(())
    }
}

/// Reads rows `[from, from + out.len() / elements)` of the file's order of a matrix.
fn read_ordered(
    order: Option<HeadOrder>,
    source: &dyn WeightSource,
    id: TensorId,
    elements: usize,
    from: usize,
    out: &mut [f32],
) -> Result<(), SourceError> {
    let Some(order) = order else {
        return source.read_f32(id, from, out);
    };
    // Rows move within a head, so whole heads are read.
    let first = from / order.size * order.size;
    let last = (from + out.len() / elements).next_multiple_of(order.size);
    let mut heads = vec![0.0; (last - first) * elements];
    source.read_f32(id, first, &mut heads)?;
    reorder(Some(order), elements, &heads, from - first, out);
    Ok(())
}

/// Copies rows of `elements` elements of whole heads to `out` in the file's order, starting at row
/// `from` of that order.
fn reorder(order: Option<HeadOrder>, elements: usize, heads: &[f32], from: usize, out: &mut [f32]) {
    let rows = from..from + out.len() / elements;
    for (index, row) in heads.chunks_exact(elements).enumerate() {
        let stored = match order {
            None => index,
            Some(head) => index / head.size * head.size + head.stored_index(index % head.size),
        };
        if rows.contains(&stored) {
            out[(stored - from) * elements..][..elements].copy_from_slice(row);
        }
    }
}
