//! Environment variables that NVIDIA's driver reads when a process loads it.

/// Variables set for every worker process, regardless of the parent's environment.
///
/// Streams share the device's channels, of which there are 8 by default, and a stream that waits
/// for a word blocks those that share its channel, possibly including the one that would write the
/// word. With 32, the maximum, each stream of a worker has its own channel. Programs that train
/// models are often run with 1, so an existing value is overridden.
///
/// `CUDA_MODULE_LOADING` is left alone: `cuda::Module::kernel` loads each kernel when it looks it
/// up, and with `EAGER` cuBLASLt would fill several hundred megabytes of device memory with unused
/// kernels.
pub const ENVIRONMENT: [(&str, &str); 1] = [("CUDA_DEVICE_MAX_CONNECTIONS", "32")];
