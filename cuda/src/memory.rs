//! Device memory, and host memory that the device can access.

use std::ffi::c_void;
use std::ptr::NonNull;

use cudarc::driver::sys;

use crate::context::Context;
use crate::error::CudaError;

/// A device address. Never dereferenced on the host, meaningful in one process only.
pub type DeviceAddress = u64;

/// Identifies device memory so that another process can open it.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct IpcHandle(pub [u8; 64]);

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum ArenaOrigin {
    Allocated,
    Opened,
}

/// A contiguous range of device memory, allocated here or by another process.
#[derive(Debug)]
pub struct Arena {
    context: Context,
    base: DeviceAddress,
    size_bytes: u64,
    origin: ArenaOrigin,
}

/// Flag that CUDA requires for opening a handle: it may enable access between devices.
const IPC_LAZY_PEER_ACCESS: u32 = 1;

impl Arena {
    /// Allocates device memory.
    ///
    /// # Errors
    /// Returns [`CudaError::OutOfMemory`] if the device has too little free memory.
    pub fn allocate(context: &Context, size_bytes: u64) -> Result<Arena, CudaError> {
        let index = context.info().index;
        let (free_bytes, total_bytes) = context.memory_bytes()?;
        let full =
            CudaError::OutOfMemory { index, needed_bytes: size_bytes, free_bytes, total_bytes };
        if size_bytes > free_bytes {
            return Err(full);
        }
        let mut base = 0;
        // SAFETY: needed to allocate; the driver writes one address.
        let result = unsafe { (context.table().allocate)(&raw mut base, size_bytes as usize) };
        match context.table().check("cuMemAlloc", result) {
            Ok(()) => {}
            Err(error) if error.is_out_of_memory() => return Err(full),
            Err(error) => return Err(error),
        }
        Ok(Arena { context: context.clone(), base, size_bytes, origin: ArenaOrigin::Allocated })
    }

    /// Opens memory that another process exported; that process must keep it as long as this lives.
    ///
    /// # Errors
    /// Fails if the driver refuses, as in containers without a common process namespace.
    pub fn open(context: &Context, handle: IpcHandle, size_bytes: u64) -> Result<Arena, CudaError> {
        let mut base = 0;
        let handle = sys::CUipcMemHandle { reserved: handle.0.map(u8::cast_signed) };
        // SAFETY: needed to open the memory; the driver writes one address and copies the handle.
        let result =
            unsafe { (context.table().ipc_open)(&raw mut base, handle, IPC_LAZY_PEER_ACCESS) };
        context.table().check("cuIpcOpenMemHandle", result)?;
        Ok(Arena { context: context.clone(), base, size_bytes, origin: ArenaOrigin::Opened })
    }

    /// Returns a handle for another process on the same device.
    ///
    /// # Errors
    /// Fails if the driver refuses.
    pub fn export(&self) -> Result<IpcHandle, CudaError> {
        let mut handle = sys::CUipcMemHandle { reserved: [0; 64] };
        // SAFETY: needed to export the memory; the driver writes one handle.
        let result = unsafe { (self.context.table().ipc_export)(&raw mut handle, self.base) };
        self.context.table().check("cuIpcGetMemHandle", result)?;
        Ok(IpcHandle(handle.reserved.map(i8::cast_unsigned)))
    }

    /// Returns the first address.
    pub fn base(&self) -> DeviceAddress {
        self.base
    }

    /// Returns the size in bytes.
    pub fn size_bytes(&self) -> u64 {
        self.size_bytes
    }
}

impl Drop for Arena {
    fn drop(&mut self) {
        let table = self.context.table();
        // SAFETY: needed to release the memory; this value owns it, and every launcher of work on
        // it keeps it until the work is done. The driver refuses only after a failure that has been
        // reported.
        let _ = unsafe {
            match self.origin {
                ArenaOrigin::Allocated => (table.free)(self.base),
                ArenaOrigin::Opened => (table.ipc_close)(self.base),
            }
        };
    }
}

/// Pinned host memory allocated by the driver, initialised to zero.
#[derive(Debug)]
pub struct PinnedBuffer {
    context: Context,
    base: NonNull<u8>,
    size_bytes: usize,
}

