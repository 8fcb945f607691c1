//! The functions of cuFile that Tandem calls; the same file implements this library too.
//!
//! Device memory is memory of the process here, so a read is a `pread`. Codes are cuFile's.

use std::ffi::{c_int, c_uint, c_void};
use std::os::fd::BorrowedFd;

use rustix::io::Errno;

use super::put;
use crate::settings::settings;
use crate::state::{StateGuard, enter, enter_device, lock_state};

const NOT_OPEN: u32 = 5001;
const ALREADY_OPEN: u32 = 5026;
const POINTER_INVALID: u32 = 5012;
const INVALID_VALUE: u32 = 5022;
const ALREADY_REGISTERED: u32 = 5023;
const NOT_REGISTERED: u32 = 5024;
const HANDLE_NOT_REGISTERED: u32 = 5027;
/// Results of reads above the negation of this number are errors of the system, the others codes of
/// cuFile.
const CODES_FROM: u32 = 5000;
/// Reports that drives are read bypassing the host.
const NVME_SUPPORTED: c_uint = 1 << 4;
const PAGE_BYTES: usize = 4096;

#[repr(C)]
struct Status {
    code: u32,
    driver: u32,
}

fn status(outcome: Result<(), u32>) -> Status {
    Status { code: outcome.err().unwrap_or(0), driver: 0 }
}

/// Begins a call that requires the open driver.
fn enter_open(name: &'static str) -> Result<StateGuard, u32> {
    enter(name).and_then(|state| if state.direct.is_open { Ok(state) } else { Err(NOT_OPEN) })
}

#[unsafe(no_mangle)]
extern "C" fn cuFileDriverOpen() -> Status {
    status(enter("cuFileDriverOpen").and_then(|mut state| {
        match std::mem::replace(&mut state.direct.is_open, true) {
            true => Err(ALREADY_OPEN),
            false => Ok(()),
        }
    }))
}

#[unsafe(no_mangle)]
extern "C" fn cuFileDriverClose_v2() -> Status {
    status(enter_open("cuFileDriverClose").map(|mut state| state.direct.is_open = false))
}

#[repr(C)]
struct Properties {
    major: c_uint,
    minor: c_uint,
    poll_threshold_kib: usize,
    direct_io_kib: usize,
    status_flags: c_uint,
    control_flags: c_uint,
    /// Features, sizes of caches, of pinned memory, and of batches.
    others: [c_uint; 6],
}

#[unsafe(no_mangle)]
unsafe extern "C" fn cuFileDriverGetProperties(properties: *mut Properties) -> Status {
    status(enter_open("cuFileDriverGetProperties").and_then(|_| {
        let status_flags = if settings().is_compatibility_mode { 0 } else { NVME_SUPPORTED };
        let (major, minor, others) = (2, 0, [u32::MAX; 6]);
        let (poll_threshold_kib, direct_io_kib, control_flags) = (4, 16384, 0);
        let all = Properties {
            major,
            minor,
            poll_threshold_kib,
            direct_io_kib,
            status_flags,
            control_flags,
            others,
        };
        // SAFETY: the caller's pointer, as documented.
        unsafe { put(properties, all) }
    }))
}

#[unsafe(no_mangle)]
unsafe extern "C" fn cuFileHandleRegister(
    handle: *mut usize,
    description: *const [usize; 3],
) -> Status {
    status(enter_open("cuFileHandleRegister").and_then(|mut state| {
        if description.is_null() {
            return Err(INVALID_VALUE);
        }
        // SAFETY: the caller's pointer, as documented: a kind, a union of a descriptor and a
        // pointer, and a pointer, in three words.
        let [kind, number, _] = unsafe { description.read() };
        let (kind, number) = (kind as u32, number as u32);
        if kind != 1 {
            return Err(INVALID_VALUE);
        }
        let registered = state.direct.register_file(number.cast_signed());
        // SAFETY: the caller's pointer, as documented.
        unsafe { put(handle, registered) }
    }))
}

#[unsafe(no_mangle)]
extern "C" fn cuFileHandleDeregister(handle: usize) {
    if let Ok(mut state) = enter_open("cuFileHandleDeregister") {
        state.direct.deregister_file(handle);
    }
}

