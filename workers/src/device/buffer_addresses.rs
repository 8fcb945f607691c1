//! Locations of the plan's buffers in the device arena.

use cuda::DeviceAddress;
use program::ir::BufferId;
use program::plan::Plan;

/// Addresses of the device buffers in one process.
#[derive(Debug)]
pub(super) struct BufferAddresses {
    base: DeviceAddress,
    /// Offset and size in bytes of each buffer of the plan; `None` for those on the host.
    buffers: Vec<Option<(u64, u64)>>,
}

impl BufferAddresses {
    /// Returns the addresses of the plan's buffers in an arena of `size_bytes` at `base`.
    ///
    /// # Panics
    /// Panics if the arena is too small for the plan.
    pub(super) fn new(plan: &Plan, base: DeviceAddress, size_bytes: u64) -> BufferAddresses {
        let arena = plan.device_work().buffers_bytes;
        assert!(arena <= size_bytes, "the arena holds the plan");
        let place = |buffer: &program::plan::Buffer| {
            (plan.topology.is_vram(buffer.segment.memory))
                .then_some((buffer.offset_bytes, buffer.size_bytes))
        };
        BufferAddresses { base, buffers: plan.buffers.iter().map(place).collect() }
    }

    /// Returns true if a buffer is on the device.
    pub(super) fn contains(&self, id: BufferId) -> bool {
        self.buffers[id.0 as usize].is_some()
    }

    /// Returns the size of a buffer, in bytes.
    pub(super) fn size_bytes(&self, id: BufferId) -> usize {
        self.place(id).1 as usize
    }

    /// Returns the address of a range of a buffer.
    ///
    /// # Panics
    /// Panics if the range exceeds the buffer or the buffer is on the host, as in a plan that the
    /// validator would have refused.
    pub(super) fn address(
        &self,
        id: BufferId,
        offset_bytes: usize,
        size_bytes: usize,
    ) -> DeviceAddress {
        let (first, size) = self.place(id);
        assert!(
            offset_bytes.checked_add(size_bytes).is_some_and(|end| end as u64 <= size),
            "{size_bytes} bytes at {offset_bytes} leave buffer {} of {size} bytes",
            id.0
        );
        self.base + first + offset_bytes as u64
    }

    fn place(&self, id: BufferId) -> (u64, u64) {
        let Some(place) = self.buffers[id.0 as usize] else {
            panic!("buffer {} does not lie on the device", id.0)
        };
        place
    }
}
