//! How workers use a CUDA device: in one process or two, with waits on its streams or on the host.
//!
//! Two processes and waits on streams are fastest, and are not possible on every machine. What the
//! driver refuses shows while the workers start. What it accepts and does not do shows as lanes
//! that stand still in the first steps; then the workers are started once more in the most careful
//! way, and so are all later ones of this process.

use std::sync::OnceLock;
use std::time::Duration;

use workers::shared::protocol::CudaUse;

use super::supervise::WorkerFailure;

/// `gpu`: the gpu worker copies for itself though another process could.
const COPIES_ENV: &str = "TANDEM_COPIES";
/// `host`: lanes wait for each other on the host though the device's streams could.
const WAITS_ENV: &str = "TANDEM_WAITS";
/// How long lanes may stand still in the first steps where there is another way. Code, weights and
/// pinned memory are in place by then, so what remains takes seconds.
const START_TIMEOUT: Duration = Duration::from_secs(60);

/// Lanes of this process's workers once stood still at the start.
static STOOD_STILL: OnceLock<()> = OnceLock::new();

/// A device, and how it is used.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct DeviceUse {
    pub(super) cuda: CudaUse,
    /// Why one process does all of it.
    one_process: Option<String>,
    /// Why lanes wait on the host.
    host_waits: Option<&'static str>,
}

fn asks(variable: &str, value: &str) -> bool {
    std::env::var_os(variable).is_some_and(|found| found == value)
}

impl DeviceUse {
    /// The use of device `index` that the environment asks for, and what is known so far allows.
    /// Storages that are read straight to the device need processes of their own.
    pub(super) fn find(index: u32, reads_directly: bool, blas: bool) -> DeviceUse {
        let stood_still = STOOD_STILL.get().is_some();
        let one_process = if reads_directly {
            None
        } else if stood_still {
            Some("lanes stood still otherwise".to_owned())
        } else {
            asks(COPIES_ENV, "gpu").then(|| "as TANDEM_COPIES asks".to_owned())
        };
        let host_waits = if stood_still {
            Some("lanes stood still otherwise")
        } else {
            asks(WAITS_ENV, "host").then_some("as TANDEM_WAITS asks")
        };
        let cuda = CudaUse {
            index,
            copies_in_gpu_worker: one_process.is_some(),
            waits_on_host: host_waits.is_some(),
            blas,
        };
        DeviceUse { cuda, one_process, host_waits }
    }

    /// The same in one process, for a `reason`.
    pub(super) fn in_one_process(self, reason: String) -> DeviceUse {
        let cuda = CudaUse { copies_in_gpu_worker: true, ..self.cuda };
        DeviceUse { cuda, one_process: Some(reason), ..self }
    }

    /// What is unusual about it, to be appended to the device's description.
    pub(super) fn describe(&self) -> String {
        let mut text = String::new();
        if let Some(reason) = &self.one_process {
            text += &format!(", copying for itself: {reason}");
        }
        if let Some(reason) = self.host_waits {
            text += &format!(", waiting on the host: {reason}");
        }
        text
    }
}

/// How long lanes may stand still in the first steps; `None` where there is no other way to start.
pub(super) fn start_timeout(cuda: CudaUse) -> Option<Duration> {
    (!cuda.waits_on_host).then_some(START_TIMEOUT)
}

/// Whether workers that failed so in their first steps should be started once more, which is then
/// done in the most careful way: lanes of a CUDA device stood still, and never before.
pub(super) fn starts_carefully(cuda: Option<u32>, failure: &WorkerFailure) -> bool {
    let asked = asks(WAITS_ENV, "host");
    if cuda.is_none() || asked || !failure.is_about_stillness() {
        return false;
    }
    let is_first = STOOD_STILL.set(()).is_ok();
    if is_first {
        eprintln!(
            "{failure}; the workers are started once more, in one process and with waits on the \
             host"
        );
    }
    is_first
}
