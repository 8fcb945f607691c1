//! The driver's functions, with its signatures and codes; each call is one step under the lock.
//!
//! Each function takes the arguments that `cuda.h` documents under its name. Pointers for results
//! must be valid for one value, and handles must come from here: for callers that violate this,
//! behaviour is undefined, as in C.

mod blas;
mod cufile;
mod device;
mod memory;
mod module;
mod nvml;
mod stream;

use crate::code;

/// Converts an outcome to the driver's result code.
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
    // SAFETY: needed to return the result; not null, and valid by the caller's contract.
    unsafe { to.write_unaligned(value) };
    Ok(())
}
