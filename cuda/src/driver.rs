//! The driver's functions, looked up once.

use std::ffi::{CStr, c_char, c_int, c_uint, c_void};

use cudarc::driver::sys;

use crate::error::{CudaError, code};

/// Declares the table: a field for each function, filled from the library by name. Functions marked
/// `optional` are `None` if the driver does not have them.
macro_rules! table {
    (
        required { $($field:ident = $symbol:literal ( $($argument:ty),* );)* }
        optional { $($late:ident = $late_symbol:literal ( $($late_argument:ty),* );)* }
    ) => {
        /// Functions of the driver. Results are plain numbers and not the bindings' enum: a newer
        /// driver may return codes for which that enum has no value.
        pub(crate) struct Table {
            $(pub(crate) $field: unsafe extern "C" fn($($argument),*) -> u32,)*
            $(pub(crate) $late: Option<unsafe extern "C" fn($($late_argument),*) -> u32>,)*
        }

        impl Table {
            fn load() -> Result<Table, CudaError> {
                // SAFETY: needed to reach the library. It is present (checked by the caller);
                // loading it runs NVIDIA's initialisers, which any CUDA program relies on.
                let library = unsafe { sys::culib() };
                Ok(Table {
                    $($field: {
                        // SAFETY: needed to reach a foreign function. The driver's interface fixes
                        // the signature of each name, `_v2` suffixes included, since CUDA 12.0.
                        let symbol = unsafe {
                            library.get::<unsafe extern "C" fn($($argument),*) -> u32>(
                                concat!($symbol, "\0").as_bytes(),
                            )
                        };
                        *symbol.map_err(|_| CudaError::Incomplete { function: $symbol })?
                    },)*
                    $($late: {
                        // SAFETY: as above, of a function that later drivers have.
                        let symbol = unsafe {
                            library.get::<unsafe extern "C" fn($($late_argument),*) -> u32>(
                                concat!($late_symbol, "\0").as_bytes(),
                            )
                        };
                        symbol.ok().map(|symbol| *symbol)
                    },)*
                })
            }
        }
    };
}

table! {
    required {
        init = "cuInit"(c_uint);
        driver_version = "cuDriverGetVersion"(*mut c_int);
        error_name = "cuGetErrorName"(u32, *mut *const c_char);
        device_count = "cuDeviceGetCount"(*mut c_int);
        device = "cuDeviceGet"(*mut c_int, c_int);
        device_name = "cuDeviceGetName"(*mut c_char, c_int, c_int);
        device_attribute = "cuDeviceGetAttribute"(*mut c_int, c_uint, c_int);
        device_memory = "cuDeviceTotalMem_v2"(*mut usize, c_int);
        device_bus = "cuDeviceGetPCIBusId"(*mut c_char, c_int, c_int);
        device_uuid = "cuDeviceGetUuid_v2"(*mut u8, c_int);
        context_retain = "cuDevicePrimaryCtxRetain"(*mut sys::CUcontext, c_int);
        context_release = "cuDevicePrimaryCtxRelease_v2"(c_int);
        context_set = "cuCtxSetCurrent"(sys::CUcontext);
        memory_info = "cuMemGetInfo_v2"(*mut usize, *mut usize);
        allocate = "cuMemAlloc_v2"(*mut u64, usize);
        free = "cuMemFree_v2"(u64);
        ipc_export = "cuIpcGetMemHandle"(*mut sys::CUipcMemHandle, u64);
        ipc_open = "cuIpcOpenMemHandle_v2"(*mut u64, sys::CUipcMemHandle, c_uint);
        ipc_close = "cuIpcCloseMemHandle"(u64);
        host_allocate = "cuMemHostAlloc"(*mut *mut c_void, usize, c_uint);
        host_free = "cuMemFreeHost"(*mut c_void);
        host_register = "cuMemHostRegister_v2"(*mut c_void, usize, c_uint);
        host_unregister = "cuMemHostUnregister"(*mut c_void);
        host_address = "cuMemHostGetDevicePointer_v2"(*mut u64, *mut c_void, c_uint);
        stream_create = "cuStreamCreate"(*mut sys::CUstream, c_uint);
        stream_destroy = "cuStreamDestroy_v2"(sys::CUstream);
        stream_synchronize = "cuStreamSynchronize"(sys::CUstream);
        stream_wait_value = "cuStreamWaitValue32_v2"(sys::CUstream, u64, u32, c_uint);
        event_create = "cuEventCreate"(*mut sys::CUevent, c_uint);
        event_destroy = "cuEventDestroy_v2"(sys::CUevent);
        event_record = "cuEventRecord"(sys::CUevent, sys::CUstream);
        event_query = "cuEventQuery"(sys::CUevent);
        event_elapsed = "cuEventElapsedTime"(*mut f32, sys::CUevent, sys::CUevent);
        copy_to_device = "cuMemcpyHtoDAsync_v2"(u64, *const c_void, usize, sys::CUstream);
        copy_to_host = "cuMemcpyDtoHAsync_v2"(*mut c_void, u64, usize, sys::CUstream);
        copy_on_device = "cuMemcpyDtoDAsync_v2"(u64, u64, usize, sys::CUstream);
        fill = "cuMemsetD8Async"(u64, u8, usize, sys::CUstream);
        module_load = "cuModuleLoadData"(*mut sys::CUmodule, *const c_void);
        module_unload = "cuModuleUnload"(sys::CUmodule);
        module_function = "cuModuleGetFunction"(*mut sys::CUfunction, sys::CUmodule, *const c_char);
        launch = "cuLaunchKernel"(
            sys::CUfunction, c_uint, c_uint, c_uint, c_uint, c_uint, c_uint, c_uint, sys::CUstream,
            *mut *mut c_void, *mut *mut c_void
        );
    }
    optional {
        // CUDA 12.4; earlier drivers load a function when it is looked up.
        function_load = "cuFuncLoad"(sys::CUfunction);
        flush_writes = "cuFlushGPUDirectRDMAWrites"(c_uint, c_uint);
    }
}

