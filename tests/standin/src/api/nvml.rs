//! The functions of NVML that Tandem calls; one file implements all libraries.
//!
//! Reports the link of a card in a slot with fewer lanes than the card has.

use std::ffi::{c_char, c_uint};

use super::device::put_text;
use super::{put, result};
use crate::settings::settings;
use crate::state::enter;

const RELEASE: &[u8] = b"525.00 stand-in\0";

#[unsafe(no_mangle)]
unsafe extern "C" fn nvmlInit_v2() -> u32 {
    result(enter("nvmlInit").map(drop))
}

#[unsafe(no_mangle)]
unsafe extern "C" fn nvmlShutdown() -> u32 {
    0
}

#[unsafe(no_mangle)]
unsafe extern "C" fn nvmlSystemGetDriverVersion(text: *mut c_char, room: c_uint) -> u32 {
    // SAFETY: the caller's pointer, as documented.
    result(unsafe { put_text(text, room.cast_signed(), RELEASE) })
}

#[unsafe(no_mangle)]
unsafe extern "C" fn nvmlDeviceGetHandleByPciBusId_v2(
    _bus: *const c_char,
    handle: *mut usize,
) -> u32 {
    // SAFETY: the caller's pointer, as documented.
    result(unsafe { put(handle, 16) })
}

/// Returns total, free and used memory, in the order of `nvmlMemory_t`.
#[unsafe(no_mangle)]
unsafe extern "C" fn nvmlDeviceGetMemoryInfo(_device: usize, sizes: *mut [u64; 3]) -> u32 {
    let (all, used) = (settings().memory_bytes as u64, settings().other_programs_bytes as u64);
    // SAFETY: the caller's pointer, as documented.
    result(unsafe { put(sizes, [all, all.saturating_sub(used), used]) })
}

macro_rules! numbers {
    ($($name:ident = $value:literal;)*) => {
        $(
            #[unsafe(no_mangle)]
            unsafe extern "C" fn $name(_device: usize, value: *mut c_uint) -> u32 {
                // SAFETY: the caller's pointer, as documented.
                result(unsafe { put(value, $value) })
            }
        )*
    };
}

numbers! {
    nvmlDeviceGetCurrPcieLinkGeneration = 3;
    nvmlDeviceGetMaxPcieLinkGeneration = 4;
    nvmlDeviceGetCurrPcieLinkWidth = 8;
    nvmlDeviceGetMaxPcieLinkWidth = 16;
}
