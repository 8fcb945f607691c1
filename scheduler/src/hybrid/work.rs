//! Work of an iteration, and the time that the two processors take for it.

use super::batches::AttentionLoad;
use super::costs::LayerCosts;
use super::iteration::{HostDecision, Iteration, IterationShape};
use super::queues::{DeferredRows, Queues};

/// The work of an iteration, per layer unless stated otherwise.
#[derive(Debug, Clone, Copy, PartialEq, Default)]
pub struct IterationWork {
    /// Rows of the first batch and of the second, without deferred rows.
    pub rows: [u32; 2],
    /// Attention of all prompts on the device.
    pub prefill_attention_ms: f64,
    /// Positions to which the device's decode rows attend.
    pub device_positions: u64,
    /// Rows for which the host computes attention, by batch; without [`IterationWork::partial`].
    pub host: [AttentionLoad; 2],
    /// Rows of the second batch whose first layers were computed in earlier iterations.
    pub partial: AttentionLoad,
    /// Number of those layers.
    pub partial_layer: u32,
    /// Deferred rows, which advance by a layer.
    pub deferred: AttentionLoad,
    /// Deferred rows that have completed attention of all layers and are sampled.
    pub deferred_finished: AttentionLoad,
    /// Number of distinct layers at which they are; after the last one counts as one.
    pub deferred_layers: u32,
    /// The iteration lasts until the host has computed attention for all of them.
    pub waits_for_deferred: bool,
    /// Cached positions that migrate to the host with prompts.
    pub leaving_positions: u64,
    /// Cached positions that migrate before the first layer.
    pub moved_in_positions: u64,
    pub moved_out_positions: u64,
    /// Number of sequences of which a token is computed completely, or its remaining layers.
    pub tokens: u32,
    /// Number of sampled rows: these, and deferred rows that have completed their last layer.
    pub samples: u32,
}

impl IterationWork {
    /// Computes the work of an iteration. With deferred rows at separate layers it waits for the
    /// host.
    pub fn compute(
        iteration: &Iteration,
        queues: &Queues<'_>,
        deferred_rows: DeferredRows,
        decisions: &[HostDecision],
        costs: &impl LayerCosts,
    ) -> IterationWork {
        let waits_for_deferred = deferred_rows == DeferredRows::AnyLayer;
        let mut work = IterationWork { waits_for_deferred, ..IterationWork::default() };
        for one in &queues.device[..iteration.decodes] {
            work.decode_on_device(one.tokens);
        }
        let moves_out = &queues.device[queues.device.len() - iteration.moves_out..];
        work.moved_out_positions = moves_out.iter().map(|one| u64::from(one.tokens - 1)).sum();
        let mut layer_before = None;
        for (index, (one, decision)) in iteration.with_host(queues).zip(decisions).enumerate() {
            match decision {
                HostDecision::Waits | HostDecision::Evicted => {}
                HostDecision::MovesIn => {
                    work.moved_in_positions += u64::from(one.tokens - 1);
                    work.decode_on_device(one.tokens);
                }
                HostDecision::FirstBatch => work.decode_on_host(0, one.tokens),
                HostDecision::SecondBatch if one.layer > 0 => {
                    work.partial = work.partial.with(one.tokens);
                    work.partial_layer = one.layer - 1;
                    work.tokens += 1;
                }
                HostDecision::SecondBatch => work.decode_on_host(1, one.tokens),
                HostDecision::Deferred => {
                    work.deferred = work.deferred.with(one.tokens);
                    if one.layer == costs.layers() {
                        work.deferred_finished = work.deferred_finished.with(one.tokens);
                    }
                    let mut before = iteration.with_host(queues).zip(decisions).take(index);
                    let is_known = layer_before == Some(one.layer)
                        || before.any(|(other, place)| {
                            *place == HostDecision::Deferred && other.layer == one.layer
                        });
                    work.deferred_layers += u32::from(!is_known);
                    layer_before = Some(one.layer);
                }
            }
        }
        for one in iteration.prefills(queues) {
            work.rows[0] += one.tokens;
            work.prefill_attention_ms += costs.prefill_attention_ms(one.tokens);
            work.tokens += 1;
        }
        let prefills_to_host = iteration.prefills_to_host(queues);
        work.leaving_positions = prefills_to_host.iter().map(|one| u64::from(one.tokens)).sum();
        work.samples = work.tokens + work.deferred_finished.sequences;
        work
    }