impl std::fmt::Debug for Table {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("the driver's functions")
    }
}

impl Table {
    /// Converts a result of the function `call` to an error, unless it is success.
    pub(crate) fn check(&self, call: &'static str, result: u32) -> Result<(), CudaError> {
        if result == code::SUCCESS {
            return Ok(());
        }
        let mut name = std::ptr::null();
        // SAFETY: needed to query a name. The driver writes one pointer, to a string of its own
        // that is never freed, or null.
        let known = unsafe { (self.error_name)(result, &raw mut name) };
        let name = if known == code::SUCCESS && !name.is_null() {
            // SAFETY: as above: the string ends with zero and lives as long as the process.
            unsafe { CStr::from_ptr(name) }.to_str().ok()
        } else {
            None
        };
        Err(CudaError::of(call, result, name))
    }
}

/// A CUDA version supported by a driver.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub struct DriverVersion {
    pub major: u32,
    pub minor: u32,
}

impl std::fmt::Display for DriverVersion {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "{}.{}", self.major, self.minor)
    }
}

/// The oldest version that has all functions of the table under these names (driver 525).
const MIN_VERSION: DriverVersion = DriverVersion { major: 12, minor: 0 };

/// An initialised driver with at least one device.
#[derive(Debug, Clone, Copy)]
pub struct Driver {
    pub(crate) table: &'static Table,
    version: DriverVersion,
    devices: u32,
}

impl Driver {
    /// Opens the driver.
    ///
    /// # Errors
    /// Fails if there is no driver, if it is too old, or if there is no device.
    pub fn open() -> Result<Driver, CudaError> {
        // SAFETY: needed to check that the library exists, which loads it. See `Table::load`.
        if !unsafe { sys::is_culib_present() } {
            return Err(CudaError::NoDriver);
        }
        // Once for each process that uses a device; it lives as long as the library, which stays
        // loaded.
        let table: &'static Table = Box::leak(Box::new(Table::load()?));
        let mut number = 0;
        // SAFETY: needed to query the version, which the driver writes into one integer.
        table.check("cuDriverGetVersion", unsafe { (table.driver_version)(&raw mut number) })?;
        let number = number.unsigned_abs();
        let version = DriverVersion { major: number / 1000, minor: number % 1000 / 10 };
        if version < MIN_VERSION {
            return Err(CudaError::TooOld { major: version.major, minor: version.minor });
        }
        // SAFETY: needed to initialise the driver; flags must be 0.
        match unsafe { (table.init)(0) } {
            code::NO_DEVICE => return Err(CudaError::NoDevice),
            result => table.check("cuInit", result)?,
        }
        let mut devices = 0;
        // SAFETY: needed to count devices; the driver writes one integer.
        table.check("cuDeviceGetCount", unsafe { (table.device_count)(&raw mut devices) })?;
        if devices < 1 {
            return Err(CudaError::NoDevice);
        }
        Ok(Driver { table, version, devices: devices.unsigned_abs() })
    }

    /// Returns the CUDA version that the driver supports.
    pub fn version(&self) -> DriverVersion {
        self.version
    }

    /// Returns the number of visible devices, at least one.
    pub fn device_count(&self) -> u32 {
        self.devices
    }
}
