//! Versions, errors, devices and contexts.

use std::ffi::{c_char, c_int, c_uint};

use super::{put, result};
use crate::code;
use crate::settings::settings;
use crate::state::{enter, enter_device, set_current};

const NAME: &[u8] = b"stand-in\0";
/// `CU_DEVICE_ATTRIBUTE_CAN_FLUSH_REMOTE_WRITES`
const CAN_FLUSH_REMOTE_WRITES: u32 = 98;
/// `CU_DEVICE_ATTRIBUTE_GPU_DIRECT_RDMA_FLUSH_WRITES_OPTIONS`
const FLUSH_WRITES_OPTIONS: u32 = 117;
/// `CU_FLUSH_GPU_DIRECT_RDMA_WRITES_OPTION_HOST`
const FLUSH_BY_HOST: i32 = 1;
const BUS: &[u8] = b"0000:00:00.0\0";

#[unsafe(no_mangle)]
unsafe extern "C" fn cuInit(_flags: c_uint) -> u32 {
    let initialised = enter("cuInit").map(drop);
    result(initialised.and_then(|()| match settings().devices {
        0 => Err(code::NO_DEVICE),
        _ => Ok(()),
    }))
}

#[unsafe(no_mangle)]
unsafe extern "C" fn cuDriverGetVersion(version: *mut c_int) -> u32 {
    // SAFETY: the caller's pointer, as documented.
    result(enter("cuDriverGetVersion").and_then(|_| unsafe { put(version, settings().version) }))
}

/// Returns the name of a code. No failure is ever injected here, since it is called while handling
/// another one.
#[unsafe(no_mangle)]
unsafe extern "C" fn cuGetErrorName(error: u32, name: *mut *const c_char) -> u32 {
    let text: &'static [u8] = match error {
        code::INVALID_VALUE => b"CUDA_ERROR_INVALID_VALUE\0",
        code::OUT_OF_MEMORY => b"CUDA_ERROR_OUT_OF_MEMORY\0",
        code::NO_DEVICE => b"CUDA_ERROR_NO_DEVICE\0",
        code::INVALID_CONTEXT => b"CUDA_ERROR_INVALID_CONTEXT\0",
        code::INVALID_HANDLE => b"CUDA_ERROR_INVALID_HANDLE\0",
        code::ILLEGAL_ADDRESS => b"CUDA_ERROR_ILLEGAL_ADDRESS\0",
        code::LAUNCH_FAILED => b"CUDA_ERROR_LAUNCH_FAILED\0",
        _ => return code::INVALID_VALUE,
    };
    // SAFETY: the caller's pointer, as documented.
    result(unsafe { put(name, text.as_ptr().cast()) })
}

#[unsafe(no_mangle)]
unsafe extern "C" fn cuDeviceGetCount(count: *mut c_int) -> u32 {
    // SAFETY: the caller's pointer, as documented.
    result(enter("cuDeviceGetCount").and_then(|_| unsafe { put(count, settings().devices) }))
}

fn known(device: c_int) -> Result<(), u32> {
    if (0..settings().devices).contains(&device) { Ok(()) } else { Err(code::INVALID_DEVICE) }
}

#[unsafe(no_mangle)]
unsafe extern "C" fn cuDeviceGet(device: *mut c_int, ordinal: c_int) -> u32 {
    let found = enter("cuDeviceGet").and_then(|_| known(ordinal));
    // SAFETY: the caller's pointer, as documented.
    result(found.and_then(|()| unsafe { put(device, ordinal) }))
}

/// Writes a text of at most `capacity` bytes, including the terminating zero.
///
/// # Safety
/// `to` is valid for `capacity` bytes.
pub(super) unsafe fn put_text(to: *mut c_char, capacity: c_int, text: &[u8]) -> Result<(), u32> {
    let capacity = usize::try_from(capacity).map_err(|_| code::INVALID_VALUE)?;
    if to.is_null() || text.len() > capacity {
        return Err(code::INVALID_VALUE);
    }
    // SAFETY: needed to return the text; not null, and large enough (just checked).
    unsafe { std::ptr::copy_nonoverlapping(text.as_ptr(), to.cast(), text.len()) };
    Ok(())
}

