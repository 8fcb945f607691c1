//! CUDA kernels on the CPU: the sources of `cuda_kernels`, compiled as C++, with a fiber for each
//! thread of a block.
//!
//! For tests and for the stand-in driver of tests; never for a user's work. Launches may run on any
//! number of host threads at once, each with its own state. Behaviour that is undefined on a GPU is
//! an error here: a barrier that not all threads reach, a warp collective without all lanes, a
//! write after the end of the shared memory, a misaligned 16-byte access. Shared memory is
//! initialised with garbage (NaN); threads run in any of many orders, and asynchronous copies
//! happen as late or as early as permitted ([`set_order`]).
//!
//! Not covered: the PTX itself, races that no order of threads shows, the rounding of tensor cores,
//! speed.

use std::ffi::{CStr, CString, c_char, c_int, c_void};

unsafe extern "C" {
    /// Runs a kernel; see [`launch`]. Exported by the static library under exactly this name, for
    /// programs that link it.
    pub fn tandem_shim_launch(
        name: *const c_char,
        grid: *const u32,
        block: *const u32,
        shared_bytes: u32,
        params: *mut *mut c_void,
    ) -> c_int;
    fn tandem_shim_seed(seed: u32);
    fn tandem_shim_drop(site: u32);
    fn tandem_shim_sites(sites: *mut u32, room: u32) -> u32;
    fn tandem_shim_watch(begin: *const c_void, size_bytes: u64);
    fn tandem_shim_watched() -> u64;
    fn tandem_shim_parameters(name: *const c_char) -> u32;
    fn tandem_shim_kernel(index: u32) -> *const c_char;
}

/// Reason for which a launch failed.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum LaunchFault {
    /// No kernel has this name.
    UnknownKernel,
    /// No threads, too many, incomplete warps, no blocks, or more than 48 KiB of shared memory.
    BadShape,
    /// Some threads of a block wait at a barrier that others never reach.
    DivergentBarrier,
    /// Some lanes of a warp wait in a collective that others never reach.
    DivergentWarp,
    /// A kernel wrote after the end of the block's shared memory.
    SharedOverrun,
    /// A thread's local variables do not fit its stack.
    StackOverrun,
    /// The host has no memory for the threads.
    OutOfMemory,
    /// A misaligned 16-byte access.
    Misaligned,
    /// More outstanding asynchronous copies in one thread than the shim supports.
    TooManyCopies,
    /// An unknown result code.
    Other(i32),
}

impl LaunchFault {
    /// Returns the fault for a result of [`tandem_shim_launch`]; `None` for 0.
    pub fn of(result: i32) -> Option<LaunchFault> {
        Some(match result {
            0 => return None,
            1 => LaunchFault::UnknownKernel,
            2 => LaunchFault::BadShape,
            3 => LaunchFault::DivergentBarrier,
            4 => LaunchFault::DivergentWarp,
            5 => LaunchFault::SharedOverrun,
            6 => LaunchFault::StackOverrun,
            7 => LaunchFault::OutOfMemory,
            8 => LaunchFault::Misaligned,
            9 => LaunchFault::TooManyCopies,
            other => LaunchFault::Other(other),
        })
    }
}

/// Runs a kernel on this thread and returns when it has ended.
///
/// # Errors
/// See [`LaunchFault`]; the kernel's outputs are then in any state.
///
/// # Safety
/// `params` holds the address of each of the kernel's parameters, of its type, and addresses among
/// them are of memory that the kernel may use according to its documentation.
pub unsafe fn launch(
    name: &str,
    grid: [u32; 3],
    block: [u32; 3],
    shared_bytes: u32,
    params: &mut [*mut c_void],
) -> Result<(), LaunchFault> {
    let Ok(name) = CString::new(name) else { return Err(LaunchFault::UnknownKernel) };
    // SAFETY: needed to call C++; the name ends with 0, grid and block have three words, and the
    // caller guarantees the parameters.
    let result = unsafe {
        tandem_shim_launch(
            name.as_ptr(),
            grid.as_ptr(),
            block.as_ptr(),
            shared_bytes,
            params.as_mut_ptr(),
        )
    };
    LaunchFault::of(result).map_or(Ok(()), Err)
}

/// Sets the order in which this host thread runs the threads of a block: 0 in order, 1 backwards,
/// others seeds of an order that changes from barrier to barrier. In odd orders asynchronous copies
/// happen as soon as they are started, in even ones no earlier than they are waited for.
pub fn set_order(seed: u32) {
    // SAFETY: needed to call C++; it sets a number of this thread.
    unsafe { tandem_shim_seed(seed) }
}

/// Omits the barrier `site` in all later launches of this host thread; `None` restores it.
pub fn drop_barrier(site: Option<u32>) {
    // SAFETY: needed to call C++; it sets a number of this thread.
    unsafe { tandem_shim_drop(site.unwrap_or(0)) }
}

/// Returns the barriers in the sources that this host thread's last launch reached.
pub fn barrier_sites() -> Vec<u32> {
    let mut sites = vec![0; 64];
    // SAFETY: needed to call C++; it writes at most as many words as the buffer holds.
    let count = unsafe { tandem_shim_sites(sites.as_mut_ptr(), sites.len() as u32) };
    sites.truncate(count as usize);
    sites
}

/// Returns the bytes of `range` that launches of this host thread read during `run`, by loads of
/// several bytes and asynchronous copies. Bytes count in sectors of 32, each once for a block of
/// threads: what a multiprocessor's cache fetches.
pub fn bytes_read(range: &[u8], run: impl FnOnce()) -> u64 {
    // SAFETY: needed to call C++; it keeps numbers of this thread and reads nothing of the range.
    unsafe { tandem_shim_watch(range.as_ptr().cast(), range.len() as u64) };
    run();
    // SAFETY: as above.
    let size_bytes = unsafe { tandem_shim_watched() };
    // SAFETY: as above.
    unsafe { tandem_shim_watch(std::ptr::null(), 0) };
    size_bytes
}

/// Returns the number of a kernel's parameters; 0 if there is no such kernel.
pub fn parameter_count(name: &str) -> usize {
    let Ok(name) = CString::new(name) else { return 0 };
    // SAFETY: needed to call C++; the name ends with 0.
    unsafe { tandem_shim_parameters(name.as_ptr()) as usize }
}

/// Returns the names of all kernels, including those of the shim's own tests (`selftest_*`).
pub fn kernel_names() -> Vec<String> {
    // SAFETY: needed to call C++; names are constants that end with 0.
    let name_of = |index| unsafe {
        let name = tandem_shim_kernel(index);
        (!name.is_null()).then(|| CStr::from_ptr(name).to_string_lossy().into_owned())
    };
    (0..).map_while(name_of).collect()
}
