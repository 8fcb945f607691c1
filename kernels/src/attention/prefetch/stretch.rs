//! Memory that a task reads from one end to the other.

/// K and V of a task and of the one after it.
pub(super) const STRETCHES: usize = 4;
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
