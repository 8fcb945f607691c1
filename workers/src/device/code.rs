//! Loading of the kernels as code for the device in use.

use std::sync::Arc;
use std::sync::mpsc::{RecvTimeoutError, channel};
use std::thread::Builder;
use std::time::Duration;

use cuda::{Context, CudaError, Module};
use cuda_kernels::{Cubin, PTX};

/// Duration after which a compilation is reported. The driver loads what it has compiled before
/// from disk.
const SLOW_COMPILATION: Duration = Duration::from_millis(500);

/// Loads the kernels. Uses the image that was compiled ahead of time for this device; if there is
/// none, or the driver rejects it, the driver compiles the PTX. `on_slow` is called, possibly on
/// another thread, if this takes longer than [`SLOW_COMPILATION`].
///
/// # Errors
/// Returns the driver's error.
pub(super) fn load(
    context: &Context,
    on_slow: &(dyn Fn() + Sync),
) -> Result<Arc<Module>, CudaError> {
    let (major, minor) = context.info().capability;
    let image = Cubin::find(major, minor).and_then(Cubin::image);
    if let Some(image) = image {
        // SAFETY: needed to load code; the image is part of this build.
        if let Some(module) = unsafe { Module::load_cubin(context, &image) }? {
            return Ok(module);
        }
    }
    let (done, is_done) = channel::<()>();
    std::thread::scope(|scope| {
        let report = move || {
            if is_done.recv_timeout(SLOW_COMPILATION) == Err(RecvTimeoutError::Timeout) {
                on_slow();
            }
        };
        // Without this thread the code compiles in silence.
        let _ = Builder::new().name("compiling".to_owned()).spawn_scoped(scope, report);
        let module = Module::load(context, PTX);
        drop(done);
        module
    })
}