#[unsafe(no_mangle)]
extern "C" fn cuFileBufRegister(base: usize, size_bytes: usize, _flags: c_int) -> Status {
    status(enter_open("cuFileBufRegister").and_then(|mut state| {
        if !state.ranges.is_device(base, size_bytes) {
            return Err(POINTER_INVALID);
        }
        if state.direct.register_memory(base) { Ok(()) } else { Err(ALREADY_REGISTERED) }
    }))
}

#[unsafe(no_mangle)]
extern "C" fn cuFileBufDeregister(base: usize) -> Status {
    status(enter_open("cuFileBufDeregister").and_then(|mut state| {
        if state.direct.deregister_memory(base) { Ok(()) } else { Err(NOT_REGISTERED) }
    }))
}

/// Checks a read, and returns its descriptor, address and size.
fn begin(
    handle: usize,
    base: usize,
    to_bytes: i64,
    size_bytes: usize,
) -> Result<(c_int, usize, usize), u32> {
    let mut state = enter_open("cuFileRead")?;
    let number = state.direct.file(handle).ok_or(HANDLE_NOT_REGISTERED)?;
    let to_bytes = usize::try_from(to_bytes).map_err(|_| INVALID_VALUE)?;
    let address = base.checked_add(to_bytes).ok_or(INVALID_VALUE)?;
    let spans = to_bytes.checked_add(size_bytes).ok_or(INVALID_VALUE)?;
    // `base` must be the first byte of an allocation, as documented.
    if !state.ranges.is_device(base, spans) {
        return Err(POINTER_INVALID);
    }
    state.direct.reads += 1;
    let is_short = settings().short_read == Some(state.direct.reads);
    let half_bytes = (size_bytes / 2).next_multiple_of(PAGE_BYTES).min(size_bytes);
    Ok((number, address, if is_short { half_bytes } else { size_bytes }))
}

#[unsafe(no_mangle)]
unsafe extern "C" fn cuFileRead(
    handle: usize,
    base: *mut c_void,
    size_bytes: usize,
    from_bytes: i64,
    to_bytes: i64,
) -> isize {
    let failed = |errno: Errno| -> isize {
        // SAFETY: needed to set errno like a C function; every thread has its own.
        unsafe { *errno_place() = errno.raw_os_error() };
        -1
    };
    let (number, address, size_bytes) = match begin(handle, base.addr(), to_bytes, size_bytes) {
        Ok(read) => read,
        Err(code) if code < CODES_FROM => {
            return failed(Errno::from_raw_os_error(code.cast_signed()));
        }
        Err(code) => return -(code as isize),
    };
    // SAFETY: needed to use the caller's descriptor, which it keeps open while it is registered.
    let file = unsafe { BorrowedFd::borrow_raw(number) };
    if settings().writes_late {
        // Files are opened with O_DIRECT, which reads to aligned memory only.
        let mut bytes = vec![0; size_bytes + PAGE_BYTES];
        let start = bytes.as_ptr().align_offset(PAGE_BYTES);
        let to = &mut bytes[start..start + size_bytes];
        return match rustix::io::pread(file, to, from_bytes.cast_unsigned()) {
            Ok(count) => {
                lock_state()
                    .direct
                    .invisible_writes
                    .push((address, bytes[start..start + count].to_vec()));
                count as isize
            }
            Err(errno) => failed(errno),
        };
    }
    let to = std::ptr::with_exposed_provenance_mut::<std::mem::MaybeUninit<u8>>(address);
    // SAFETY: needed to read into device memory, which is mapped here. The range is in an
    // allocation, and the caller leaves it alone until this returns.
    let to = unsafe { std::slice::from_raw_parts_mut(to, size_bytes) };
    match rustix::io::pread(file, to, from_bytes.cast_unsigned()) {
        Ok((read, _)) => read.len() as isize,
        Err(errno) => failed(errno),
    }
}

/// Makes everything visible that was read so far.
#[unsafe(no_mangle)]
extern "C" fn cuFlushGPUDirectRDMAWrites(_target: c_uint, _scope: c_uint) -> u32 {
    super::result(enter_device("cuFlushGPUDirectRDMAWrites").map(|mut state| {
        for (address, bytes) in std::mem::take(&mut state.direct.invisible_writes) {
            // SAFETY: needed to write to device memory. The range is in an allocation, as was
            // checked when it was read to, and the program leaves it alone until it has flushed.
            unsafe { std::ptr::copy(bytes.as_ptr(), address as *mut u8, bytes.len()) };
        }
    }))
}

unsafe extern "C" {
    #[link_name = "__errno_location"]
    fn errno_place() -> *mut c_int;
}
