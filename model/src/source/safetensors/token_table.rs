//! Tables of the experts of each token, which checkpoints store as integers.

use safetensors::tensor::Dtype as Stored;

use super::files::format_error;
use super::formats::StorageFormat;
use super::{PIECE_BYTES, Part, SafetensorsSource};
use crate::layers::ExpertRouting;
use crate::ops::Op;
use crate::source::{SourceError, TensorId, TensorPart};

impl SafetensorsSource {
    /// Returns true if a tensor is a table of the experts of each token.
    pub(super) fn is_token_table(&self, id: TensorId) -> bool {
        let TensorId::Layer { layer, op: Op::Router, part: TensorPart::Gain } = id else {
            return false;
        };
        self.config.layers.kind(layer).routing == ExpertRouting::ByToken
    }

    /// Reads a whole table as numbers.
    ///
    /// # Errors
    /// A tensor of another shape or type, or a row that does not have different experts of the
    /// model.
    pub(super) fn read_token_table(
        &self,
        id: TensorId,
        out: &mut [f32],
    ) -> Result<(), SourceError> {
        let parts = self.checked(id)?;
        let [Part { form: StorageFormat::Plain(stretch), piece }] = parts.as_slice() else {
            let reason = format!("{id:?} is not a plain tensor");
            return Err(format_error(&self.files.directory, reason));
        };
        let (path, name) = (self.files.path(stretch), &piece.names[0]);
        if !matches!(stretch.stored, Stored::I32 | Stored::I64) {
            return Err(SourceError::Type {
                path: path.display().to_string(),
                tensor: name.clone(),
                found: format!("{:?}", stretch.stored),
                supported: "supported: I32, I64",
            });
        }
        if out.len() != stretch.elements() {
            return Err(format_error(path, format!("{name} is read as a whole")));
        }
        let size = stretch.element_bytes();
        let mut bytes = vec![0u8; PIECE_BYTES];
        for (index, values) in out.chunks_mut(PIECE_BYTES / size).enumerate() {
            let bytes = &mut bytes[..values.len() * size];
            self.files.read(stretch, index * (PIECE_BYTES / size), bytes)?;
            for (value, bytes) in values.iter_mut().zip(bytes.chunks_exact(size)) {
                *value = expert(bytes);
            }
        }
        match self.config.experts {
            Some(experts) if experts.has_rows(out) => Ok(()),
            _ => {
                let reason = format!("{name} has a row without different experts of the model");
                Err(format_error(path, reason))
            }
        }
    }
}

/// Converts an integer to the number of an expert; -1 if no expert can have it.
fn expert(bytes: &[u8]) -> f32 {
    let number = match *bytes {
        [a, b, c, d] => i64::from(i32::from_le_bytes([a, b, c, d])),
        [a, b, c, d, e, f, g, h] => i64::from_le_bytes([a, b, c, d, e, f, g, h]),
        _ => -1,
    };
    u16::try_from(number).map_or(-1.0, f32::from)
}
