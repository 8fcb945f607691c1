//! The kernels as code of the device at hand.

use std::sync::Arc;
use std::sync::mpsc::{RecvTimeoutError, channel};
use std::time::Duration;

use cuda::{Context, CudaError, Module};
use cuda_kernels::{Cubin, PTX};

/// Compilation that takes longer is told of. What a driver has compiled before it takes from disk.
const SLOW: Duration = Duration::from_millis(500);

/// Loads the kernels: as they were compiled ahead, or where nothing was for this device, or the
/// driver does not take it, as PTX that the driver compiles. `tell` is called, perhaps on another
/// thread, when that takes its time.
///
/// # Errors
/// The driver's refusal.
pub(super) fn load(context: &Context, tell: &(dyn Fn() + Sync)) -> Result<Arc<Module>, CudaError> {
    let image = Cubin::find(context.info().capability).and_then(Cubin::image);
    if let Some(image) = image {
        // SAFETY: needed to load code; the image is one that this build brings.
        if let Some(module) = unsafe { Module::load_cubin(context, &image) }? {
            return Ok(module);
        }
    }
    let (done, is_done) = channel::<()>();
    std::thread::scope(|scope| {
        scope.spawn(move || {
            if is_done.recv_timeout(SLOW) == Err(RecvTimeoutError::Timeout) {
                tell();
            }
        });
        let module = Module::load(context, PTX);
        drop(done);
        module
    })
}
