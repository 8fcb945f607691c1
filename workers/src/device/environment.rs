//! What NVIDIA's driver reads from the environment when a process loads it.

/// Variables that a worker process is started with, whatever its parent has.
///
/// Streams share the device's channels, 8 of them unless the driver is told otherwise, and a stream
/// that waits for a word holds up those that share its channel: perhaps the one that would bring
/// the word. With 32, the most there are, each stream of a worker has its own. Programs that train
/// models are often run with 1, so a value that is there is not kept.
///
/// `CUDA_MODULE_LOADING` is left alone: `cuda::Module::kernel` loads each kernel when it looks it
/// up, and `EAGER` would have cuBLASLt fill some hundred megabytes of device memory with kernels
/// that nothing uses.
pub const ENVIRONMENT: [(&str, &str); 1] = [("CUDA_DEVICE_MAX_CONNECTIONS", "32")];
