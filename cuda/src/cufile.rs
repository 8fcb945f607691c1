//! cuFile, NVIDIA's GPUDirect Storage: reads files into device memory, bypassing the host's memory
//! where driver, drive and file system allow it. Elsewhere the library itself copies through the
//! host, which it calls compatibility mode.
//!
//! Types and codes follow the documentation of `cufile.h`.

use std::ffi::{c_int, c_void};
use std::fs::File;
use std::io;
use std::os::fd::AsRawFd;
use std::sync::Arc;

use libloading::Library as Opened;

use crate::library::{NvidiaLibrary, function};
use crate::memory::{Arena, DeviceAddress};

/// `CU_FILE_SUCCESS`
const SUCCESS: u32 = 0;
/// `CU_FILE_HANDLE_TYPE_OPAQUE_FD`
const OPAQUE_FD: u32 = 1;
/// `CUFILEOP_BASE_ERR`: results of reads below its negation are error codes of cuFile.
const FIRST_ERROR_CODE: isize = 5000;
/// Bits of `dstatusflags`: drives are read bypassing the host, by nvidia-fs or by the kernel.
const NVME_SUPPORTED: [u32; 2] = [4, 11];
/// `CU_FILE_CUDA_DRIVER_ERROR`
const DRIVER_ERROR: u32 = 5011;

/// Meanings of the error codes that a user can act on.
const MEANINGS: [(u32, &str); 10] = [
    (5001, "the nvidia-fs driver is not loaded"),
    (5004, "the version of the nvidia-fs driver is not supported"),
    (5007, "the platform is not supported"),
    (5008, "the file system or the drive is not supported"),
    (5009, "the device is not supported"),
    (5010, "the nvidia-fs driver failed"),
    (5018, "the file type is not supported"),
    (5020, "the file was not opened with O_DIRECT"),
    (5025, "it is not permitted"),
    (5036, "device memory cannot be pinned"),
];

/// Reason why files cannot be read directly into a device's memory.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum CuFileError {
    /// The library was not found.
    #[error("cuFile is not installed (libcufile.so.0 was not found; {packages} has it)")]
    Missing {
        /// Packages that contain it.
        packages: &'static str,
    },
    /// The library lacks a function.
    #[error("cuFile has no function {function}: it is too old or incomplete")]
    Incomplete {
        /// Name of the function.
        function: &'static str,
    },
    /// The library refused a call.
    #[error("cuFile call {call} failed: {}", meaning(*.code, *.cuda))]
    Refused {
        /// Function that was called.
        call: &'static str,
        /// Error code of cuFile.
        code: u32,
        /// Error code of the driver, if `code` refers to it.
        cuda: u32,
    },
}

fn meaning(code: u32, cuda: u32) -> String {
    match MEANINGS.iter().find(|(known, _)| *known == code) {
        Some((_, meaning)) => format!("{meaning} (error {code})"),
        None if code == DRIVER_ERROR => format!("the CUDA driver failed (error {cuda})"),
        None => format!("error {code}"),
    }
}

/// `CUfileError_t`
#[repr(C)]
#[derive(Debug, Clone, Copy)]
struct Status {
    code: u32,
    cuda: u32,
}

impl Status {
    fn check(self, call: &'static str) -> Result<(), CuFileError> {
        let Status { code, cuda } = self;
        if code == SUCCESS { Ok(()) } else { Err(CuFileError::Refused { call, code, cuda }) }
    }
}

/// `CUfileDescr_t.handle`
#[repr(C)]
union Descriptor {
    number: c_int,
    _pointer: *mut c_void,
}

/// `CUfileDescr_t`
#[repr(C)]
struct Description {
    kind: u32,
    descriptor: Descriptor,
    operations: *const c_void,
}

/// `CUfileDrvProps_t`, with space for fields that later versions add.
#[repr(C)]
#[derive(Default)]
struct Properties {
    major: u32,
    minor: u32,
    poll_threshold_kib: usize,
    direct_io_kib: usize,
    status_flags: u32,
    control_flags: u32,
    others: [u64; 32],
}