    fn decode_on_device(&mut self, tokens: u32) {
        self.rows[0] += 1;
        self.device_positions += u64::from(tokens);
        self.tokens += 1;
    }

    fn decode_on_host(&mut self, batch: usize, tokens: u32) {
        self.rows[batch] += 1;
        self.host[batch] = self.host[batch].with(tokens);
        self.tokens += 1;
    }
}

/// Duration of an iteration, and the busy time of each part of the machine in it, in ms.
#[derive(Debug, Clone, Copy, PartialEq, Default)]
pub struct IterationTimes {
    pub total_ms: f64,
    pub device_ms: f64,
    /// Attention on the host; for deferred rows it may end after an iteration that does not wait
    /// for it.
    pub host_ms: f64,
    pub to_device_ms: f64,
    pub to_host_ms: f64,
}

impl IterationTimes {
    /// Computes the duration of an iteration's work: the sum of its layers, each as long as its
    /// longest part.
    pub fn compute(
        work: &IterationWork,
        shape: IterationShape,
        costs: &impl LayerCosts,
    ) -> IterationTimes {
        let layers = f64::from(costs.layers());
        let mut times = match shape {
            IterationShape::Gpu => {
                layer_times(work, costs, [AttentionLoad::default(); 2]).scaled(layers)
            }
            IterationShape::Pipelined => {
                let [first, second] = work.host;
                let partial = work.partial;
                let with_partial = AttentionLoad {
                    sequences: second.sequences + partial.sequences,
                    positions: second.positions + partial.positions,
                };
                let before = f64::from(work.partial_layer);
                let early = layer_times(work, costs, [first, second]).scaled(before);
                let with = IterationWork {
                    rows: [work.rows[0], work.rows[1] + partial.sequences],
                    ..*work
                };
                early.plus(layer_times(&with, costs, [first, with_partial]).scaled(layers - before))
            }
            IterationShape::Async => {
                let plain = layer_times(work, costs, [AttentionLoad::default(); 2]).scaled(layers);
                let all = plain.plus(deferred_times(work, costs));
                if work.waits_for_deferred { all.extended_to_host(work, layers) } else { all }
            }
        };
        let link = costs.link();
        let moved_in_ms = work.moved_in_positions as f64 * link.position_in_ms * layers;
        let moved_out_ms = work.moved_out_positions as f64 * link.position_out_ms * layers;
        let rows = work.rows[0] + work.rows[1] + work.partial.sequences;
        let ends_ms = costs.ends_ms(rows, work.samples);
        times.to_device_ms += moved_in_ms;
        times.to_host_ms += moved_out_ms;
        times.device_ms += ends_ms;
        times.total_ms += ends_ms + moved_in_ms + moved_out_ms;
        times
    }

    fn scaled(self, layers: f64) -> IterationTimes {
        IterationTimes {
            total_ms: self.total_ms * layers,
            device_ms: self.device_ms * layers,
            host_ms: self.host_ms * layers,
            to_device_ms: self.to_device_ms * layers,
            to_host_ms: self.to_host_ms * layers,
        }
    }

    /// Extends the iteration until the host has computed attention for all deferred rows. If the
    /// device has no other rows, its first layer waits for the first attention, and its last layer
    /// follows the last.
    fn extended_to_host(self, work: &IterationWork, layers: f64) -> IterationTimes {
        let (first_ms, last_ms) = match work.rows[0] {
            0 => {
                let waits = f64::from(work.deferred_layers.max(1));
                (self.host_ms / waits, self.total_ms / layers)
            }
            _ => (0.0, 0.0),
        };
        let total_ms = (first_ms + self.total_ms).max(self.host_ms + last_ms);
        IterationTimes { total_ms, ..self }
    }

