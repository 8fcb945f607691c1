//! Errors of the driver and of the libraries, with their messages.

/// Reason why a CUDA device cannot be used, or can be used no longer.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum CudaError {
    /// The driver's library was not found.
    #[error(
        "This machine has no CUDA driver (libcuda.so.1 was not found): install NVIDIA's driver, \
         version 525 or later, or run with --device none."
    )]
    NoDriver,
    /// The driver lacks a function.
    #[error(
        "The CUDA driver has no function {function}: it is too old or incomplete. Install NVIDIA's \
         driver, version 525 or later, or run with --device none."
    )]
    Incomplete {
        /// Name of the function.
        function: &'static str,
    },
    /// The driver supports only versions before CUDA 12.0.
    #[error(
        "The CUDA driver supports CUDA {major}.{minor} but version 12.0 or later is required: \
         install NVIDIA's driver, version 525 or later, or run with --device none."
    )]
    TooOld {
        /// Major CUDA version of the driver.
        major: u32,
        /// Minor CUDA version of the driver.
        minor: u32,
    },
    /// The driver finds no device.
    #[error(
        "The CUDA driver found no device: check nvidia-smi and CUDA_VISIBLE_DEVICES, or run with \
         --device none."
    )]
    NoDevice,
    /// The number exceeds that of the last device.
    #[error(
        "There is no CUDA device {index}: this machine has {count}, numbered from 0; use for \
         example --device cuda:0."
    )]
    WrongIndex {
        /// Number requested.
        index: u32,
        /// Number of devices of the machine.
        count: u32,
    },
    /// The compute capability of the device is below 8.0.
    #[error(
        "CUDA device {index} ({name}) has compute capability {major}.{minor} but 8.0 or later is \
         required (Ampere): run with --device none."
    )]
    OldDevice {
        /// Number of the device.
        index: u32,
        /// Name of the device.
        name: String,
        /// Major version of its compute capability.
        major: u32,
        /// Minor version of its compute capability.
        minor: u32,
    },
    /// The device has too little free memory for the plan.
    #[error(
        "CUDA device {index} has {} of {} free but the plan needs {}: stop other programs that \
         use the device, or lower --vram to {free_bytes} or less.",
        gib(*.free_bytes), gib(*.total_bytes), gib(*.needed_bytes)
    )]
    OutOfMemory {
        /// Number of the device.
        index: u32,
        /// Bytes that the run needs.
        needed_bytes: u64,
        /// Free bytes of the device.
        free_bytes: u64,
        /// Total bytes of the device.
        total_bytes: u64,
    },
    /// The compiled kernels do not match this build.
    #[error(
        "The device code has no kernel {kernel}: the binary was built from sources of different \
         versions; rebuild it."
    )]
    NoKernel {
        /// Name of the missing kernel.
        kernel: String,
    },
    /// cuBLASLt refused a call.
    #[error("cuBLASLt call {call} failed: status {code}; set TANDEM_BLAS=own to run without it.")]
    Blas {
        /// Function of the library.
        call: &'static str,
        /// Status that it returned.
        code: u32,
    },
    /// The driver refused any other call.
    #[error("CUDA driver call {call} failed: {name} ({code}), {meaning}.")]
    Call {
        /// Function of the driver.
        call: &'static str,
        /// Result code.
        code: u32,
        /// The driver's name for the code.
        name: String,
        /// Consequence for the run.
        meaning: &'static str,
    },
}

fn gib(bytes: u64) -> String {
    format!("{:.2} GiB", bytes as f64 / (1u64 << 30) as f64)
}

/// Result codes that are handled individually; all others only have the driver's name.
pub(crate) mod code {
    pub(crate) const SUCCESS: u32 = 0;
    pub(crate) const OUT_OF_MEMORY: u32 = 2;
    pub(crate) const NO_DEVICE: u32 = 100;
    pub(crate) const NOT_READY: u32 = 600;
    /// Invalid image, no image for this device, PTX that is invalid or of a later version, invalid
    /// source, and unsupported operations.
    pub(crate) const IMAGE: [u32; 6] = [200, 209, 218, 222, 300, 801];
}

impl CudaError {
    /// Creates the error of a call from its result code and the driver's name for it.
    pub(crate) fn of(call: &'static str, code: u32, name: Option<&str>) -> CudaError {
        let name = name.unwrap_or("unknown error").to_owned();
        CudaError::Call { call, code, name, meaning: meaning(code) }
    }

    /// Returns true if the driver could not allocate device memory.
    pub fn is_out_of_memory(&self) -> bool {
        matches!(self, CudaError::Call { code: code::OUT_OF_MEMORY, .. })
    }

    /// Returns true if the error is about too little device memory, whether reported by Tandem or
    /// by the driver.
    pub fn is_about_memory(&self) -> bool {
        self.is_out_of_memory() || matches!(self, CudaError::OutOfMemory { .. })
    }

    /// Returns true if the driver does not accept a code image for this device.
    pub(crate) fn is_about_image(&self) -> bool {
        let CudaError::Call { call: "cuModuleLoadData", code, .. } = self else { return false };
        code::IMAGE.contains(code)
    }

    /// Returns true if processes cannot share device memory on this system.
    pub fn is_about_ipc(&self) -> bool {
        matches!(self, CudaError::Call { call: "cuIpcOpenMemHandle" | "cuIpcGetMemHandle", .. })
    }
}

fn meaning(code: u32) -> &'static str {
    match code {
        1 => "a defect in Tandem, please report it",
        2 => "the device or the system ran out of memory, perhaps to another program",
        46 => "the device is used exclusively by another process",
        100 => "no device is visible",
        200 | 209 | 218 | 222 => "the driver cannot use the device code of this build",
        201 => "the context is no longer valid",
        214 | 226 => "a memory error that the hardware could not correct",
        304 | 999 => "the operating system or the driver failed; check dmesg",
        700 => "a kernel accessed an invalid address",
        702 => "a kernel ran longer than the system's time limit",
        712 => "the host memory is already pinned",
        715..=719 => "a kernel failed",
        800 => "the operation is not permitted, as in some containers",
        801 => "this device or system does not support it",
        _ => "the run cannot continue",
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn too_little_memory_is_told_from_other_refusals() {
        let full = CudaError::OutOfMemory {
            index: 0,
            needed_bytes: 3 << 30,
            free_bytes: 1 << 30,
            total_bytes: 16 << 30,
        };
        let text = full.to_string();
        assert!(text.contains("1.00 GiB of 16.00 GiB free but the plan needs 3.00 GiB"), "{text}");
        let call = |code| CudaError::of("cuLaunchKernel", code, None);
        assert!(full.is_about_memory() && call(2).is_about_memory());
        assert!(!call(700).is_about_memory());
    }
}
