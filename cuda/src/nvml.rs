//! NVML: properties of a device that the management library reports and the driver does not.
//!
//! Everything is optional. A function that this NVML lacks, or a query that it refuses (virtual
//! machines often do), results in `None` and is not an error.

use std::ffi::{CString, c_char, c_uint, c_void};

use libloading::Library as Opened;

use crate::library::{NvidiaLibrary, function};
use crate::link::{LinkState, PcieLink};

/// `NVML_SUCCESS`
const SUCCESS: u32 = 0;
const TEXT_BYTES: usize = 96;

type Init = unsafe extern "C" fn() -> u32;
type Text = unsafe extern "C" fn(*mut c_char, c_uint) -> u32;
type ByBus = unsafe extern "C" fn(*const c_char, *mut *mut c_void) -> u32;
type Number = unsafe extern "C" fn(*mut c_void, *mut c_uint) -> u32;
type Sizes = unsafe extern "C" fn(*mut c_void, *mut MemorySizes) -> u32;

/// `nvmlMemory_t`
#[repr(C)]
#[derive(Debug, Clone, Copy, Default)]
struct MemorySizes {
    total_bytes: u64,
    free_bytes: u64,
    used_bytes: u64,
}

/// An initialised NVML; shut down when dropped.
#[derive(Debug)]
pub struct Nvml {
    library: Opened,
}

/// A device as seen by NVML.
#[derive(Debug)]
pub struct NvmlDevice<'a> {
    nvml: &'a Nvml,
    handle: *mut c_void,
}

impl Nvml {
    /// Opens and initialises NVML; `None` if it is missing or refuses.
    pub fn open() -> Option<Nvml> {
        let (_, library) = NvidiaLibrary::Nvml.open()?;
        // SAFETY: needed to initialise; NVML's interface fixes the type, it takes no arguments, and
        // the library is held.
        let result = unsafe { function::<Init>(&library, "nvmlInit_v2").map(|init| init()) };
        (result == Some(SUCCESS)).then_some(Nvml { library })
    }

    /// Returns the driver's release, like `535.104.05`.
    pub fn driver_release(&self) -> Option<String> {
        let mut bytes = [0u8; TEXT_BYTES];
        // SAFETY: needed for the query; NVML writes at most the given number of bytes, which is one
        // fewer than there are, so that a zero follows in any case.
        let result = unsafe {
            let ask = function::<Text>(&self.library, "nvmlSystemGetDriverVersion")?;
            ask(bytes.as_mut_ptr().cast(), TEXT_BYTES as c_uint - 1)
        };
        let end = bytes.iter().position(|byte| *byte == 0)?;
        (result == SUCCESS).then(|| String::from_utf8_lossy(&bytes[..end]).into_owned())
    }

    /// Returns the device at `bus`, in the notation of [`crate::DeviceInfo::bus`].
    pub fn device(&self, bus: &str) -> Option<NvmlDevice<'_>> {
        let bus = CString::new(bus).ok()?;
        let mut handle = std::ptr::null_mut();
        // SAFETY: needed to find the device; the text ends with zero, NVML writes one pointer.
        let result = unsafe {
            let find = function::<ByBus>(&self.library, "nvmlDeviceGetHandleByPciBusId_v2")?;
            find(bus.as_ptr(), &raw mut handle)
        };
        (result == SUCCESS && !handle.is_null()).then_some(NvmlDevice { nvml: self, handle })
    }
}

impl Drop for Nvml {
    fn drop(&mut self) {
        // SAFETY: needed to shut down what `open` initialised; nothing of it is used any more.
        unsafe {
            if let Some(end) = function::<Init>(&self.library, "nvmlShutdown") {
                let _ = end();
            }
        }
    }
}

impl NvmlDevice<'_> {
    /// Returns the PCIe link.
    pub fn link(&self, at: LinkState) -> Option<PcieLink> {
        let (generation, width) = match at {
            LinkState::Current => {
                ("nvmlDeviceGetCurrPcieLinkGeneration", "nvmlDeviceGetCurrPcieLinkWidth")
            }
            LinkState::Maximum => {
                ("nvmlDeviceGetMaxPcieLinkGeneration", "nvmlDeviceGetMaxPcieLinkWidth")
            }
        };
        Some(PcieLink { generation: self.number(generation)?, width: self.number(width)? })
    }

    /// Returns the free device memory in bytes.
    pub fn free_bytes(&self) -> Option<u64> {
        let mut sizes = MemorySizes::default();
        // SAFETY: needed for the query; NVML writes one structure of this layout, the handle is its
        // own.
        let result = unsafe {
            let ask = function::<Sizes>(&self.nvml.library, "nvmlDeviceGetMemoryInfo")?;
            ask(self.handle, &raw mut sizes)
        };
        (result == SUCCESS).then_some(sizes.free_bytes)
    }

    fn number(&self, name: &str) -> Option<u32> {
        let mut value = 0;
        // SAFETY: needed for the query; all functions passed here have this type, the handle is
        // NVML's.
        let result = unsafe {
            let ask = function::<Number>(&self.nvml.library, name)?;
            ask(self.handle, &raw mut value)
        };
        (result == SUCCESS && value > 0).then_some(value)
    }
}
