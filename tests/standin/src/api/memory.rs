//! Allocations, handles and host memory.

use std::ffi::{c_uint, c_void};

use super::{put, result};
use crate::code;
use crate::memory::RangeKind;
use crate::settings::settings;
use crate::state::enter_device;

#[unsafe(no_mangle)]
unsafe extern "C" fn cuMemAlloc_v2(address: *mut u64, size_bytes: usize) -> u32 {
    result(enter_device("cuMemAlloc").and_then(|mut state| {
        if size_bytes == 0 {
            return Err(code::INVALID_VALUE);
        }
        if size_bytes
            > settings()
                .memory_bytes
                .saturating_sub(settings().other_programs_bytes + state.ranges.device_bytes())
        {
            return Err(code::OUT_OF_MEMORY);
        }
        let base =
            state.ranges.allocate(RangeKind::Device, size_bytes).ok_or(code::OUT_OF_MEMORY)?;
        // SAFETY: the caller's pointer, as documented.
        unsafe { put(address, base as u64) }
    }))
}

/// Releases a range of the given kind.
fn release(name: &'static str, kind: RangeKind, address: usize) -> u32 {
    result(enter_device(name).and_then(|mut state| {
        if state.ranges.release(kind, address) { Ok(()) } else { Err(code::INVALID_VALUE) }
    }))
}

#[unsafe(no_mangle)]
unsafe extern "C" fn cuMemFree_v2(address: u64) -> u32 {
    release("cuMemFree", RangeKind::Device, address as usize)
}

#[unsafe(no_mangle)]
unsafe extern "C" fn cuIpcGetMemHandle(handle: *mut [u8; 64], address: u64) -> u32 {
    result(enter_device("cuIpcGetMemHandle").and_then(|state| {
        let found = state.ranges.export(address as usize).ok_or(code::INVALID_VALUE)?;
        // SAFETY: the caller's pointer, as documented.
        unsafe { put(handle, found) }
    }))
}

/// A handle passed by value, like a structure of 64 bytes in C.
#[repr(C)]
#[derive(Clone, Copy)]
struct Handle {
    bytes: [u8; 64],
}

#[unsafe(no_mangle)]
unsafe extern "C" fn cuIpcOpenMemHandle_v2(
    address: *mut u64,
    handle: Handle,
    _flags: c_uint,
) -> u32 {
    result(enter_device("cuIpcOpenMemHandle").and_then(|mut state| {
        let base = state.ranges.open(&handle.bytes).ok_or(code::INVALID_CONTEXT)?;
        // SAFETY: the caller's pointer, as documented.
        unsafe { put(address, base as u64) }
    }))
}

#[unsafe(no_mangle)]
unsafe extern "C" fn cuIpcCloseMemHandle(address: u64) -> u32 {
    release("cuIpcCloseMemHandle", RangeKind::Opened, address as usize)
}

#[unsafe(no_mangle)]
unsafe extern "C" fn cuMemHostAlloc(
    address: *mut *mut c_void,
    size_bytes: usize,
    _flags: c_uint,
) -> u32 {
    result(enter_device("cuMemHostAlloc").and_then(|mut state| {
        let base =
            state.ranges.allocate(RangeKind::Pinned, size_bytes).ok_or(code::OUT_OF_MEMORY)?;
        // SAFETY: the caller's pointer, as documented.
        unsafe { put(address, base as *mut c_void) }
    }))
}

#[unsafe(no_mangle)]
unsafe extern "C" fn cuMemFreeHost(address: *mut c_void) -> u32 {
    release("cuMemFreeHost", RangeKind::Pinned, address as usize)
}

#[unsafe(no_mangle)]
unsafe extern "C" fn cuMemHostRegister_v2(
    address: *mut c_void,
    size_bytes: usize,
    _flags: c_uint,
) -> u32 {
    result(enter_device("cuMemHostRegister").and_then(|mut state| {
        if address.is_null() || size_bytes == 0 {
            return Err(code::INVALID_VALUE);
        }
        match state.ranges.register(address as usize, size_bytes) {
            true => Ok(()),
            false => Err(code::ALREADY_REGISTERED),
        }
    }))
}

#[unsafe(no_mangle)]
unsafe extern "C" fn cuMemHostUnregister(address: *mut c_void) -> u32 {
    release("cuMemHostUnregister", RangeKind::Registered, address as usize)
}

#[unsafe(no_mangle)]
unsafe extern "C" fn cuMemHostGetDevicePointer_v2(
    device: *mut u64,
    address: *mut c_void,
    _flags: c_uint,
) -> u32 {
    result(enter_device("cuMemHostGetDevicePointer").and_then(|state| {
        match state.ranges.kind(address as usize, 1) {
            // SAFETY: the caller's pointer, as documented.
            Some(RangeKind::Registered | RangeKind::Pinned) => unsafe {
                put(device, address as u64)
            },
            _ => Err(code::INVALID_VALUE),
        }
    }))
}
