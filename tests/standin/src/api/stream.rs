//! Streams, events and copies.

use std::ffi::{c_uint, c_void};

use super::{put, result};
use crate::code;
use crate::execute::POLL_INTERVAL;
use crate::memory::RangeKind;
use crate::settings::settings;
use crate::state::{StateGuard, enter_device, lock_state, log};
use crate::streams::{QueuedWork, is_reached};

/// `CU_STREAM_WAIT_VALUE_FLUSH`
const WAIT_FLUSH: c_uint = 1 << 30;

fn handle(valid: bool) -> Result<(), u32> {
    if valid { Ok(()) } else { Err(code::INVALID_HANDLE) }
}

#[unsafe(no_mangle)]
unsafe extern "C" fn cuStreamCreate(stream: *mut usize, _flags: c_uint) -> u32 {
    // SAFETY: the caller's pointer, as documented.
    result(
        enter_device("cuStreamCreate")
            .and_then(|mut state| unsafe { put(stream, state.streams.create()) }),
    )
}

#[unsafe(no_mangle)]
unsafe extern "C" fn cuStreamDestroy_v2(stream: usize) -> u32 {
    result(
        enter_device("cuStreamDestroy").and_then(|mut state| handle(state.streams.destroy(stream))),
    )
}

/// Runs work until `done` returns true; releases the lock while no work can run.
fn block(mut state: StateGuard, done: impl Fn(&StateGuard) -> bool) -> Result<(), u32> {
    while !done(&state) {
        if let Some(code) = state.sticky() {
            return Err(code);
        }
        if !state.step() {
            drop(state);
            std::thread::sleep(POLL_INTERVAL);
            state = lock_state();
        }
    }
    state.sticky().map_or(Ok(()), Err)
}

#[unsafe(no_mangle)]
unsafe extern "C" fn cuStreamSynchronize(stream: usize) -> u32 {
    result(enter_device("cuStreamSynchronize").and_then(|state| {
        handle(state.streams.has(stream))?;
        block(state, |state| state.streams.is_empty(stream))
    }))
}

#[unsafe(no_mangle)]
unsafe extern "C" fn cuStreamWaitValue32_v2(
    stream: usize,
    word: u64,
    value: u32,
    flags: c_uint,
) -> u32 {
    result(enter_device("cuStreamWaitValue32").and_then(|mut state| {
        let flushes = flags == WAIT_FLUSH && settings().writes_late;
        if flushes {
            log("note: flush");
        }
        if flags != 0 && !flushes
            || state.ranges.kind(word as usize, 4).is_none()
            || !word.is_multiple_of(4)
        {
            return Err(code::INVALID_VALUE);
        }
        state.waits += 1;
        if settings().drop_wait.is_some_and(|every| state.waits % every.max(1) == 0) {
            return handle(state.streams.has(stream));
        }
        let word = word as usize;
        let is_lost = settings().ignores_updates && !is_reached(word, value);
        state.enqueue(
            stream,
            if is_lost { QueuedWork::Hang } else { QueuedWork::Wait { word, value } },
        )
    }))
}

#[unsafe(no_mangle)]
unsafe extern "C" fn cuEventCreate(event: *mut usize, _flags: c_uint) -> u32 {
    // SAFETY: the caller's pointer, as documented.
    result(
        enter_device("cuEventCreate")
            .and_then(|mut state| unsafe { put(event, state.streams.create_event()) }),
    )
}

#[unsafe(no_mangle)]
unsafe extern "C" fn cuEventDestroy_v2(event: usize) -> u32 {
    result(
        enter_device("cuEventDestroy")
            .and_then(|mut state| handle(state.streams.destroy_event(event))),
    )
}

#[unsafe(no_mangle)]
unsafe extern "C" fn cuEventRecord(event: usize, stream: usize) -> u32 {
    result(enter_device("cuEventRecord").and_then(|mut state| {
        handle(state.streams.has(stream))?;
        let mark = state.streams.mark(event).ok_or(code::INVALID_HANDLE)?;
        state.enqueue(stream, mark)
    }))
}

