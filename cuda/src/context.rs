//! A device, and this process's context on it.

use std::ffi::{c_char, c_int};
use std::sync::Arc;

use cudarc::driver::sys;

use crate::driver::{Driver, Table};
use crate::error::CudaError;

/// Numbers of device attributes, as defined by the driver's interface.
mod attribute {
    pub(super) const MULTIPROCESSORS: u32 = 16;
    pub(super) const CAPABILITY_MAJOR: u32 = 75;
    pub(super) const CAPABILITY_MINOR: u32 = 76;
    pub(super) const CAN_FLUSH_REMOTE_WRITES: u32 = 98;
    pub(super) const GPU_DIRECT: u32 = 116;
    pub(super) const FLUSH_WRITES_OPTIONS: u32 = 117;
    pub(super) const WRITES_ORDERING: u32 = 118;
}

/// Minimum compute capability: the first with bf16 matrix instructions and asynchronous copies.
const MIN_CAPABILITY: (u32, u32) = (8, 0);

/// `CU_FLUSH_GPU_DIRECT_RDMA_WRITES_OPTION_HOST`
const FLUSH_BY_HOST: u32 = 1;
/// `CU_GPU_DIRECT_RDMA_WRITES_ORDERING_ALL_DEVICES`: writes are visible as soon as they arrive.
const ORDERED_FOR_ALL: u32 = 200;
/// `CU_FLUSH_GPU_DIRECT_RDMA_WRITES_TARGET_CURRENT_CTX`
const FLUSH_CURRENT: u32 = 0;
/// `CU_FLUSH_GPU_DIRECT_RDMA_WRITES_TO_ALL_DEVICES`
const FLUSH_FOR_ALL: u32 = 200;

/// Ways to make the device see what other devices, such as drives, have written to its memory.
#[derive(Debug, Clone, Copy, Default)]
struct RemoteWrites {
    /// A stream's wait can do it.
    by_streams: bool,
    /// A call can do it, and is needed.
    by_host: bool,
}

/// Properties of a device.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct DeviceInfo {
    /// Number of the device, as in `--device cuda:N`.
    pub index: u32,
    pub name: String,
    /// Compute capability, major and minor.
    pub capability: (u32, u32),
    /// Total memory of the device.
    pub total_bytes: u64,
    /// Domain, bus, device and function, in the notation of `lspci`.
    pub bus: String,
    /// `GPU-` and 32 hexadecimal digits in groups, in the notation of `nvidia-smi`.
    pub uuid: String,
    pub multiprocessors: u32,
    /// True if other devices may read and write its memory directly.
    pub gpu_direct: bool,
}

impl Driver {
    /// Returns the properties of a device without creating a context on it.
    ///
    /// # Errors
    /// Fails if there is no device `index`, or if the driver refuses.
    pub fn device(&self, index: u32) -> Result<DeviceInfo, CudaError> {
        let device = self.handle(index)?;
        let mut total_bytes = 0;
        // SAFETY: needed to query the memory's size; the driver writes one usize.
        let result = unsafe { (self.table.device_memory)(&raw mut total_bytes, device) };
        self.table.check("cuDeviceTotalMem", result)?;
        let query_attribute = |attribute| self.attribute(device, attribute);
        Ok(DeviceInfo {
            index,
            name: self.text("cuDeviceGetName", self.table.device_name, device)?,
            capability: (
                query_attribute(attribute::CAPABILITY_MAJOR)?,
                query_attribute(attribute::CAPABILITY_MINOR)?,
            ),
            total_bytes: total_bytes as u64,
            bus: self.text("cuDeviceGetPCIBusId", self.table.device_bus, device)?,
            uuid: self.uuid(device)?,
            multiprocessors: query_attribute(attribute::MULTIPROCESSORS)?,
            gpu_direct: query_attribute(attribute::GPU_DIRECT)? != 0,
        })
    }

    fn uuid(&self, device: c_int) -> Result<String, CudaError> {
        let mut bytes = [0u8; 16];
        // SAFETY: needed for the query; the driver writes 16 bytes.
        let result = unsafe { (self.table.device_uuid)(bytes.as_mut_ptr(), device) };
        self.table.check("cuDeviceGetUuid", result)?;
        let hex = |range: std::ops::Range<usize>| -> String {
            bytes[range].iter().map(|byte| format!("{byte:02x}")).collect()
        };
        let groups = [hex(0..4), hex(4..6), hex(6..8), hex(8..10), hex(10..16)];
        Ok(format!("GPU-{}", groups.join("-")))
    }

    fn handle(&self, index: u32) -> Result<c_int, CudaError> {
        if index >= self.device_count() {
            return Err(CudaError::WrongIndex { index, count: self.device_count() });
        }
        let mut device = 0;
        // SAFETY: needed to get a device; the driver writes one integer.
        let result = unsafe { (self.table.device)(&raw mut device, index.cast_signed()) };
        self.table.check("cuDeviceGet", result)?;
        Ok(device)
    }

    fn attribute(&self, device: c_int, attribute: u32) -> Result<u32, CudaError> {
        let mut value = 0;
        // SAFETY: needed to query an attribute; the driver writes one integer.
        let result = unsafe { (self.table.device_attribute)(&raw mut value, attribute, device) };
        self.table.check("cuDeviceGetAttribute", result)?;
        Ok(value.unsigned_abs())
    }

