//! Loading of host weights into their buffers, in parallel by row ranges, each in the encoding that
//! the plan stores it in (`encoding`).
//!
//! A blob consists of a matrix followed by f32 vectors (`Op::weights`). A norm gain or a bias that
//! the configuration requires and the files lack is an error of the source, and never silently
//! zero.

mod encoding;
mod error;
mod finite;
mod resident;
mod staged;

use std::ops::Range;
use std::sync::{Arc, Mutex, PoisonError};

use kernels::Variant;
use model::config::{Dtype, ModelConfig};
use model::ops::Op;
use model::quantized_format::WeightFormat;
use model::source::{SourceError, TensorId, TensorPart, WeightSource};
use program::formats::WeightFormats;
use program::plan::Plan;
use program::weights::Weights;
use protocol::messages::WeightsOrigin;
use shm::sync::{AtomicUsize, Ordering};

use crate::memory::{Memories, View};
use encoding::{Encoding, TensorPiece};
pub use error::LoadError;
pub use resident::{
    EmulatedTarget, ResidentTarget, StagingBuffer, UploadRange, load_resident, resident_model_bytes,
};
pub use staged::StagedBlob;

/// Bytes of one piece of a matrix: large enough to amortise a read, small enough to distribute over
/// threads.
const PIECE_BYTES: usize = 4 << 20;

/// Opens the weights that a `WorkerSetup` specifies, for workers that load.
pub type OpenWeights =
    dyn Fn(&WeightsOrigin, &ModelConfig) -> Result<Box<dyn WeightSource>, SourceError>;

/// Loads the weights of `plan` that are stored in `memories`, of the host or of a storage, on
/// `threads` threads, quantising with `variant`. `progress(done, total)`, in bytes, is called from
/// any thread as pieces are completed.
///
/// # Errors
/// Returns the first error of the source; the contents of `memories` are then unusable.
pub fn load(
    plan: &Plan,
    memories: &Arc<Memories>,
    source: &dyn WeightSource,
    variant: Variant,
    threads: usize,
    progress: &(dyn Fn(u64, u64) + Sync),
) -> Result<(), LoadError> {
    let blob_format = BlobFormat {
        config: &plan.config,
        dtype: plan.shape.dtype,
        formats: &plan.map.weight_formats,
    };
    let mut pieces = Vec::new();
    for placement in plan.weights.iter().filter(|placed| memories.is_mapped(placed.buffer)) {
        let of_blob = list_pieces(blob_format, placement.weights, source)?;
        pieces.extend(of_blob.into_iter().map(|piece| (placement.buffer, piece)));
    }
    let sizes = pieces.iter().map(|(_, piece)| piece.size_bytes() as u64);
    let total: u64 = sizes.sum();
    // SAFETY: needed to write the weights. No lane runs before all weights are in place, and the
    // pieces are disjoint, each taken by one thread from the list.
    let view = unsafe { View::new(Arc::clone(memories)) };
    progress(0, total);
    let done = Mutex::new(0u64);
    run_parallel(threads, &pieces, |(buffer, piece)| {
        view.populate(*buffer, piece.offset_bytes, piece.size_bytes());
        let out = view.write::<u8>(*buffer, piece.offset_bytes, piece.size_bytes());
        encoding::read(piece, variant, source, out)?;
        let mut done = lock(&done);
        *done += piece.size_bytes() as u64;
        progress(*done, total);
        Ok(())
    })
}

/// Everything that determines the bytes of a blob.
#[derive(Debug, Clone, Copy)]
pub struct BlobFormat<'a> {
    pub config: &'a ModelConfig,
    pub dtype: Dtype,
    pub formats: &'a WeightFormats,
}

impl BlobFormat<'_> {
    /// Returns the size of a blob, in bytes.
    pub fn size_bytes(self, weights: Weights) -> usize {
        let format = self.formats.of(self.config, weights);
        weights.size_bytes(self.config, self.dtype, format)
    }

    /// Fills `out` with a blob, on `threads` threads, quantising with `variant`. `out` has the size
    /// of the blob and is aligned to 4 bytes; gaps between tensors become 0.
    ///
    /// # Errors
    /// Returns the first error of the source.
    ///
    /// # Panics
    /// Panics if `out` has another length.
    pub fn blob(
        self,
        weights: Weights,
        source: &dyn WeightSource,
        variant: Variant,
        threads: usize,
        out: &mut [u8],
    ) -> Result<(), LoadError> {
        assert_eq!(out.len(), self.size_bytes(weights), "the length of a blob");
        fill(list_pieces(self, weights, source)?, source, variant, threads, out)
    }
}