type Handle = *mut c_void;

/// Functions of the library.
#[derive(Debug)]
struct Table {
    close: unsafe extern "C" fn() -> Status,
    properties: unsafe extern "C" fn(*mut Properties) -> Status,
    register_file: unsafe extern "C" fn(*mut Handle, *mut Description) -> Status,
    deregister_file: unsafe extern "C" fn(Handle),
    register_memory: unsafe extern "C" fn(*const c_void, usize, c_int) -> Status,
    deregister_memory: unsafe extern "C" fn(*const c_void) -> Status,
    read: unsafe extern "C" fn(Handle, *mut c_void, usize, i64, i64) -> isize,
}

/// An open cuFile driver; closed when its last user is dropped.
#[derive(Debug)]
pub struct CuFile {
    table: Table,
    reads_drives: bool,
    /// Keeps the functions of the table loaded.
    _library: Opened,
}

impl CuFile {
    /// Opens the library and its driver. A context must be current on the calling thread.
    ///
    /// # Errors
    /// Fails if the library is missing or lacks a function, or if the driver refuses.
    pub fn open() -> Result<Arc<CuFile>, CuFileError> {
        let packages = NvidiaLibrary::CuFile.packages();
        let (_, library) = NvidiaLibrary::CuFile.open().ok_or(CuFileError::Missing { packages })?;
        macro_rules! load {
            ($name:literal) => {
                // SAFETY: needed to reach the function; cuFile's interface fixes its type, and the
                // library is held as long as the table.
                unsafe { function(&library, $name) }
                    .ok_or(CuFileError::Incomplete { function: $name })?
            };
        }
        let open: unsafe extern "C" fn() -> Status = load!("cuFileDriverOpen");
        // SAFETY: as above. Headers since 1.5 map the name to the second version.
        let close = unsafe { function(&library, "cuFileDriverClose_v2") };
        let table = Table {
            close: match close {
                Some(close) => close,
                None => load!("cuFileDriverClose"),
            },
            properties: load!("cuFileDriverGetProperties"),
            register_file: load!("cuFileHandleRegister"),
            deregister_file: load!("cuFileHandleDeregister"),
            register_memory: load!("cuFileBufRegister"),
            deregister_memory: load!("cuFileBufDeregister"),
            read: load!("cuFileRead"),
        };
        // SAFETY: needed to open the driver; the call takes no arguments.
        unsafe { open() }.check("cuFileDriverOpen")?;
        let mut cufile = CuFile { table, reads_drives: false, _library: library };
        let mut properties = Properties::default();
        // SAFETY: needed for the query; the library writes one structure of this layout, and there
        // is space for more than it has.
        let status = unsafe { (cufile.table.properties)(&raw mut properties) };
        status.check("cuFileDriverGetProperties")?;
        let supported = |bit: &u32| properties.status_flags >> bit & 1 == 1;
        cufile.reads_drives = NVME_SUPPORTED.iter().any(supported);
        Ok(Arc::new(cufile))
    }

    /// Returns `cuFile`, or `cuFile in compatibility mode` if the library reports that it cannot
    /// bypass the host for any drive.
    pub fn describe(&self) -> &'static str {
        if self.reads_drives { "cuFile" } else { "cuFile in compatibility mode" }
    }
}

impl Drop for CuFile {
    fn drop(&mut self) {
        // SAFETY: needed to close what `open` opened; files and memory hold this while they are
        // used.
        let _ = unsafe { (self.table.close)() };
    }
}

/// A file from which device memory is read.
#[derive(Debug)]
pub struct DirectFile {
    cufile: Arc<CuFile>,
    handle: Handle,
    /// Stays open as long as the handle exists.
    _file: File,
}

// SAFETY: needed because the handle is a pointer. It is only ever handed to the library, whose
// functions may be called from any thread and concurrently.
unsafe impl Send for DirectFile {}
// SAFETY: as for `Send`; nothing of it changes after it was created.
unsafe impl Sync for DirectFile {}

