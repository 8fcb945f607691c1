//! What one iteration computes.

use super::queues::{Limits, Queued, Queues};

/// In what order the two processors work.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub enum Shape {
    /// One batch, and all attention on the device.
    Gpu,
    /// Two batches in turn: while one is in its linears on the device, the host attends for the
    /// other (NEO's asymmetric pipelining).
    Pipelined,
    /// One batch for linears; the host attends beside all of the iteration, and its rows are a
    /// layer further in the next one (APEX's asynchronous overlap).
    Async,
}

impl Shape {
    pub const ALL: [Shape; 3] = [Shape::Gpu, Shape::Pipelined, Shape::Async];

    /// In tables and JSON.
    pub const fn name(self) -> &'static str {
        match self {
            Shape::Gpu => "gpu",
            Shape::Pipelined => "pipelined",
            Shape::Async => "async",
        }
    }
}

/// What becomes of a sequence whose caches the host has.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum Place {
    /// It is not computed.
    #[default]
    Waits,
    /// Its caches go to the device, which computes its newest token.
    MovesIn,
    /// The host attends for it, beside the linears of the second batch.
    First,
    /// The host attends for it, beside the linears of the first batch.
    Second,
    /// It gets a layer further.
    Lagging,
    /// It loses its caches, and waits again in front of all others: nobody could be computed, as
    /// the host has no room for a page more.
    Evicted,
}

/// What an iteration computes. Of each queue it takes a beginning, so it counts.
///
/// Who is with the host, first what moves out and then the host's queue, has a [`Place`] each.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Iteration {
    pub shape: Shape,
    /// So many of the device's sequences, its first, have their newest token computed.
    pub decodes: usize,
    /// So many behind them lose their caches and wait again, as prompts of all their tokens, in
    /// front of all others: neither device nor host has room.
    pub evicted: usize,
    /// The caches of so many behind these, its last, go to the host, in front of its queue.
    pub moves_out: usize,
    /// So many of the waiting prompts, the first, are computed and stay with the device.
    pub device_prefills: usize,
    /// So many behind them are computed, and their caches leave to the host layer by layer.
    pub host_prefills: usize,
}

impl Iteration {
    /// Nothing at all.
    pub const NONE: Iteration = Iteration {
        shape: Shape::Gpu,
        decodes: 0,
        evicted: 0,
        moves_out: 0,
        device_prefills: 0,
        host_prefills: 0,
    };

    /// The prompts that are computed.
    pub fn prefills<'a>(&self, queues: &Queues<'a>) -> &'a [Queued] {
        &queues.waiting[..self.device_prefills + self.host_prefills]
    }

    /// Those whose caches leave to the host.
    pub fn leaving<'a>(&self, queues: &Queues<'a>) -> &'a [Queued] {
        &self.prefills(queues)[self.device_prefills..]
    }

    /// Who is with the host, in the order of the places.
    pub fn with_host<'a>(&self, queues: &Queues<'a>) -> impl Iterator<Item = &'a Queued> + use<'a> {
        let moves_out = &queues.device[queues.device.len() - self.moves_out..];
        moves_out.iter().chain(queues.host)
    }

    /// How many are with the host.
    pub fn host_sequences(&self, queues: &Queues<'_>) -> usize {
        self.moves_out + queues.host.len()
    }

    /// Pages that the device's caches fill after the iteration.
    pub fn device_pages(&self, queues: &Queues<'_>, limits: &Limits, places: &[Place]) -> u64 {
        let moves_in = self.with_host(queues).zip(places);
        let moves_in = moves_in.filter(|(_, place)| **place == Place::MovesIn).map(|(one, _)| one);
        let stay = queues.device[..self.decodes].iter();
        let prefills = queues.waiting[..self.device_prefills].iter();
        stay.chain(moves_in).chain(prefills).map(|one| u64::from(limits.needed(one))).sum()
    }

    /// Pages that the host's caches fill after the iteration.
    pub fn host_pages(&self, queues: &Queues<'_>, limits: &Limits, places: &[Place]) -> u64 {
        let prefills = self.leaving(queues).iter().map(|one| u64::from(limits.needed(one)));
        let of_host = self.with_host(queues).zip(places).map(|(one, place)| match place {
            Place::MovesIn | Place::Evicted => 0,
            Place::Waits => u64::from(limits.held(one)),
            Place::First | Place::Second | Place::Lagging => u64::from(limits.needed(one)),
        });
        prefills.sum::<u64>() + of_host.sum::<u64>()
    }
}