#[unsafe(no_mangle)]
unsafe extern "C" fn cuDeviceGetName(name: *mut c_char, room: c_int, device: c_int) -> u32 {
    let found = enter("cuDeviceGetName").and_then(|_| known(device));
    // SAFETY: the caller's pointer, as documented.
    result(found.and_then(|()| unsafe { put_text(name, room, NAME) }))
}

#[unsafe(no_mangle)]
unsafe extern "C" fn cuDeviceGetPCIBusId(bus: *mut c_char, room: c_int, device: c_int) -> u32 {
    let found = enter("cuDeviceGetPCIBusId").and_then(|_| known(device));
    // SAFETY: the caller's pointer, as documented.
    result(found.and_then(|()| unsafe { put_text(bus, room, BUS) }))
}

#[unsafe(no_mangle)]
unsafe extern "C" fn cuDeviceGetUuid_v2(uuid: *mut [u8; 16], device: c_int) -> u32 {
    let found = enter("cuDeviceGetUuid").and_then(|_| known(device));
    // SAFETY: the caller's pointer, as documented.
    result(found.and_then(|()| unsafe { put(uuid, *b"stand-in for gpu") }))
}

#[unsafe(no_mangle)]
unsafe extern "C" fn cuDeviceGetAttribute(
    value: *mut c_int,
    attribute: c_uint,
    device: c_int,
) -> u32 {
    let found = enter("cuDeviceGetAttribute").and_then(|_| known(device));
    let answer = match attribute {
        16 => 4,
        75 => settings().capability / 10,
        76 => settings().capability % 10,
        CAN_FLUSH_REMOTE_WRITES => settings().writes_late.into(),
        FLUSH_WRITES_OPTIONS => i32::from(settings().writes_late) * FLUSH_BY_HOST,
        _ => 0,
    };
    // SAFETY: the caller's pointer, as documented.
    result(found.and_then(|()| unsafe { put(value, answer) }))
}

#[unsafe(no_mangle)]
unsafe extern "C" fn cuDeviceTotalMem_v2(bytes: *mut usize, device: c_int) -> u32 {
    let found = enter("cuDeviceTotalMem").and_then(|_| known(device));
    // SAFETY: the caller's pointer, as documented.
    result(found.and_then(|()| unsafe { put(bytes, settings().memory_bytes) }))
}

#[unsafe(no_mangle)]
unsafe extern "C" fn cuDevicePrimaryCtxRetain(context: *mut usize, device: c_int) -> u32 {
    let found = enter("cuDevicePrimaryCtxRetain").and_then(|mut state| {
        known(device)?;
        state.retain_context()
    });
    // SAFETY: the caller's pointer, as documented.
    result(found.and_then(|()| unsafe { put(context, 16) }))
}

#[unsafe(no_mangle)]
unsafe extern "C" fn cuDevicePrimaryCtxRelease_v2(device: c_int) -> u32 {
    result(enter("cuDevicePrimaryCtxRelease").and_then(|mut state| {
        known(device)?;
        state.release_context();
        Ok(())
    }))
}

#[unsafe(no_mangle)]
unsafe extern "C" fn cuCtxSetCurrent(context: usize) -> u32 {
    result(enter("cuCtxSetCurrent").map(|_| set_current(context == 16)))
}

#[unsafe(no_mangle)]
unsafe extern "C" fn cuMemGetInfo_v2(free: *mut usize, total: *mut usize) -> u32 {
    result(enter_device("cuMemGetInfo").and_then(|state| {
        let all = settings().memory_bytes;
        let held = settings().other_programs_bytes + state.ranges.device_bytes();
        // SAFETY: the caller's pointers, as documented.
        unsafe {
            put(free, all.saturating_sub(held))?;
            put(total, all)
        }
    }))
}