/// Reads pieces to their offsets in `out`; gaps between them become 0.
fn fill(
    mut pieces: Vec<TensorPiece>,
    source: &dyn WeightSource,
    variant: Variant,
    threads: usize,
    out: &mut [u8],
) -> Result<(), LoadError> {
    pieces.sort_by_key(|piece| piece.offset_bytes);
    let mut work = Vec::new();
    let (mut rest, mut at) = (out, 0);
    for piece in pieces {
        let (gap, after) = rest.split_at_mut(piece.offset_bytes - at);
        gap.fill(0);
        let (own, after) = after.split_at_mut(piece.size_bytes());
        at = piece.offset_bytes + piece.size_bytes();
        work.push(Mutex::new((piece, own)));
        rest = after;
    }
    rest.fill(0);
    run_parallel(threads, &work, |task| {
        let (piece, own) = &mut *lock(task);
        encoding::read(piece, variant, source, own)
    })
}

/// Executes all tasks, distributed over `threads` threads, until one fails.
fn run_parallel<T: Sync>(
    threads: usize,
    tasks: &[T],
    each: impl Fn(&T) -> Result<(), LoadError> + Sync,
) -> Result<(), LoadError> {
    run_parallel_with(threads, tasks, || Ok(()), |(), task| each(task))
}

/// Executes all tasks like [`run_parallel`], with a state of each thread that takes any.
fn run_parallel_with<T: Sync, S>(
    threads: usize,
    tasks: &[T],
    state: impl Fn() -> Result<S, LoadError> + Sync,
    each: impl Fn(&mut S, &T) -> Result<(), LoadError> + Sync,
) -> Result<(), LoadError> {
    let next = AtomicUsize::new(0);
    let failure: Mutex<Option<LoadError>> = Mutex::new(None);
    let take = || {
        let mut thread_state = None;
        while let Some(task) = tasks.get(next.fetch_add(1, Ordering::Relaxed)) {
            let done = match &mut thread_state {
                Some(known) => each(known, task),
                None => state().and_then(|new| each(thread_state.insert(new), task)),
            };
            if let Err(error) = done {
                lock(&failure).get_or_insert(error);
                // No thread takes another task.
                next.store(tasks.len(), Ordering::Relaxed);
                return;
            }
        }
    };
    std::thread::scope(|scope| {
        for thread in 1..threads.max(1) {
            std::thread::Builder::new()
                .name(format!("load-{thread}"))
                .spawn_scoped(scope, take)
                .map_err(LoadError::Thread)?;
        }
        take();
        Ok::<(), LoadError>(())
    })?;
    match failure.into_inner().unwrap_or_else(PoisonError::into_inner) {
        Some(error) => Err(error),
        None => Ok(()),
    }
}

fn lock<T>(mutex: &Mutex<T>) -> std::sync::MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

/// Splits one blob into pieces, after checking the shapes of its tensors.
fn list_pieces(
    encoded: BlobFormat<'_>,
    weights: Weights,
    source: &dyn WeightSource,
) -> Result<Vec<TensorPiece>, LoadError> {
    let tensors = checked_tensors(encoded, weights, source)?.into_iter();
    Ok(tensors
        .flat_map(|tensor| row_pieces(tensor, 0..tensor.shape.0, tensor.offset_bytes))
        .collect())
}

/// Returns the tensors of a blob, whose shapes are those of the source.
fn checked_tensors(
    encoded: BlobFormat<'_>,
    weights: Weights,
    source: &dyn WeightSource,
) -> Result<Vec<Tensor>, LoadError> {
    let all = tensors(encoded, weights);
    for tensor in &all {
        let found = source.shape(tensor.id)?;
        if found != tensor.shape {
            let name = format!("{:?}", tensor.id);
            return Err(LoadError::Shape { tensor: name, found, expected: tensor.shape });
        }
    }
    Ok(all)
}

