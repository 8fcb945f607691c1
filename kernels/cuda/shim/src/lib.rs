//! CUDA kernels on the CPU: the sources of `cuda_kernels`, compiled as C++, with a fiber for each
//! thread of a block.
//!
//! For tests and for the stand-in driver of tests; never for a user's work. Launches may run on any
//! number of host threads at once, each with its own state. What a GPU would leave undefined is an
//! error here: a barrier that not all threads reach, a warp collective without all lanes, a write
//! behind the shared memory, a 16-byte access off its boundary. Shared memory begins as garbage
//! (NaN); threads run in any of many orders, and asynchronous copies happen as late or as early as
//! they may ([`set_order`]).
//!
//! Not covered: the PTX itself, races that no order of threads shows, the rounding of tensor cores,
//! speed.

use std::ffi::{CStr, CString, c_char, c_int, c_void};

unsafe extern "C" {
    /// Runs a kernel; see [`launch`]. In the static library under this very name, for those who
    /// link it from elsewhere.
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
    fn tandem_shim_parameters(name: *const c_char) -> u32;
    fn tandem_shim_kernel(index: u32) -> *const c_char;
}

/// Why a launch failed.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Fault {
    /// No kernel has this name.
    UnknownKernel,
    /// No threads, too many, no whole warps, no blocks, or more than 48 KiB of shared memory.
    BadShape,
    /// Some threads of a block wait at a barrier that others never reach.
    DivergentBarrier,
    /// Some lanes of a warp wait in a collective that others never reach.
    DivergentWarp,
    /// Something was written behind the block's shared memory.
    SharedOverrun,
    /// A thread's local variables do not fit its stack.
    StackOverrun,
    /// The host has no memory for the threads.
    OutOfMemory,
    /// A 16-byte access off its boundary.
    Misaligned,
    /// More asynchronous copies under way in one thread than the shim keeps.
    TooManyCopies,
    /// A number that this list lacks.
    Other(i32),
}

impl Fault {
    /// The fault of a result of [`tandem_shim_launch`]; `None` for 0.
    pub fn of(result: i32) -> Option<Fault> {
        Some(match result {
            0 => return None,
            1 => Fault::UnknownKernel,
            2 => Fault::BadShape,
            3 => Fault::DivergentBarrier,
            4 => Fault::DivergentWarp,
            5 => Fault::SharedOverrun,
            6 => Fault::StackOverrun,
            7 => Fault::OutOfMemory,
            8 => Fault::Misaligned,
            9 => Fault::TooManyCopies,
            other => Fault::Other(other),
        })
    }
}

/// Runs a kernel on this thread and returns when it has ended.
///
/// # Errors
/// See [`Fault`]; the kernel's outputs are then in any state.
///
/// # Safety
/// `params` holds the address of each of the kernel's parameters, of its type, and addresses among
/// them are of memory that the kernel may use as its documentation says.
pub unsafe fn launch(
    name: &str,
    grid: [u32; 3],
    block: [u32; 3],
    shared_bytes: u32,
    params: &mut [*mut c_void],
) -> Result<(), Fault> {
    let Ok(name) = CString::new(name) else { return Err(Fault::UnknownKernel) };
    // SAFETY: needed to call C++; the name ends with 0, grid and block have three words, and the
    // caller answers for the parameters.
    let result = unsafe {
        tandem_shim_launch(
            name.as_ptr(),
            grid.as_ptr(),
            block.as_ptr(),
            shared_bytes,
            params.as_mut_ptr(),
        )
    };
    Fault::of(result).map_or(Ok(()), Err)
}

/// Sets the order in which this host thread runs the threads of a block: 0 in order, 1 backwards,
/// others seeds of an order that changes from barrier to barrier. In odd orders asynchronous copies
/// happen as soon as they are started, in even ones no earlier than they are waited for.
pub fn set_order(seed: u32) {
    // SAFETY: needed to call C++; it sets a number of this thread's.
    unsafe { tandem_shim_seed(seed) }
}

/// Leaves out the barrier `site` in all later launches of this host thread; `None` ends that.
pub fn drop_barrier(site: Option<u32>) {
    // SAFETY: needed to call C++; it sets a number of this thread's.
    unsafe { tandem_shim_drop(site.unwrap_or(0)) }
}

/// The barriers in the sources that this host thread's last launch came to.
pub fn barrier_sites() -> Vec<u32> {
    let mut sites = vec![0; 64];
    // SAFETY: needed to call C++; it writes at most as many words as there is room for.
    let count = unsafe { tandem_shim_sites(sites.as_mut_ptr(), sites.len() as u32) };
    sites.truncate(count as usize);
    sites
}

/// Number of a kernel's parameters; 0 if there is no such kernel.
pub fn parameter_count(name: &str) -> usize {
    let Ok(name) = CString::new(name) else { return 0 };
    // SAFETY: needed to call C++; the name ends with 0.
    unsafe { tandem_shim_parameters(name.as_ptr()) as usize }
}

/// Names of all kernels, those of the shim's own tests (`selftest_*`) included.
pub fn kernel_names() -> Vec<String> {
    // SAFETY: needed to call C++; names are constants that end with 0.
    let name_of = |index| unsafe {
        let name = tandem_shim_kernel(index);
        (!name.is_null()).then(|| CStr::from_ptr(name).to_string_lossy().into_owned())
    };
    (0..).map_while(name_of).collect()
}
