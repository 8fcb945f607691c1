//! Hardware of a run. Only this module translates the device and threads of a command line into a
//! machine.

use engine::launch::{LaunchOptions, SPIN_US, compute_cpus};
use profiler::{ComputeThreads, MachineIdentity};
use protocol::messages::{SegmentNodes, WeightsOrigin};
use workers::device::has_blas;

use crate::cuda_device;
use crate::request::ProfileRequest;
use crate::session::Session;
use crate::values::DeviceChoice;

/// Threads and device that a run computes on.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Hardware {
    pub threads: ComputeThreads,
    /// Emulated device, with the bandwidth of its link in bytes per second if one is specified.
    pub emulated: Option<Option<u64>>,
    /// Index of the CUDA device.
    pub cuda: Option<u32>,
}

impl Hardware {
    /// Returns the hardware of a session, with its device only if it is used.
    pub fn resolve(session: &Session<'_>, uses_gpu: bool) -> Hardware {
        let device = if uses_gpu { session.options.device } else { DeviceChoice::None };
        let cpu_threads =
            session.options.cpu_threads.or_else(|| session.tuned_threads.for_device_use(uses_gpu));
        Hardware::for_device(device, cpu_threads, session.options.emulated_threads)
    }

    /// Returns the hardware with another number of CPU threads.
    #[must_use]
    pub(crate) fn with_cpu_threads(self, cpu: u16) -> Hardware {
        Hardware { threads: ComputeThreads { cpu, ..self.threads }, ..self }
    }

    /// Returns the hardware that is profiled.
    pub fn for_profile(request: &ProfileRequest) -> Hardware {
        Hardware::for_device(request.device, request.cpu_threads, request.emulated_threads)
    }

    /// Returns the hardware of plans that do not use the device of a profile.
    pub fn without_device(request: &ProfileRequest) -> Hardware {
        Hardware::for_device(DeviceChoice::None, request.cpu_threads, None)
    }

    /// Returns hardware for timed workers, in which nothing but time passes.
    pub fn timed(uses_gpu: bool) -> Hardware {
        let threads = ComputeThreads { cpu: 1, gpu: u16::from(uses_gpu) };
        Hardware { threads, emulated: uses_gpu.then_some(None), cuda: None }
    }

    /// Returns the hardware of a device with threads for the cpu worker and the device. Unless
    /// specified, they are at most as many as the cores in total, since threads that share a core
    /// only slow each other down.
    fn for_device(
        device: DeviceChoice,
        cpu_threads: Option<u16>,
        emulated_threads: Option<u16>,
    ) -> Hardware {
        let cores = available_cores();
        let (emulated, cuda) = match device {
            DeviceChoice::Emulated { link_bytes_per_s, .. } => (Some(link_bytes_per_s), None),
            DeviceChoice::Cuda(index) => (None, Some(index)),
            DeviceChoice::Auto | DeviceChoice::None | DeviceChoice::Timed => (None, None),
        };
        let gpu = match (emulated, cuda) {
            // Half of the cores run an emulated device.
            (Some(_), _) => emulated_threads.unwrap_or_else(|| (cores / 2).max(1)),
            // A CUDA device needs one thread, for its sampler.
            (None, Some(_)) => emulated_threads.unwrap_or(1),
            (None, None) => 0,
        };
        let cpu = cpu_threads.unwrap_or_else(|| cores.saturating_sub(gpu).max(1));
        Hardware { threads: ComputeThreads { cpu, gpu }, emulated, cuda }
    }

    /// Returns the options for launching workers on this hardware.
    pub fn launch_options(self, weights: WeightsOrigin) -> LaunchOptions {
        LaunchOptions {
            weights,
            cpu_threads: self.threads.cpu,
            gpu_threads: self.threads.gpu,
            link_bytes_per_s: self.emulated.flatten(),
            cpus: compute_cpus(),
            spin_us: if self.has_device() { 0 } else { SPIN_US },
            durations: None,
            cuda: self.cuda,
            grammars: None,
            staged: Vec::new(),
            prompt_cache: None,
            memory_nodes: SegmentNodes::default(),
            select_text: Vec::new(),
            draft_model: None,
            quiet: false,
        }
    }

    /// Returns true if there is a device in addition to the host.
    pub const fn has_device(self) -> bool {
        self.emulated.is_some() || self.cuda.is_some()
    }

    /// Returns a description of this machine. It includes the GPU only if that is used, since a
    /// profile without the GPU remains valid when the GPU changes.
    pub(crate) fn describe_machine(self) -> MachineIdentity {
        MachineIdentity::this(self.cuda.and_then(cuda_device::describe_gpu).as_ref())
    }

    /// Returns the device in words; `None` without one.
    pub(crate) fn describe_device(self) -> Option<String> {
        match (self.cuda, self.emulated) {
            (Some(index), _) => {
                let name = cuda_device::device_info(index)
                    .map_or_else(|_| "unknown".to_owned(), |d| d.name);
                // Linears of prefill use cuBLASLt if it is installed.
                let linears = if has_blas() { ", cuBLASLt" } else { "" };
                Some(format!("cuda:{index} {name}{linears}"))
            }
            (None, Some(Some(bytes_per_s))) => Some(format!("emulated, link {bytes_per_s} B/s")),
            (None, Some(None)) => Some("emulated".to_owned()),
            (None, None) => None,
        }
    }
}

/// Returns the number of CPUs that this process may use.
pub(crate) fn available_cores() -> u16 {
    std::thread::available_parallelism().map_or(1, |cores| cores.get()) as u16
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn threads_are_shared_with_an_emulated_device_and_one_is_left_to_a_real_one() {
        let cores = available_cores();
        let link_bytes_per_s = Some(5);
        let emulated = DeviceChoice::Emulated { vram_bytes: None, link_bytes_per_s };
        let found = Hardware::for_device(emulated, None, None);
        assert_eq!(found.threads.gpu, (cores / 2).max(1));
        assert_eq!(found.threads.cpu, cores.saturating_sub(found.threads.gpu).max(1));
        let launched = found.launch_options(WeightsOrigin::Dummy { seed: 0 });
        assert_eq!(
            (launched.link_bytes_per_s, launched.cuda, launched.spin_us),
            (Some(5), None, 0)
        );
        let real = Hardware::for_device(DeviceChoice::Cuda(3), None, None);
        assert_eq!((real.threads.gpu, real.cuda, real.emulated), (1, Some(3), None));
        let alone = Hardware::for_device(DeviceChoice::None, Some(7), None);
        assert_eq!(alone.threads, ComputeThreads { cpu: 7, gpu: 0 });
        assert_eq!(alone.launch_options(WeightsOrigin::Dummy { seed: 0 }).spin_us, SPIN_US);
    }
}
