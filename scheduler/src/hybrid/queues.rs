//! The sequences from which an iteration is selected, and its limits.

/// A sequence in a queue.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct QueuedSequence {
    pub id: u32,
    /// Number of known tokens of its prompt and its answer, to which its next row attends.
    pub tokens: u32,
    /// Number of layers of its newest token that were computed in earlier iterations; 0 if it is
    /// not deferred.
    pub layer: u32,
    /// Number of iterations since it was last computed.
    pub idle_iterations: u32,
}

/// All sequences by owner, each queue in the order of service.
#[derive(Debug, Clone, Copy)]
pub struct Queues<'a> {
    /// Prompts that are not computed; they have no owner.
    pub waiting: &'a [QueuedSequence],
    /// Sequences whose caches are in device memory.
    pub device: &'a [QueuedSequence],
    /// Sequences whose caches are in host memory.
    pub host: &'a [QueuedSequence],
    /// The host has not finished its attention for the deferred rows.
    pub is_late: bool,
}

/// Permission to defer rows ([`super::IterationShape::Async`]), and the layers at which they may
/// be.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum DeferredRows {
    /// No row starts to be deferred; deferred rows wait.
    Never,
    /// All deferred rows are at the same layer (APEX, section 6). They may leave it for the second
    /// of two batches, which then begins with that layer for them (algorithm 1). No program of a
    /// server does this.
    SameLayer,
    /// Each deferred row is at its own layer. They finish their tokens before an iteration of
    /// another shape follows.
    AnyLayer,
}

impl DeferredRows {
    /// All variants, in the order of their numbers.
    pub const ALL: [DeferredRows; 3] =
        [DeferredRows::Never, DeferredRows::SameLayer, DeferredRows::AnyLayer];
}

/// Limits of an iteration.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct IterationLimits {
    /// Maximum number of rows, decodes and prompts together; prompts are computed whole.
    pub rows: u32,
    /// Number of positions of a cache page.
    pub page_positions: u32,
    pub device_pages: u32,
    pub host_pages: u32,
    /// Number of iterations after which a waiting sequence prevents prompts from starting until it
    /// is computed.
    pub patience: u32,
    pub deferred_rows: DeferredRows,
}

/// [`IterationLimits::patience`] of a server.
const SERVER_PATIENCE: u32 = 1000;

impl IterationLimits {
    /// Returns the limits of a server in which a sequence has an extent of `context` positions in
    /// either memory, which counts as a page: `slots` of them on the host, and `device_slots` on
    /// the device.
    pub fn from_extents(rows: u32, context: u32, slots: u32, device_slots: u32) -> IterationLimits {
        IterationLimits {
            rows,
            page_positions: context,
            device_pages: device_slots,
            // As many pages are reserved for the device's sequences as it has.
            host_pages: slots + device_slots,
            patience: SERVER_PATIENCE,
            deferred_rows: DeferredRows::AnyLayer,
        }
    }

    /// Returns the number of pages that `positions` positions fill.
    pub const fn pages(&self, positions: u32) -> u32 {
        positions.div_ceil(self.page_positions)
    }

    /// Returns the number of pages that a sequence fills before its newest token is computed.
    pub const fn held_pages(&self, sequence: &QueuedSequence) -> u32 {
        // A deferred row has begun to write the newest position.
        self.pages(sequence.tokens - (sequence.layer == 0) as u32)
    }

    /// Returns the number of pages that a sequence fills once its newest token is computed.
    pub const fn needed_pages(&self, sequence: &QueuedSequence) -> u32 {
        self.pages(sequence.tokens)
    }
}