/// Queries let time pass, so that a caller that polls sees the event complete eventually.
#[unsafe(no_mangle)]
unsafe extern "C" fn cuEventQuery(event: usize) -> u32 {
    result(enter_device("cuEventQuery").and_then(|mut state| {
        state.pass_time();
        if let Some(code) = state.sticky() {
            return Err(code);
        }
        match state.streams.is_passed(event) {
            Some(true) => Ok(()),
            Some(false) => Err(code::NOT_READY),
            None => Err(code::INVALID_HANDLE),
        }
    }))
}

#[unsafe(no_mangle)]
unsafe extern "C" fn cuEventElapsedTime(milliseconds: *mut f32, from: usize, to: usize) -> u32 {
    result(enter_device("cuEventElapsedTime").and_then(|state| {
        let time = |event| state.streams.passed_ns(event).ok_or(code::NOT_READY);
        let elapsed = time(to)? as f64 - time(from)? as f64;
        // SAFETY: the caller's pointer, as documented.
        unsafe { put(milliseconds, (elapsed / 1e6) as f32) }
    }))
}

#[unsafe(no_mangle)]
unsafe extern "C" fn cuMemcpyHtoDAsync_v2(
    to: u64,
    from: *const c_void,
    size_bytes: usize,
    stream: usize,
) -> u32 {
    result(enter_device("cuMemcpyHtoDAsync").and_then(|mut state| {
        let (to, from) = (to as usize, from as usize);
        if !state.ranges.is_device(to, size_bytes) {
            return Err(code::INVALID_VALUE);
        }
        let work = match state.ranges.kind(from, size_bytes) {
            Some(RangeKind::Pinned | RangeKind::Registered) => {
                QueuedWork::Copy { to, from, size_bytes }
            }
            Some(_) => return Err(code::INVALID_VALUE),
            None => {
                let mut bytes = vec![0u8; size_bytes];
                // SAFETY: needed to copy pageable bytes before the call returns; the range is the
                // caller's, as documented.
                unsafe {
                    let from = from as *const u8;
                    std::ptr::copy_nonoverlapping(from, bytes.as_mut_ptr(), size_bytes);
                }
                QueuedWork::CopyBytes { to, bytes }
            }
        };
        state.enqueue(stream, work)
    }))
}

#[unsafe(no_mangle)]
unsafe extern "C" fn cuMemcpyDtoHAsync_v2(
    to: *mut c_void,
    from: u64,
    size_bytes: usize,
    stream: usize,
) -> u32 {
    result(enter_device("cuMemcpyDtoHAsync").and_then(|mut state| {
        log(&format!("note: to host {size_bytes}"));
        let (to, from) = (to as usize, from as usize);
        if !state.ranges.is_device(from, size_bytes) {
            return Err(code::INVALID_VALUE);
        }
        match state.ranges.kind(to, size_bytes) {
            Some(RangeKind::Pinned | RangeKind::Registered) => {
                state.enqueue(stream, QueuedWork::Copy { to, from, size_bytes })
            }
            // The real driver blocks on pageable targets; Tandem must not use them.
            _ => Err(code::INVALID_VALUE),
        }
    }))
}

#[unsafe(no_mangle)]
unsafe extern "C" fn cuMemcpyDtoDAsync_v2(
    to: u64,
    from: u64,
    size_bytes: usize,
    stream: usize,
) -> u32 {
    result(enter_device("cuMemcpyDtoDAsync").and_then(|mut state| {
        let (to, from) = (to as usize, from as usize);
        if !state.ranges.is_device(to, size_bytes) || !state.ranges.is_device(from, size_bytes) {
            return Err(code::INVALID_VALUE);
        }
        state.enqueue(stream, QueuedWork::Copy { to, from, size_bytes })
    }))
}

#[unsafe(no_mangle)]
unsafe extern "C" fn cuMemsetD8Async(to: u64, byte: u8, size_bytes: usize, stream: usize) -> u32 {
    result(enter_device("cuMemsetD8Async").and_then(|mut state| {
        let to = to as usize;
        if !state.ranges.is_device(to, size_bytes) {
            return Err(code::INVALID_VALUE);
        }
        state.enqueue(stream, QueuedWork::Fill { to, byte, size_bytes })
    }))
}