/// Splits rows of a tensor, which are written to `offset_bytes`, into pieces.
fn row_pieces(
    tensor: Tensor,
    rows: Range<usize>,
    offset_bytes: usize,
) -> impl Iterator<Item = TensorPiece> {
    let columns = tensor.shape.1;
    let step = tensor.encoding.row_step();
    let step_bytes = tensor.encoding.size_bytes(step, columns);
    let steps = (PIECE_BYTES / step_bytes.max(1)).max(1);
    rows.clone().step_by(steps * step).enumerate().map(move |(index, first_row)| TensorPiece {
        id: tensor.id,
        offset_bytes: offset_bytes + index * steps * step_bytes,
        first_row,
        rows: (steps * step).min(rows.end - first_row),
        columns,
        encoding: tensor.encoding,
    })
}

/// A tensor of a blob.
#[derive(Debug, Clone, Copy)]
struct Tensor {
    id: TensorId,
    shape: (usize, usize),
    offset_bytes: usize,
    encoding: Encoding,
}

fn encoding_of(format: WeightFormat, dtype: Dtype) -> Encoding {
    match format {
        WeightFormat::Plain => Encoding::Plain(dtype),
        WeightFormat::Grouped(grouped) => Encoding::Grouped(grouped),
    }
}

/// Returns the tensors of a blob: the matrix, then the vectors.
fn tensors(encoded: BlobFormat<'_>, weights: Weights) -> Vec<Tensor> {
    let BlobFormat { config, dtype, formats } = encoded;
    let op = match weights {
        Weights::Positions => {
            let shape = (config.learned_position_rows(), config.hidden_size);
            let encoding = Encoding::Plain(dtype);
            return vec![Tensor { id: TensorId::Positions, shape, offset_bytes: 0, encoding }];
        }
        Weights::PerLayerTable => {
            let id = TensorId::PerLayerTable;
            let Some(shape) = id.expected_shape(config) else { return Vec::new() };
            let encoding = encoding_of(formats.of(config, weights), dtype);
            return vec![Tensor { id, shape, offset_bytes: 0, encoding }];
        }
        Weights::PerLayerProjection => Op::PerLayerEmbed,
        Weights::JoinHidden => Op::JoinHidden,
        Weights::Embedding => Op::Embed,
        Weights::FinalNorm => Op::FinalNorm,
        Weights::Head => Op::Head,
        Weights::Layer { op, .. } => op,
    };
    let model = match weights {
        Weights::Layer { layer, .. } => config.of_layer(layer.into()),
        _ => config,
    };
    let Some(shape) = op.weights(model) else { return Vec::new() };
    let format = formats.of(config, weights);
    let layout = shape.layout(dtype, format);
    let id = |part| match weights {
        Weights::FinalNorm => TensorId::FinalNorm { part },
        Weights::Head => TensorId::Head,
        Weights::Layer { layer, op } => TensorId::Layer { layer: usize::from(layer), op, part },
        Weights::PerLayerProjection => TensorId::PerLayerProjection { part },
        Weights::JoinHidden => TensorId::JoinHidden { part },
        Weights::Embedding | Weights::Positions | Weights::PerLayerTable => TensorId::Embedding,
    };
    let mut found = Vec::new();
    if let Some(matrix) = shape.matrix {
        let encoding = encoding_of(format, shape.matrix_dtype(dtype));
        let id = id(TensorPart::Matrix);
        found.push(Tensor { id, shape: matrix, offset_bytes: 0, encoding });
    }
    // A norm has no matrix: its gain comes first, its bias second. A linear has a bias, and q and k
    // also have the gain of their norm.
    let linear = shape.matrix.is_some();
    let parts = if linear {
        [TensorPart::Bias, TensorPart::Gain]
    } else {
        [TensorPart::Gain, TensorPart::Bias]
    };
    for ((count, part), offset_bytes) in shape.vectors.iter().zip(parts).zip(layout.vector_offsets)
    {
        if let Some(count) = count {
            let shape = (1, *count);
            let encoding = Encoding::Plain(Dtype::F32);
            found.push(Tensor { id: id(part), shape, offset_bytes, encoding });
        }
    }
    found
}
