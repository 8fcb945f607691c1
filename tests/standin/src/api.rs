//! The driver's functions. Signatures and codes are the driver's; each call is one step under the
//! lock.
//!
//! Each function takes what `cuda.h` documents under its name. Pointers for results must be valid
//! for one value, handles must come from here: a caller that breaks it gets what C programs get.

mod blas;
mod cufile;
mod device;
mod memory;
mod module;
mod nvml;
mod stream;

use crate::code;

/// A call's outcome as the driver returns it.
fn result(outcome: Result<(), u32>) -> u32 {
    match outcome {
        Ok(()) => code::SUCCESS,
        Err(code) => code,
    }
}

/// Writes a result through a caller's pointer.
///
/// # Safety
/// `to` is null or valid for one `T`.
unsafe fn put<T>(to: *mut T, value: T) -> Result<(), u32> {
    if to.is_null() {
        return Err(code::INVALID_VALUE);
    }
    // SAFETY: needed to answer; not null, and valid by the caller's contract.
    unsafe { to.write_unaligned(value) };
    Ok(())
}
