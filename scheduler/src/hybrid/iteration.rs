//! The content of one iteration.

use super::queues::{IterationLimits, QueuedSequence, Queues};

/// Order in which the two processors work.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub enum IterationShape {
    /// One batch, and all attention on the device.
    Gpu,
    /// Two alternating batches: while one is in its linears on the device, the host computes
    /// attention for the other (NEO's asymmetric pipelining).
    Pipelined,
    /// One batch for linears; the host computes attention concurrently with the whole iteration,
    /// and its rows are one layer further in the next iteration (APEX's asynchronous overlap).
    Async,
}

impl IterationShape {
    pub const ALL: [IterationShape; 3] =
        [IterationShape::Gpu, IterationShape::Pipelined, IterationShape::Async];

    /// Returns the name in tables and JSON.
    pub const fn name(self) -> &'static str {
        match self {
            IterationShape::Gpu => "gpu",
            IterationShape::Pipelined => "pipelined",
            IterationShape::Async => "async",
        }
    }
}

/// Decision on a sequence whose caches are on the host.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum HostDecision {
    /// It is not computed.
    #[default]
    Waits,
    /// Its caches migrate to the device, which computes its newest token.
    MovesIn,
    /// The host computes its attention, concurrently with the linears of the second batch.
    FirstBatch,
    /// The host computes its attention, concurrently with the linears of the first batch.
    SecondBatch,
    /// It advances by one layer.
    Deferred,
    /// It loses its caches and waits again, before all others: no sequence could be computed, as
    /// the host has no free page.
    Evicted,
}

/// The content of an iteration: numbers of sequences at the front of each queue.
///
/// Each sequence with the host, first those that migrate there and then the host's queue, has a
/// [`HostDecision`].
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Iteration {
    pub shape: IterationShape,
    /// Number of the device's sequences, from the first, whose newest token is computed.
    pub decodes: usize,
    /// Number of the following sequences that lose their caches and wait again, before all others,
    /// as prompts of all their tokens: neither device nor host has capacity.
    pub evicted: usize,
    /// Number of the following sequences, the last, whose caches migrate to the host, to the front
    /// of its queue.
    pub moves_out: usize,
    /// Number of waiting prompts, from the first, that are computed and stay with the device.
    pub device_prefills: usize,
    /// Number of the following prompts that are computed, and whose caches go to the host layer by
    /// layer.
    pub host_prefills: usize,
}

impl Iteration {
    /// An empty iteration.
    pub const NONE: Iteration = Iteration {
        shape: IterationShape::Gpu,
        decodes: 0,
        evicted: 0,
        moves_out: 0,
        device_prefills: 0,
        host_prefills: 0,
    };

    /// Returns the prompts that are computed.
    pub fn prefills<'a>(&self, queues: &Queues<'a>) -> &'a [QueuedSequence] {
        &queues.waiting[..self.device_prefills + self.host_prefills]
    }

    /// Returns the prompts whose caches go to the host.
    pub fn prefills_to_host<'a>(&self, queues: &Queues<'a>) -> &'a [QueuedSequence] {
        &self.prefills(queues)[self.device_prefills..]
    }

    /// Returns the sequences with the host, in the order of the places.
    pub fn with_host<'a>(
        &self,
        queues: &Queues<'a>,
    ) -> impl Iterator<Item = &'a QueuedSequence> + use<'a> {
        let moves_out = &queues.device[queues.device.len() - self.moves_out..];
        moves_out.iter().chain(queues.host)
    }

    /// Returns the number of sequences with the host.
    pub fn host_sequences(&self, queues: &Queues<'_>) -> usize {
        self.moves_out + queues.host.len()
    }

    /// Returns the number of pages that the device's caches fill after the iteration.
    pub fn device_pages(
        &self,
        queues: &Queues<'_>,
        limits: &IterationLimits,
        decisions: &[HostDecision],
    ) -> u64 {
        let moves_in = self.with_host(queues).zip(decisions);
        let moves_in = moves_in
            .filter(|(_, decision)| **decision == HostDecision::MovesIn)
            .map(|(one, _)| one);
        let stay = queues.device[..self.decodes].iter();
        let prefills = queues.waiting[..self.device_prefills].iter();
        stay.chain(moves_in).chain(prefills).map(|one| u64::from(limits.needed_pages(one))).sum()
    }

    /// Returns the number of pages that the host's caches fill after the iteration.
    pub fn host_pages(
        &self,
        queues: &Queues<'_>,
        limits: &IterationLimits,
        decisions: &[HostDecision],
    ) -> u64 {
        let prefills =
            self.prefills_to_host(queues).iter().map(|one| u64::from(limits.needed_pages(one)));
        let of_host = self.with_host(queues).zip(decisions).map(|(one, decision)| match decision {
            HostDecision::MovesIn | HostDecision::Evicted => 0,
            HostDecision::Waits => u64::from(limits.held_pages(one)),
            HostDecision::FirstBatch | HostDecision::SecondBatch | HostDecision::Deferred => {
                u64::from(limits.needed_pages(one))
            }
        });
        prefills.sum::<u64>() + of_host.sum::<u64>()
    }
}
