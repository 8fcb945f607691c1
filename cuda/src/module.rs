//! Modules of device code and their kernels.

use std::ffi::{CString, c_void};
use std::sync::Arc;

use cudarc::driver::sys;

use crate::context::Context;
use crate::error::CudaError;
use crate::stream::Stream;

/// `CUDA_ERROR_NOT_FOUND`
const NOT_FOUND: u32 = 500;

/// Loaded device code.
#[derive(Debug)]
pub struct Module {
    context: Context,
    module: sys::CUmodule,
}

// SAFETY: needed because the module is a pointer. The driver's functions may be called from any
// thread.
unsafe impl Send for Module {}
// SAFETY: as for `Send`; a module does not change.
unsafe impl Sync for Module {}

impl Module {
    /// Compiles PTX for the device. The driver caches the result on disk.
    ///
    /// # Errors
    /// Fails if the driver does not accept the PTX.
    pub fn load(context: &Context, ptx: &str) -> Result<Arc<Module>, CudaError> {
        let image = CString::new(ptx)
            .map_err(|_| CudaError::of("cuModuleLoadData", 200, Some("PTX with a zero in it")))?;
        // SAFETY: the image is PTX that ends with zero.
        unsafe { Module::load_image(context, image.as_bytes_with_nul()) }
    }

    /// Loads a cubin: code that was compiled for a device's compute capability. Returns `None` if
    /// this driver does not accept it for this device, since PTX is an alternative.
    ///
    /// # Errors
    /// Fails if the driver refuses for any other reason.
    ///
    /// # Safety
    /// `cubin` is the output of a compiler.
    pub unsafe fn load_cubin(
        context: &Context,
        cubin: &[u8],
    ) -> Result<Option<Arc<Module>>, CudaError> {
        // SAFETY: a complete cubin (contract of this function), which contains its own length.
        match unsafe { Module::load_image(context, cubin) } {
            Err(error) if error.is_about_image() => Ok(None),
            loaded => loaded.map(Some),
        }
    }

    /// Loads a code image.
    ///
    /// # Safety
    /// `image` is PTX that ends with zero, or a cubin.
    unsafe fn load_image(context: &Context, image: &[u8]) -> Result<Arc<Module>, CudaError> {
        let mut module = std::ptr::null_mut();
        // SAFETY: needed to load; the image contains its end (contract of this function) and is
        // read during the call only.
        let result =
            unsafe { (context.table().module_load)(&raw mut module, image.as_ptr().cast()) };
        context.table().check("cuModuleLoadData", result)?;
        Ok(Arc::new(Module { context: context.clone(), module }))
    }

    /// Returns a kernel by name, loaded onto the device. Loading at the first launch would wait for
    /// an idle device, which never comes while a stream waits for a word. A block of the kernel
    /// gets up to 48 KiB of shared memory.
    ///
    /// # Errors
    /// Returns [`CudaError::NoKernel`], or fails if the driver refuses.
    pub fn kernel(self: &Arc<Module>, name: &str) -> Result<Kernel, CudaError> {
        let table = self.context.table();
        let missing = || CudaError::NoKernel { kernel: name.to_owned() };
        let text = CString::new(name).map_err(|_| missing())?;
        let mut function = std::ptr::null_mut();
        // SAFETY: needed to find the kernel; the name ends with zero, the driver writes a pointer.
        let result =
            unsafe { (table.module_function)(&raw mut function, self.module, text.as_ptr()) };
        if result == NOT_FOUND {
            return Err(missing());
        }
        table.check("cuModuleGetFunction", result)?;
        if let Some(load) = table.function_load {
            // SAFETY: needed to load the kernel now; the handle was just returned.
            table.check("cuFuncLoad", unsafe { load(function) })?;
        }
        Ok(Kernel { module: Arc::clone(self), function })
    }
}

impl Drop for Module {
    fn drop(&mut self) {
        // SAFETY: needed to unload the code; kernels hold the module, and launches are done before
        // their stream is destroyed.
        let _ = unsafe { (self.context.table().module_unload)(self.module) };
    }
}

/// Dimensions of a launch.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Launch {
    /// Number of blocks.
    pub grid: [u32; 3],
    /// Number of threads per block.
    pub block: [u32; 3],
    /// Dynamic shared memory per block.
    pub shared_bytes: u32,
}

/// A kernel of a module.
#[derive(Debug)]
pub struct Kernel {
    module: Arc<Module>,
    function: sys::CUfunction,
}

// SAFETY: needed because the function is a pointer; see `Module`.
unsafe impl Send for Kernel {}
// SAFETY: as for `Send`.
unsafe impl Sync for Kernel {}

impl Kernel {
    /// Enqueues a launch. The parameters are copied before this returns.
    ///
    /// # Errors
    /// Fails if the driver refuses, or because of an earlier failure on the device.
    ///
    /// # Safety
    /// `parameters` points to one value for each parameter of the kernel, of its type; device
    /// ranges among them stay valid, and are not accessed in conflict by anything else, until the
    /// stream has passed the launch.
    pub unsafe fn launch(
        &self,
        stream: &Stream,
        launch: Launch,
        parameters: &mut [*mut c_void],
    ) -> Result<(), CudaError> {
        let table = self.module.context.table();
        let Launch { grid, block, shared_bytes } = launch;
        stream.count(1);
        // SAFETY: needed to launch; the caller vouches for the parameters, function and stream
        // live.
        let result = unsafe {
            (table.launch)(
                self.function,
                grid[0],
                grid[1],
                grid[2],
                block[0],
                block[1],
                block[2],
                shared_bytes,
                stream.stream,
                parameters.as_mut_ptr(),
                std::ptr::null_mut(),
            )
        };
        table.check("cuLaunchKernel", result)
    }
}