    /// Returns the sum of two consecutive durations.
    #[must_use]
    pub fn plus(self, other: IterationTimes) -> IterationTimes {
        IterationTimes {
            total_ms: self.total_ms + other.total_ms,
            device_ms: self.device_ms + other.device_ms,
            host_ms: self.host_ms + other.host_ms,
            to_device_ms: self.to_device_ms + other.to_device_ms,
            to_host_ms: self.to_host_ms + other.to_host_ms,
        }
    }
}

/// Computes a layer in two stages: concurrently with the first batch's linears the host attends for
/// the second, and concurrently with the second's, and all of the device's attention, for the
/// first. Query, key and value of the host's rows leave at the beginning of a stage, and the output
/// of attention is back at its end; streamed weights, and migrating caches, have the whole layer.
/// All of this passes host memory once.
fn layer_times(
    work: &IterationWork,
    costs: &impl LayerCosts,
    host: [AttentionLoad; 2],
) -> IterationTimes {
    let link = costs.link();
    let stage_ms = |device_ms: f64, load: AttentionLoad| {
        if load.sequences == 0 {
            return device_ms;
        }
        let rows = f64::from(load.sequences);
        let rows_ms = rows * (link.row_out_ms + link.row_back_ms);
        device_ms.max(load.ms(costs) + costs.launch_ms() + rows_ms)
    };
    let attention_ms = work.prefill_attention_ms + costs.device_decode_ms(work.device_positions);
    let first_ms = costs.linear_ms(work.rows[0]);
    let second_ms = costs.linear_ms(work.rows[1]) + attention_ms;
    let stages_ms = stage_ms(first_ms, host[1]) + stage_ms(second_ms, host[0]);
    let rows = f64::from(host[0].sequences + host[1].sequences);
    let to_device_ms = link.weights_ms + rows * link.row_back_ms;
    let leaving_ms = work.leaving_positions as f64 * link.position_out_ms;
    let to_host_ms = leaving_ms + rows * link.row_out_ms;
    let host_ms = host[0].ms(costs) + host[1].ms(costs);
    let memory_ms = link.memory.min_ms(host_ms, to_device_ms, to_host_ms);
    IterationTimes {
        total_ms: stages_ms.max(to_device_ms).max(to_host_ms).max(memory_ms),
        device_ms: first_ms + second_ms,
        host_ms,
        to_device_ms,
        to_host_ms,
    }
}

/// Computes the additional work of deferred rows: linears of the layers that they are in, as if the
/// rows were distributed evenly, and all of their attention, concurrently with which the device
/// continues.
fn deferred_times(work: &IterationWork, costs: &impl LayerCosts) -> IterationTimes {
    if work.deferred.sequences == 0 {
        return IterationTimes::default();
    }
    let link = costs.link();
    let rows = f64::from(work.deferred.sequences);
    let with =
        costs.linear_ms(work.rows[0] + work.deferred.sequences.div_ceil(work.deferred_layers));
    let more_ms = f64::from(work.deferred_layers) * (with - costs.linear_ms(work.rows[0]));
    let attended = AttentionLoad {
        sequences: work.deferred.sequences - work.deferred_finished.sequences,
        positions: work.deferred.positions - work.deferred_finished.positions,
    };
    let launches = work.deferred_layers - u32::from(work.deferred_finished.sequences > 0);
    IterationTimes {
        total_ms: more_ms + f64::from(costs.layers()) * costs.deferred_rows_ms(),
        device_ms: more_ms,
        host_ms: attended.ms(costs) + f64::from(launches) * costs.launch_ms(),
        to_device_ms: rows * link.row_back_ms,
        to_host_ms: rows * link.row_out_ms,
    }
}