// SAFETY: needed because of the raw pointer. The memory belongs to the process, and access through
// a shared buffer is by copies whose contract excludes races.
unsafe impl Send for PinnedBuffer {}
// SAFETY: as for `Send`.
unsafe impl Sync for PinnedBuffer {}

/// Valid in every context of the process.
const PORTABLE: u32 = 1;

impl PinnedBuffer {
    /// Allocates `size_bytes`, at least one page.
    ///
    /// # Errors
    /// Fails if the system or the driver cannot allocate or pin it.
    pub fn allocate(context: &Context, size_bytes: usize) -> Result<PinnedBuffer, CudaError> {
        let size_bytes = size_bytes.max(4096);
        let mut base = std::ptr::null_mut();
        // SAFETY: needed to allocate; the driver writes one pointer.
        let result =
            unsafe { (context.table().host_allocate)(&raw mut base, size_bytes, PORTABLE) };
        context.table().check("cuMemHostAlloc", result)?;
        let Some(base) = NonNull::new(base.cast::<u8>()) else {
            return Err(CudaError::of("cuMemHostAlloc", crate::error::code::OUT_OF_MEMORY, None));
        };
        // SAFETY: needed to begin with known bytes; the driver gave that many, to no other user.
        unsafe { base.write_bytes(0, size_bytes) };
        Ok(PinnedBuffer { context: context.clone(), base, size_bytes })
    }

    /// Returns the address of the first byte; aligned to a page.
    pub fn base(&self) -> *mut u8 {
        self.base.as_ptr()
    }

    /// Returns the size in bytes.
    pub fn size_bytes(&self) -> usize {
        self.size_bytes
    }
}

impl Drop for PinnedBuffer {
    fn drop(&mut self) {
        // SAFETY: needed to release the memory; this value owns it, and no copy outlives its
        // stream.
        let _ = unsafe { (self.context.table().host_free)(self.base.as_ptr().cast()) };
    }
}

/// Host memory that was mapped elsewhere and is pinned for as long as this lives.
#[derive(Debug)]
pub struct RegisteredHost {
    context: Context,
    base: *mut c_void,
}

// SAFETY: needed because of the raw pointer, which is only ever handed back to the driver.
unsafe impl Send for RegisteredHost {}
// SAFETY: as for `Send`.
unsafe impl Sync for RegisteredHost {}

const REGISTER_DEVICEMAP: u32 = 2;
const REGISTER_READ_ONLY: u32 = 8;

impl RegisteredHost {
    /// Pins `size_bytes` from `base`, a page boundary, and maps them for the device.
    ///
    /// # Errors
    /// Fails if the driver refuses: too little memory may be locked, or the range is pinned
    /// already.
    ///
    /// # Safety
    /// The range is mapped and stays so for as long as this lives.
    pub unsafe fn new(
        context: &Context,
        base: *mut u8,
        size_bytes: usize,
        writable: bool,
    ) -> Result<RegisteredHost, CudaError> {
        let base = base.cast::<c_void>();
        let register = |flags| {
            // SAFETY: needed to pin; the caller vouches for the range.
            let result = unsafe { (context.table().host_register)(base, size_bytes, flags) };
            context.table().check("cuMemHostRegister", result)
        };
        let flags = PORTABLE | REGISTER_DEVICEMAP;
        if writable {
            register(flags)?;
        } else {
            // Some systems cannot pin memory that is read-only and report that. A mapping that only
            // this process reads is then pinned, where possible, by the plain call.
            register(flags | REGISTER_READ_ONLY).or_else(|_| register(flags))?;
        }
        Ok(RegisteredHost { context: context.clone(), base })
    }

    /// Returns the device address of the first byte.
    ///
    /// # Errors
    /// Fails if the driver refuses.
    pub fn address(&self) -> Result<DeviceAddress, CudaError> {
        let mut address = 0;
        // SAFETY: needed to query the address; the driver writes one.
        let result = unsafe { (self.context.table().host_address)(&raw mut address, self.base, 0) };
        self.context.table().check("cuMemHostGetDevicePointer", result)?;
        Ok(address)
    }
}

impl Drop for RegisteredHost {
    fn drop(&mut self) {
        // SAFETY: needed to unpin what `new` pinned; the range is still mapped (contract of `new`).
        let _ = unsafe { (self.context.table().host_unregister)(self.base) };
    }
}
