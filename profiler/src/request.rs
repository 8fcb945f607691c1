//! Subject of profiling: the model's shapes, the workload's extents, the formats, the threads.

use std::time::Duration;

use model::config::{Dtype, ModelConfig};
use model::layers::{LayerKind, Layers};
use model::ops::Op;
use model::quantized_format::WeightFormat;
use program::formats::{KvFormat, WeightFormats};
use program::plan::RunShape;
use serde::{Deserialize, Serialize};

use crate::key::Extent;

/// Maximum number of vocabulary tokens with which head and sampling are measured: loading a whole
/// head would take longer than measuring it, and both grow proportionally.
pub(crate) const VOCABULARY_MAX: usize = 16_384;

/// Default budget with a device: a choice between placements with and without it needs both.
const BUDGET_WITH_DEVICE: Duration = Duration::from_secs(20);
const BUDGET_CPU_ONLY: Duration = Duration::from_secs(10);

/// Compute threads of the two workers that have any.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Serialize, Deserialize)]
pub struct ComputeThreads {
    pub cpu: u16,
    /// Threads of the emulated device; 0 if there is none.
    pub gpu: u16,
}

/// Subject of a profile.
#[derive(Debug, Clone)]
pub struct ProfilingRequest {
    /// The whole model; only as many layers are used as measuring requires.
    pub config: ModelConfig,
    pub dtype: Dtype,
    /// Number of sequences of a batch.
    pub batch_size: u16,
    /// Number of whole sequences per stream of prefill.
    pub micro_sequences: u16,
    /// Length of the longest prompt, in positions.
    pub max_prompt: u32,
    /// Maximum length of prompt and output together, in positions.
    pub max_context: u32,
    /// Formats of the weights that plans may choose from; at least one.
    pub weight_formats: Vec<WeightFormats>,
    /// Formats of the KV cache that plans may choose from; at least one.
    pub kv_formats: Vec<KvFormat>,
    /// Numbers of parts into which plans may split attention, besides leaving it whole.
    pub chunks: Vec<u16>,
    /// Description of the device (`emulated`, or a name and link); `None`: everything runs on the
    /// CPU.
    pub device: Option<String>,
    pub threads: ComputeThreads,
    /// Maximum number of CPU threads in the sweep; 0 skips the sweep.
    pub sweep_threads_max: u16,
    /// Time budget. It is kept by measuring fewer points and repetitions, not by stopping: three
    /// repetitions of the workload's own shape are always made, and one of the points without which
    /// nothing else could be priced.
    pub budget: Duration,
}

/// Returns the number of whole prompts with about as many rows as a stream of `sequences`.
pub(crate) fn whole_prompts(shape: &RunShape, sequences: u16) -> u16 {
    let rows = RunShape { micro_sequences: sequences, ..*shape }.stream_rows() as u32;
    let whole = (rows + shape.max_prompt / 2) / shape.max_prompt.max(1);
    whole.clamp(1, u32::from(sequences).max(1)) as u16
}

impl ProfilingRequest {
    /// Returns the request for a run of this shape.
    pub fn for_shape(
        config: &ModelConfig,
        shape: &RunShape,
        threads: ComputeThreads,
    ) -> ProfilingRequest {
        let mut config = config.clone();
        // Steps start at any position, of which states with drafts could not tell what to take in.
        config.layers.set_draft_positions(0);
        ProfilingRequest {
            weight_formats: vec![WeightFormats::plain(&config)],
            config,
            dtype: shape.dtype,
            batch_size: shape.batch_size,
            micro_sequences: whole_prompts(shape, shape.micro_sequences),
            max_prompt: shape.max_prompt,
            max_context: shape.max_context,
            kv_formats: vec![KvFormat::Plain],
            chunks: Vec::new(),
            device: (threads.gpu > 0).then(|| "emulated".to_owned()),
            threads,
            sweep_threads_max: threads.cpu + threads.gpu,
            budget: if threads.gpu > 0 { BUDGET_WITH_DEVICE } else { BUDGET_CPU_ONLY },
        }
    }

    /// Returns the shape of the workload in the middle of decoding, at which contention is
    /// measured.
    pub(crate) fn workload_extent(&self) -> Extent {
        Extent { sequences: u32::from(self.batch_size), positions: self.kv_lengths()[1] }
    }

    /// Returns the KV lengths: after the prompt, in the middle, at the end.
    pub(crate) fn kv_lengths(&self) -> [u32; 3] {
        let (first, last) = (self.max_prompt.max(1), self.max_context.max(self.max_prompt + 1));
        [first, first.midpoint(last), last]
    }