    fn text(
        &self,
        call: &'static str,
        function: unsafe extern "C" fn(*mut c_char, c_int, c_int) -> u32,
        device: c_int,
    ) -> Result<String, CudaError> {
        let mut bytes = [0u8; 256];
        // SAFETY: needed to query a name; the driver writes at most the given number of bytes,
        // which is one fewer than there are, so that a zero follows in any case.
        let result = unsafe { function(bytes.as_mut_ptr().cast(), 255, device) };
        self.table.check(call, result)?;
        let end = bytes.iter().position(|byte| *byte == 0).unwrap_or(bytes.len());
        Ok(String::from_utf8_lossy(&bytes[..end]).into_owned())
    }
}

#[derive(Debug)]
struct PrimaryContext {
    table: &'static Table,
    device: c_int,
    context: sys::CUcontext,
    info: DeviceInfo,
    remote_writes: RemoteWrites,
}

// SAFETY: needed because the context is a pointer. The driver's functions may be called from any
// thread, and a context may be current on several at once.
unsafe impl Send for PrimaryContext {}
// SAFETY: as for `Send`; nothing of it changes after it was created.
unsafe impl Sync for PrimaryContext {}

impl Drop for PrimaryContext {
    fn drop(&mut self) {
        // SAFETY: needed to release the context. It was retained once, and every user of it holds
        // an `Arc` of this. A failure leaves it to the end of the process.
        let _ = unsafe { (self.table.context_release)(self.device) };
    }
}

/// This process's context on a device. Cheap to clone; dropping the last clone releases it.
#[derive(Debug, Clone)]
pub struct Context {
    retained: Arc<PrimaryContext>,
}

impl Context {
    /// Checks that the kernels can run on a device.
    ///
    /// # Errors
    /// Returns [`CudaError::OldDevice`] otherwise.
    pub fn supports(info: &DeviceInfo) -> Result<(), CudaError> {
        if info.capability >= MIN_CAPABILITY {
            return Ok(());
        }
        let ((major, minor), name) = (info.capability, info.name.clone());
        Err(CudaError::OldDevice { index: info.index, name, major, minor })
    }

    /// Opens device `index` and makes its context current on the calling thread.
    ///
    /// # Errors
    /// Fails if there is no such device, if it is too old, or if the driver refuses.
    pub fn open(driver: &Driver, index: u32) -> Result<Context, CudaError> {
        let info = driver.device(index)?;
        Context::supports(&info)?;
        let (table, device) = (driver.table, driver.handle(index)?);
        let query_attribute = |attribute| driver.attribute(device, attribute);
        let is_ordered = query_attribute(attribute::WRITES_ORDERING)? >= ORDERED_FOR_ALL;
        let by_host = query_attribute(attribute::FLUSH_WRITES_OPTIONS)? & FLUSH_BY_HOST != 0;
        let remote_writes = RemoteWrites {
            by_streams: query_attribute(attribute::CAN_FLUSH_REMOTE_WRITES)? != 0,
            by_host: by_host && !is_ordered,
        };
        let mut context = std::ptr::null_mut();
        // SAFETY: needed to create a context; the driver writes one pointer.
        let result = unsafe { (table.context_retain)(&raw mut context, device) };
        table.check("cuDevicePrimaryCtxRetain", result)?;
        let retained = PrimaryContext { table, device, context, info, remote_writes };
        let context = Context { retained: Arc::new(retained) };
        context.make_current()?;
        Ok(context)
    }

    /// Makes the context current on the calling thread. Every thread does this once before it uses
    /// anything on the device.
    ///
    /// # Errors
    /// Fails if the driver refuses.
    pub fn make_current(&self) -> Result<(), CudaError> {
        // SAFETY: needed to bind the thread. The context is retained by `self`.
        let result = unsafe { (self.table().context_set)(self.retained.context) };
        self.table().check("cuCtxSetCurrent", result)
    }

    /// Makes what other devices have written to the device's memory visible to it, if that takes a
    /// call. The context must be current on the calling thread.
    ///
    /// # Errors
    /// Fails if the driver refuses.
    pub fn flush_remote_writes(&self) -> Result<(), CudaError> {
        let Some(flush) = self.table().flush_writes.filter(|_| self.retained.remote_writes.by_host)
        else {
            return Ok(());
        };
        // SAFETY: needed to flush; both values are defined by the driver's interface.
        let result = unsafe { flush(FLUSH_CURRENT, FLUSH_FOR_ALL) };
        self.table().check("cuFlushGPUDirectRDMAWrites", result)
    }

    /// Returns true if a stream's wait can do the same.
    pub(crate) fn streams_flush_remote_writes(&self) -> bool {
        self.retained.remote_writes.by_streams
    }

    /// Returns the properties of the device.
    pub fn info(&self) -> &DeviceInfo {
        &self.retained.info
    }

    /// Returns free and total bytes of device memory.
    ///
    /// # Errors
    /// Fails if the driver refuses.
    pub fn memory_bytes(&self) -> Result<(u64, u64), CudaError> {
        let (mut free, mut total) = (0, 0);
        // SAFETY: needed to query sizes; the driver writes two usize.
        let result = unsafe { (self.table().memory_info)(&raw mut free, &raw mut total) };
        self.table().check("cuMemGetInfo", result)?;
        Ok((free as u64, total as u64))
    }

    pub(crate) fn table(&self) -> &'static Table {
        self.retained.table
    }
}
