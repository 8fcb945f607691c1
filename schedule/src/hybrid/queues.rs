//! The sequences that an iteration is made of, and what bounds it.

/// A sequence in a queue.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Queued {
    pub id: u32,
    /// Tokens that are known, of its prompt and its answer: what its next row looks at.
    pub tokens: u32,
    /// How many layers of its newest token were begun in earlier iterations; 0: it does not lag.
    pub layer: u32,
    /// Iterations since it was last computed.
    pub waited: u32,
}

/// All sequences by who owns their caches, each in the order in which they are served.
#[derive(Debug, Clone, Copy)]
pub struct Queues<'a> {
    /// Prompts that are not computed; nobody owns anything of them.
    pub waiting: &'a [Queued],
    /// Whose caches lie in device memory.
    pub device: &'a [Queued],
    /// Whose caches lie in host memory.
    pub host: &'a [Queued],
    /// The host has not finished its attention of the sequences that lag.
    pub is_late: bool,
}

/// Whether rows may lag ([`super::Shape::Async`]), and at which layers.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Lags {
    /// None begins to; who does already waits.
    Never,
    /// All that lag are at the same layer (APEX, section 6). They may leave it for the second of
    /// two batches, which then begins with it for them (algorithm 1). No program of a server does
    /// so.
    Together,
    /// Each is at a layer of its own. They finish their tokens before another shape follows.
    Apart,
}

impl Lags {
    /// In the order of their numbers.
    pub const ALL: [Lags; 3] = [Lags::Never, Lags::Together, Lags::Apart];
}

/// What bounds an iteration.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Limits {
    /// Most rows, decodes and prompts together; prompts are computed whole.
    pub rows: u32,
    /// Positions of a page of cache.
    pub page_positions: u32,
    pub device_pages: u32,
    pub host_pages: u32,
    /// Once a sequence has waited for so many iterations, no prompt begins before it was computed.
    pub patience: u32,
    pub lags: Lags,
}

/// Of a server's [`Limits::patience`].
const SERVER_PATIENCE: u32 = 1000;

impl Limits {
    /// Of a server in which a sequence has an extent of `context` positions wherever it is, which
    /// counts as a page: `slots` of them on the host, and `device_slots` on the device.
    pub fn of_extents(rows: u32, context: u32, slots: u32, device_slots: u32) -> Limits {
        Limits {
            rows,
            page_positions: context,
            device_pages: device_slots,
            // As many are kept for what the device has as it has.
            host_pages: slots + device_slots,
            patience: SERVER_PATIENCE,
            lags: Lags::Apart,
        }
    }

    /// Pages that so many positions fill.
    pub const fn pages(&self, positions: u32) -> u32 {
        positions.div_ceil(self.page_positions)
    }

    /// Pages that a sequence fills before its newest token is computed.
    pub const fn held(&self, sequence: &Queued) -> u32 {
        // Whoever lags has begun to write the newest position.
        self.pages(sequence.tokens - (sequence.layer == 0) as u32)
    }

    /// Pages that a sequence fills once its newest token is computed.
    pub const fn needed(&self, sequence: &Queued) -> u32 {
        self.pages(sequence.tokens)
    }
}