impl DirectFile {
    /// Registers a file that was opened with `O_DIRECT`.
    ///
    /// # Errors
    /// Fails if the library refuses, for example because it does not support the file system.
    pub fn new(cufile: &Arc<CuFile>, file: File) -> Result<DirectFile, CuFileError> {
        let mut handle = std::ptr::null_mut();
        let mut description = Description {
            kind: OPAQUE_FD,
            descriptor: Descriptor { _pointer: std::ptr::null_mut() },
            operations: std::ptr::null(),
        };
        description.descriptor.number = file.as_raw_fd();
        // SAFETY: needed to register; the library writes one handle and reads one description. The
        // descriptor is open for as long as the handle is.
        let result = unsafe { (cufile.table.register_file)(&raw mut handle, &raw mut description) };
        result.check("cuFileHandleRegister")?;
        Ok(DirectFile { cufile: Arc::clone(cufile), handle, _file: file })
    }

    /// Reads `size_bytes` from `from_bytes` of the file to `to_bytes` after `base`, the first
    /// address of an allocation. Returns the number of bytes read, which is smaller at the end of
    /// the file.
    ///
    /// # Safety
    /// The range is within an allocation that begins at `base`, and nothing else accesses it until
    /// this returns.
    ///
    /// # Errors
    /// Returns the system's error, or the library's with its meaning.
    pub unsafe fn read(
        &self,
        base: DeviceAddress,
        to_bytes: u64,
        from_bytes: u64,
        size_bytes: usize,
    ) -> io::Result<usize> {
        let base = std::ptr::without_provenance_mut(base as usize);
        let (from, to) = (from_bytes.cast_signed(), to_bytes.cast_signed());
        // SAFETY: needed to read; the caller vouches for the range, and the handle is registered.
        let result = unsafe { (self.cufile.table.read)(self.handle, base, size_bytes, from, to) };
        match result {
            0.. => Ok(result.unsigned_abs()),
            _ if result < -FIRST_ERROR_CODE => {
                let code = u32::try_from(result.unsigned_abs()).unwrap_or(u32::MAX);
                let error = CuFileError::Refused { call: "cuFileRead", code, cuda: 0 };
                Err(io::Error::other(error))
            }
            _ => Err(io::Error::last_os_error()),
        }
    }
}

impl Drop for DirectFile {
    fn drop(&mut self) {
        // SAFETY: needed to release the handle; nothing reads with it any more.
        unsafe { (self.cufile.table.deregister_file)(self.handle) };
    }
}

/// Device memory that cuFile has pinned for as long as this lives.
#[derive(Debug)]
pub struct DirectMemory {
    cufile: Arc<CuFile>,
    base: DeviceAddress,
}

impl DirectMemory {
    /// Registers an arena, so that reads to it need not go through memory of cuFile's own.
    ///
    /// # Errors
    /// Fails if the library refuses, for example because the device's window on the bus is too
    /// small. Reads work all the same.
    pub fn new(cufile: &Arc<CuFile>, arena: &Arena) -> Result<DirectMemory, CuFileError> {
        let base = std::ptr::without_provenance(arena.base() as usize);
        let size_bytes = arena.size_bytes() as usize;
        // SAFETY: needed to register the memory, which is an allocation of this size. Every reader
        // that uses it holds the arena for longer than this.
        let result = unsafe { (cufile.table.register_memory)(base, size_bytes, 0) };
        result.check("cuFileBufRegister")?;
        Ok(DirectMemory { cufile: Arc::clone(cufile), base: arena.base() })
    }
}

impl Drop for DirectMemory {
    fn drop(&mut self) {
        let base = std::ptr::without_provenance(self.base as usize);
        // SAFETY: needed to release what `new` registered.
        let _ = unsafe { (self.cufile.table.deregister_memory)(base) };
    }
}
