//! Blobs of a staging: weights as they are stored in memory, and the experts of a layer as records.

use kernels::Variant;
use model::source::WeightSource;
use program::expert_records::ExpertRecord;
use program::weights::Weights;

use super::error::LoadError;
use super::{BlobFormat, checked_tensors, encoding, fill, row_pieces};

/// A blob of a staging.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum StagedBlob {
    Weights(Weights),
    /// Records of all experts of a layer.
    Experts {
        layer: u16,
    },
}

impl BlobFormat<'_> {
    /// Returns the blobs that contain some weights, in the order of these.
    pub fn staged_blobs(self, weights: impl IntoIterator<Item = Weights>) -> Vec<StagedBlob> {
        let mut all = Vec::new();
        for weights in weights {
            let blob = match weights {
                Weights::Layer { layer, op } if op.is_expert() => StagedBlob::Experts { layer },
                other => StagedBlob::Weights(other),
            };
            if !all.contains(&blob) {
                all.push(blob);
            }
        }
        all
    }

    /// Returns the name of a blob.
    pub fn staged_name(self, blob: StagedBlob) -> String {
        match blob {
            StagedBlob::Weights(weights) => weights.name(self.config),
            StagedBlob::Experts { layer } => ExpertRecord::blob_name(layer),
        }
    }

    /// Returns the size of a blob, in bytes.
    pub fn staged_bytes(self, blob: StagedBlob) -> usize {
        match blob {
            StagedBlob::Weights(weights) => self.size_bytes(weights),
            StagedBlob::Experts { layer } => {
                self.record(layer).map_or(0, |record| record.blob_bytes() as usize)
            }
        }
    }

    /// Fills `out` with a blob like [`BlobFormat::blob`].
    ///
    /// # Errors
    /// Returns the first error of the source.
    ///
    /// # Panics
    /// Panics if `out` does not have the size of the blob.
    pub fn fill_staged(
        self,
        blob: StagedBlob,
        source: &dyn WeightSource,
        variant: Variant,
        threads: usize,
        out: &mut [u8],
    ) -> Result<(), LoadError> {
        let layer = match blob {
            StagedBlob::Weights(weights) => {
                return self.blob(weights, source, variant, threads, out);
            }
            StagedBlob::Experts { layer } => layer,
        };
        assert_eq!(out.len(), self.staged_bytes(blob), "the length of a blob");
        let Some(record) = self.record(layer) else { return Ok(()) };
        let (mut pieces, mut biases) = (Vec::new(), Vec::new());
        for op in record.ops().iter() {
            let Some(part) = record.part(op) else { continue };
            for tensor in checked_tensors(self, Weights::Layer { layer, op }, source)? {
                // A matrix has the rows of all experts; the biases of all experts are one row.
                if tensor.offset_bytes > 0 {
                    biases.push((part, tensor));
                    continue;
                }
                let rows = tensor.shape.0 / record.count as usize;
                for expert in 0..record.count {
                    let first = expert as usize * rows;
                    let offset_bytes = expert * record.size_bytes + part.offset_bytes;
                    pieces.extend(row_pieces(tensor, first..first + rows, offset_bytes as usize));
                }
            }
        }
        fill(pieces, source, variant, threads, out)?;
        for (part, tensor) in biases {
            let mut all = vec![0.0f32; tensor.shape.1];
            for piece in row_pieces(tensor, 0..1, 0) {
                encoding::read(&piece, variant, source, bytemuck::cast_slice_mut(&mut all))?;
            }
            let bias_bytes = part.bias_bytes as usize;
            let own = bytemuck::cast_slice::<f32, u8>(&all).chunks_exact(bias_bytes.max(1));
            for (expert, bias) in (0..record.count).zip(own) {
                let record_bytes = expert * record.size_bytes + part.offset_bytes;
                let first = (record_bytes + part.bias_offset_bytes) as usize;
                out[first..first + bias_bytes].copy_from_slice(bias);
            }
        }
        Ok(())
    }

    fn record(self, layer: u16) -> Option<ExpertRecord> {
        ExpertRecord::new(self.config, layer, self.dtype, self.formats)
    }
}