    /// Returns the layers that are measured, one for each list of operations, with the formats of
    /// their operations' matrices: the leading layer first, those with a state last.
    pub(crate) fn layer_kinds(&self) -> Vec<(LayerKind, Vec<WeightFormat>)> {
        let config = &self.config;
        let mut kinds: Vec<&LayerKind> = Vec::new();
        for kind in config.layers.kinds() {
            if !kinds.iter().any(|known| config.kind_ops(known) == config.kind_ops(kind)) {
                kinds.push(kind);
            }
        }
        let leading = config.leading_ops();
        kinds.sort_by_key(|kind| (kind.has_state(), config.kind_ops(kind) != leading));
        let of_kind = |kind: &LayerKind| {
            // A window is priced as the corresponding number of positions.
            let measured = LayerKind { window: None, ..kind.clone() };
            let formats = self.formats_of_ops(config.kind_ops(kind)).into_iter();
            formats.map(|formats| (measured.clone(), formats)).collect::<Vec<_>>()
        };
        kinds.into_iter().flat_map(of_kind).collect()
    }

    /// Returns the distinct formats of each operation's matrix, in the order of the request: entry
    /// `v` of the result has the `v`-th format of every operation (its last one if it has fewer),
    /// for the layers with these operations.
    fn formats_of_ops(&self, ops: &[Op]) -> Vec<Vec<WeightFormat>> {
        let is_meant = |layer: &usize| self.config.layer_ops(*layer) == ops;
        let meant: Vec<usize> = (0..self.config.num_layers).filter(is_meant).collect();
        let ops = ops.len();
        let mut distinct: Vec<Vec<WeightFormat>> = vec![Vec::new(); ops];
        for formats in &self.weight_formats {
            for layer in meant.iter().filter_map(|layer| formats.layers.get(*layer)) {
                for (known, format) in distinct.iter_mut().zip(layer) {
                    if !known.contains(format) {
                        known.push(*format);
                    }
                }
            }
        }
        let kinds = distinct.iter().map(Vec::len).max().unwrap_or(0).max(1);
        let format = |known: &Vec<WeightFormat>, kind: usize| {
            known.get(kind).or_else(|| known.last()).copied().unwrap_or_default()
        };
        (0..kinds).map(|kind| distinct.iter().map(|known| format(known, kind)).collect()).collect()
    }

    /// Returns the model with `copies` layers of each kind, and their formats. Their attention
    /// covers all positions: that of a window is priced as the corresponding number of positions.
    pub(crate) fn layers(&self, copies: usize) -> (ModelConfig, WeightFormats) {
        let layers: Vec<_> =
            self.layer_kinds().into_iter().flat_map(|kind| vec![kind; copies]).collect();
        let mut config = self.config.clone();
        config.layers = Layers::from_kinds(layers.iter().map(|(kind, _)| kind.clone()));
        config.num_layers = layers.len();
        config.vocab_size = self.vocabulary();
        let mut formats = WeightFormats::plain(&config);
        if let Some(first) = self.weight_formats.first() {
            (formats.embedding, formats.head) = (first.embedding, first.head);
            formats.activations = first.activations;
        }
        formats.layers = layers.into_iter().map(|(_, formats)| formats).collect();
        (config, formats)
    }

    /// Returns the number of tokens of the vocabulary that is measured.
    pub(crate) fn vocabulary(&self) -> usize {
        self.config.vocab_size.min(VOCABULARY_MAX)
    }

    /// Returns the bytes of one layer's weights in the run's dtype.
    pub(crate) fn layer_bytes(&self) -> u64 {
        self.config.layer_weight_bytes(self.config.leading_layer(), self.dtype) as u64
    }

    /// Returns the bytes of one layer's K and V in the middle of the workload.
    pub(crate) fn kv_bytes(&self) -> u64 {
        let Extent { sequences, positions } = self.workload_extent();
        let position = self.config.kv_bytes_per_position(self.dtype) as u64;
        u64::from(sequences) * u64::from(positions) * position
    }

    /// Returns the operations of a layer whose cost depends on rows alone: no attention and no
    /// states.
    pub(crate) fn row_ops(ops: &[Op]) -> Vec<Op> {
        let is_of_rows = |op: &&Op| !op.is_attention() && !op.updates_state();
        ops.iter().filter(is_of_rows).copied().collect()
    }
}
