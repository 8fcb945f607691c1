//! Use of a CUDA device by the workers: in one process or two, with waits on its streams or on the
//! host.
//!
//! Two processes and waits on streams are fastest, but not possible on every machine. Operations
//! that the driver refuses are detected while the workers start. Operations that it accepts without
//! effect are detected as lanes that stall in the first steps; then the workers are started once
//! more in safe mode, the most careful way, and so are all later workers of this process.

use std::sync::OnceLock;
use std::time::Duration;

use protocol::messages::CudaConfig;

use super::supervisor::WorkerFailure;

/// Environment variable; if `gpu`, the gpu worker copies by itself although another process could.
const COPIES_ENV: &str = "TANDEM_COPIES";
/// Environment variable; if `host`, lanes wait for each other on the host although the device's
/// streams could.
const WAITS_ENV: &str = "TANDEM_WAITS";
/// Maximum time for which lanes may stall in the first steps if there is another way to start.
/// Code, weights and pinned memory are in place by then, so the remaining work takes seconds.
const START_TIMEOUT: Duration = Duration::from_secs(60);

/// Set once lanes of this process's workers have stalled at the start.
static HAS_STALLED: OnceLock<()> = OnceLock::new();

/// A device and the way in which it is used.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct DeviceUse {
    pub(super) cuda: CudaConfig,
    /// Reason why one process does all the work, if it does.
    one_process_reason: Option<String>,
    /// Reason why lanes wait on the host, if they do.
    host_waits_reason: Option<&'static str>,
}

fn is_env_set_to(variable: &str, value: &str) -> bool {
    std::env::var_os(variable).is_some_and(|found| found == value)
}

impl DeviceUse {
    /// Returns the use of device `index` that the environment requests and earlier stalls permit.
    /// Storages that are read directly to the device need processes of their own.
    pub(super) fn detect(index: u32, reads_directly: bool, blas: bool) -> DeviceUse {
        let has_stalled = HAS_STALLED.get().is_some();
        let one_process_reason = if reads_directly {
            None
        } else if has_stalled {
            Some("lanes stalled otherwise".to_owned())
        } else {
            is_env_set_to(COPIES_ENV, "gpu").then(|| "TANDEM_COPIES is set".to_owned())
        };
        let host_waits_reason = if has_stalled {
            Some("lanes stalled otherwise")
        } else {
            is_env_set_to(WAITS_ENV, "host").then_some("TANDEM_WAITS is set")
        };
        let cuda = CudaConfig {
            index,
            copies_in_gpu_worker: one_process_reason.is_some(),
            waits_on_host: host_waits_reason.is_some(),
            blas,
        };
        DeviceUse { cuda, one_process_reason, host_waits_reason }
    }

    /// Restricts the use to one process, for `reason`.
    pub(super) fn with_one_process(self, reason: String) -> DeviceUse {
        let cuda = CudaConfig { copies_in_gpu_worker: true, ..self.cuda };
        DeviceUse { cuda, one_process_reason: Some(reason), ..self }
    }

    /// Returns the unusual aspects of the use, to be appended to the device's description.
    pub(super) fn describe(&self) -> String {
        let mut text = String::new();
        if let Some(reason) = &self.one_process_reason {
            text += &format!(", copying in the gpu worker: {reason}");
        }
        if let Some(reason) = self.host_waits_reason {
            text += &format!(", waiting on the host: {reason}");
        }
        text
    }
}

/// Returns the maximum time for which lanes may stall in the first steps; `None` if there is no
/// other way to start.
pub(super) fn start_timeout(cuda: CudaConfig) -> Option<Duration> {
    (!cuda.waits_on_host).then_some(START_TIMEOUT)
}

/// Returns true if workers that failed with `failure` in their first steps can be started once
/// more in safe mode, the most careful way to use a device: lanes of a CUDA device stalled, and
/// the environment does not request waits on the host anyway.
pub(super) fn can_enter_safe_mode(cuda: Option<u32>, failure: &WorkerFailure) -> bool {
    cuda.is_some() && !is_env_set_to(WAITS_ENV, "host") && failure.is_stall()
}

/// Enables safe mode for all workers that this process starts later. Returns false if it was
/// enabled already.
pub(super) fn enable_safe_mode() -> bool {
    HAS_STALLED.set(()).is_ok()
}
