//! Memory that a task reads from one end to the other.

/// Runs of a task's K, and of its V behind them.
pub(in crate::attention) const OF_TASK: usize = 4;
/// Those of a task and of the one after it.
pub(super) const STRETCHES: usize = 2 * OF_TASK;
pub(in crate::attention) const LINE_BYTES: usize = 64;

#[derive(Debug, Clone, Copy)]
pub(in crate::attention) struct Stretch {
    pub from: *const u8,
    pub bytes: usize,
}

impl Stretch {
    pub(in crate::attention) const NONE: Stretch = Stretch { from: std::ptr::null(), bytes: 0 };

    /// The first of these bytes, at most a window of them.
    pub(super) fn window(self, bytes: usize) -> Stretch {
        Stretch { bytes: self.bytes.min(bytes), ..self }
    }
}

/// All that is prefetched during a task, in order.
pub(super) fn in_order(
    [a, b, c, d]: [Stretch; OF_TASK],
    [e, f, g, h]: [Stretch; OF_TASK],
) -> [Stretch; STRETCHES] {
    [a, b, c, d, e, f, g, h]
}
