//! Modules and launches.

use std::ffi::{CStr, c_char, c_uint, c_void};
use std::time::Duration;

use super::{put, result};
use crate::code;
use crate::cubin::{self, Cubin};
use crate::ptx::{Entry, PtxError, entries};
use crate::settings::settings;
use crate::state::{enter_device, log};
use crate::streams::{QueuedLaunch, QueuedWork};

/// Maximum dynamic shared memory of a block without a larger limit being set, which no kernel of
/// Tandem does.
const SHARED_BYTES_MAX: u32 = 48 << 10;
const BLOCK_THREADS_MAX: u64 = 1024;

/// Returns the kernels of an image.
///
/// # Safety
/// `image` is PTX that ends with zero, or a complete cubin.
unsafe fn read_image(image: *const c_char) -> Result<Vec<Entry>, u32> {
    // SAFETY: needed to distinguish PTX from a cubin; read only up to a zero.
    let text = unsafe { CStr::from_ptr(image) };
    if text.to_bytes().get(..4).is_some_and(cubin::is_cubin) {
        if settings().refuses_cubins {
            return Err(code::INVALID_IMAGE);
        }
        let image = image.cast::<u8>();
        // SAFETY: needed to read the image; a cubin has a header, which contains its total size.
        let image = unsafe {
            let header = std::slice::from_raw_parts(image, cubin::HEADER_BYTES);
            let size_bytes = cubin::size_bytes(header).ok_or(code::INVALID_IMAGE)?;
            std::slice::from_raw_parts(image, size_bytes)
        };
        let cubin = Cubin::read(image).ok_or(code::INVALID_IMAGE)?;
        let (major, minor) = cubin.capability;
        log(&format!("note: cubin {major}.{minor}"));
        let (major, minor) = (settings().capability / 10, settings().capability % 10);
        return if cubin.runs_on(major, minor) { Ok(cubin.entries) } else { Err(code::NO_BINARY) };
    }
    let text = text.to_str().map_err(|_| code::INVALID_PTX)?;
    log("note: PTX");
    std::thread::sleep(Duration::from_millis(settings().compile_ms));
    entries(text).map_err(|error| match error {
        PtxError::Invalid => code::INVALID_PTX,
        PtxError::Version => code::UNSUPPORTED_PTX,
    })
}

#[unsafe(no_mangle)]
unsafe extern "C" fn cuModuleLoadData(module: *mut usize, image: *const c_char) -> u32 {
    result(enter_device("cuModuleLoadData").and_then(|mut state| {
        if image.is_null() {
            return Err(code::INVALID_VALUE);
        }
        // SAFETY: the caller's image, as documented.
        let found = unsafe { read_image(image) }?;
        let first = state.functions.len();
        state.functions.extend(found);
        let range = first..state.functions.len();
        state.modules.push(range);
        // SAFETY: the caller's pointer, as documented.
        unsafe { put(module, state.modules.len()) }
    }))
}

#[unsafe(no_mangle)]
unsafe extern "C" fn cuModuleUnload(module: usize) -> u32 {
    result(enter_device("cuModuleUnload").and_then(|state| match state.modules.len() {
        count if (1..=count).contains(&module) => Ok(()),
        _ => Err(code::INVALID_HANDLE),
    }))
}

#[unsafe(no_mangle)]
unsafe extern "C" fn cuModuleGetFunction(
    function: *mut usize,
    module: usize,
    name: *const c_char,
) -> u32 {
    result(enter_device("cuModuleGetFunction").and_then(|state| {
        let range = state.modules.get(module.wrapping_sub(1)).ok_or(code::INVALID_HANDLE)?.clone();
        // SAFETY: needed to read the name, which ends with zero, as documented.
        let name = unsafe { CStr::from_ptr(name) }.to_bytes();
        let place = range
            .into_iter()
            .find(|index| state.functions[*index].name.as_bytes() == name)
            .ok_or(code::NOT_FOUND)?;
        // SAFETY: the caller's pointer, as documented.
        unsafe { put(function, place + 1) }
    }))
}

/// Loads a function before its first launch.
#[unsafe(no_mangle)]
unsafe extern "C" fn cuFuncLoad(function: usize) -> u32 {
    result(enter_device("cuFuncLoad").and_then(|mut state| {
        if !(1..=state.functions.len()).contains(&function) {
            return Err(code::INVALID_HANDLE);
        }
        state.load(function)
    }))
}

#[unsafe(no_mangle)]
unsafe extern "C" fn cuLaunchKernel(
    handle: usize,
    grid_x: c_uint,
    grid_y: c_uint,
    grid_z: c_uint,
    block_x: c_uint,
    block_y: c_uint,
    block_z: c_uint,
    shared_bytes: c_uint,
    stream: usize,
    parameters: *mut *mut c_void,
    _extra: *mut *mut c_void,
) -> u32 {
    let (grid, block) = ([grid_x, grid_y, grid_z], [block_x, block_y, block_z]);
    result(enter_device("cuLaunchKernel").and_then(|mut state| {
        let entry = state.functions.get(handle.wrapping_sub(1)).ok_or(code::INVALID_HANDLE)?;
        let entry = entry.clone();
        let threads: u64 = block.iter().map(|count| u64::from(*count)).product();
        let fits = !grid.contains(&0)
            && grid_y < 1 << 16
            && grid_z < 1 << 16
            && (1..=BLOCK_THREADS_MAX).contains(&threads)
            && block_z <= 64
            && shared_bytes <= SHARED_BYTES_MAX;
        if !fits || (parameters.is_null() && !entry.parameters.is_empty()) {
            return Err(code::INVALID_VALUE);
        }
        let sizes = entry.parameters.iter().enumerate();
        let parameters = sizes
            .map(|(index, size_bytes)| {
                let mut words = vec![0u64; size_bytes.div_ceil(8)];
                // SAFETY: needed to take the parameters before the call returns. There is a pointer
                // for each, to a value of its size, as documented.
                unsafe {
                    let from = parameters.add(index).read().cast::<u8>();
                    std::ptr::copy_nonoverlapping(from, words.as_mut_ptr().cast(), *size_bytes);
                }
                words
            })
            .collect();
        state.load(handle)?;
        let launch = QueuedLaunch { name: entry.name, grid, block, shared_bytes, parameters };
        state.launches += 1;
        let work = match settings().hang {
            Some(nth) if nth == state.launches => QueuedWork::Hang,
            _ => QueuedWork::Launch(launch),
        };
        state.enqueue(stream, work)
    }))
}
