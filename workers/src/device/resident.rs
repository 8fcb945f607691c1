//! Upload of the weights that stay on the device, through pinned staging buffers.

use cuda::{PinnedBuffer, Stream};

use super::open::Device;
use crate::load::{LoadError, ResidentTarget, StagingBuffer, UploadRange};

impl ResidentTarget for Device {
    fn staging(&self, size_bytes: usize) -> Result<Box<dyn StagingBuffer + '_>, LoadError> {
        self.context().make_current()?;
        let pinned = PinnedBuffer::allocate(self.context(), size_bytes)?;
        Ok(Box::new(DeviceStaging { pinned, stream: Stream::new(self.context())?, device: self }))
    }
}

/// Pinned memory of a thread, and the stream on which it is copied.
struct DeviceStaging<'a> {
    pinned: PinnedBuffer,
    stream: Stream,
    device: &'a Device,
}

impl StagingBuffer for DeviceStaging<'_> {
    fn bytes(&mut self) -> &mut [u8] {
        // SAFETY: needed to write what the device will read. The range is the buffer's, any bytes
        // are valid, each upload is complete when it returns, and this value is borrowed mutably,
        // so nothing else accesses the buffer.
        unsafe { std::slice::from_raw_parts_mut(self.pinned.base(), self.pinned.size_bytes()) }
    }

    fn upload(&mut self, to: UploadRange) -> Result<(), LoadError> {
        let UploadRange { buffer, offset_bytes, size_bytes } = to;
        assert!(size_bytes <= self.pinned.size_bytes(), "a piece fits its staging buffer");
        let to = self.device.buffer_addresses().address(buffer, offset_bytes, size_bytes);
        // SAFETY: needed to bring weights to the device. Both ranges were checked; no lane runs
        // before all weights are in place, and the buffer is not written before the stream is done,
        // below.
        unsafe { self.stream.copy_to_device(to, self.pinned.base(), size_bytes) }?;
        Ok(self.stream.synchronize()?)
    }
}
