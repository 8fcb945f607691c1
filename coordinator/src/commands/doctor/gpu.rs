//! NVIDIA devices, the libraries needed in addition to their driver, and memory sharing between
//! processes.

use std::path::Path;

use cuda::{
    Arena, Context, CudaError, DeviceInfo, Driver, LinkState, NvidiaLibrary, Nvml, PcieLink,
};
use serde_json::{Value, json};

use super::{Finding, Root, format_size, probe};

/// Large enough to be a separate allocation, small enough for a device that is in use.
const PROBE_BYTES: u64 = 2 << 20;

pub(super) fn findings(root: &Root) -> Vec<Finding> {
    let mut found = Vec::new();
    let nvml = Nvml::open();
    match Driver::open() {
        Ok(driver) => {
            found.push(driver_finding(&driver, nvml.as_ref()));
            for index in 0..driver.device_count() {
                found.push(match driver.device(index) {
                    Ok(info) => examine_device(&info, nvml.as_ref(), &root.0),
                    Err(error) => unusable_device_finding(index, &error),
                });
            }
            found.extend(
                NvidiaLibrary::ALL.map(|library| library_finding(library, library.find(), true)),
            );
            found.push(ipc_finding(&can_share_memory(&driver)));
            found.push(gpu_direct_finding(&driver, root));
        }
        Err(error) => {
            found.push(missing_driver_finding(&error));
            found.extend(
                NvidiaLibrary::ALL.map(|library| library_finding(library, library.find(), false)),
            );
        }
    }
    found
}

fn missing_driver_finding(error: &CudaError) -> Finding {
    let shown = match error {
        CudaError::NoDriver => "none".to_owned(),
        CudaError::NoDevice => "installed, but without a device".to_owned(),
        CudaError::TooOld { major, minor } => format!("too old (CUDA {major}.{minor})"),
        error => error.to_string().trim_end_matches('.').to_owned(),
    };
    Finding::new("cuda_driver", "CUDA driver", Value::Null, shown).costs_unless(
        false,
        "everything is computed on the CPU; a device of compute capability 8.0 or later is used \
         with NVIDIA's driver 525 or later",
    )
}

fn driver_finding(driver: &Driver, nvml: Option<&Nvml>) -> Finding {
    let release = nvml.and_then(Nvml::driver_release);
    let cuda = driver.version().to_string();
    let shown = match &release {
        Some(release) => format!("{release}, CUDA {cuda}"),
        None => format!("CUDA {cuda}"),
    };
    Finding::new("cuda_driver", "CUDA driver", json!({"cuda": cuda, "release": release}), shown)
}

fn unusable_device_finding(index: u32, error: &CudaError) -> Finding {
    let shown = error.to_string();
    let shown = shown.trim_end_matches('.').to_owned();
    Finding::new("cuda_device", &format!("cuda:{index}"), Value::Null, shown)
        .costs_unless(false, "it cannot be used")
}

fn examine_device(info: &DeviceInfo, nvml: Option<&Nvml>, root: &Path) -> Finding {
    let managed = nvml.and_then(|nvml| nvml.device(&info.bus));
    let link = |at| {
        let known = managed.as_ref().and_then(|device| device.link(at));
        known.or_else(|| PcieLink::from_sysfs(root, &info.bus, at))
    };
    let free_bytes = managed.as_ref().and_then(cuda::NvmlDevice::free_bytes);
    device_finding(info, free_bytes, [link(LinkState::Current), link(LinkState::Maximum)])
}

/// Returns the finding for a device. `links` are the current link and the fastest one.
fn device_finding(
    info: &DeviceInfo,
    free_bytes: Option<u64>,
    links: [Option<PcieLink>; 2],
) -> Finding {
    let (major, minor) = info.capability;
    let text = |link: &Option<PcieLink>| link.map(|link| link.to_string());
    let [current_link, max_link] = links.each_ref().map(text);
    let mut shown = format!(
        "{}, compute capability {major}.{minor}, {}",
        info.name,
        format_size(info.total_bytes)
    );
    if let Some(free) = free_bytes {
        shown += &format!(" ({} free)", format_size(free));
    }
    shown += &match (&current_link, &max_link) {
        (Some(current_link), Some(max_link)) => {
            format!(", PCIe {current_link}, at most {max_link}")
        }
        (Some(current_link), None) => format!(", PCIe {current_link}"),
        _ => ", PCIe link unknown".to_owned(),
    };
    let value = json!({
        "index": info.index, "name": info.name, "uuid": info.uuid, "bus": info.bus,
        "compute_capability": format!("{major}.{minor}"),
        "multiprocessors": info.multiprocessors,
        "memory_bytes": info.total_bytes, "free_bytes": free_bytes,
        "pcie_link": current_link, "pcie_link_max": max_link, "gpu_direct_rdma": info.gpu_direct,
    });
    let finding = Finding::new("cuda_device", &format!("cuda:{}", info.index), value, shown);
    if Context::supports(info).is_err() {
        return finding
            .costs_unless(false, "it is too old: kernels require compute capability 8.0");
    }
    // An idle device lowers its link's generation, never its width.
    let is_link_narrow = matches!(links, [Some(current), Some(max)] if current.width < max.width);
    finding.costs_unless(
        !is_link_narrow,
        "transfers are slower than the device supports; a wider slot would speed them up",
    )
}

fn library_finding(
    library: NvidiaLibrary,
    file: Option<&'static str>,
    has_device: bool,
) -> Finding {
    let (name, costs) = match library {
        NvidiaLibrary::CublasLt => (
            "cublaslt",
            "matrix products on a CUDA device use this program's own kernels, which are slower",
        ),
        NvidiaLibrary::Nvml => ("nvml", "the driver's release and the memory in use are unknown"),
        NvidiaLibrary::CuFile => {
            ("cufile", "weights on NVMe reach a CUDA device through host memory")
        }
    };
    let shown = file.unwrap_or("none").to_owned();
    let value = file.map_or(Value::Null, Value::from);
    let costs = match has_device {
        true => format!("{costs}; install {}", library.packages()),
        false => format!("no effect without a device; with one, {costs}"),
    };
    Finding::new(name, library.name(), value, shown).costs_unless(file.is_some(), &costs)
}

/// Returns true if a second process can open device memory. This is tried out, because the usual
/// obstacle, a container, cannot be detected otherwise.
fn can_share_memory(driver: &Driver) -> Result<bool, CudaError> {
    let context = Context::open(driver, 0)?;
    let arena = Arena::allocate(&context, PROBE_BYTES)?;
    match arena.export() {
        Ok(handle) => Ok(probe::can_open_in_other_process(0, handle)),
        Err(_) => Ok(false),
    }
}

fn ipc_finding(result: &Result<bool, CudaError>) -> Finding {
    match result {
        Ok(there) => Finding::for_feature(
            "cuda_ipc",
            "CUDA IPC",
            *there,
            "the gpu worker copies data itself, so a failure of either ends both; sharing the \
             host's PID and IPC namespaces with the container allows a separate process",
        ),
        Err(error) => {
            let shown = format!("not tried: {}", error.to_string().trim_end_matches('.'));
            Finding::new("cuda_ipc", "CUDA IPC", Value::Null, shown)
        }
    }
}

/// Returns the finding for GPUDirect Storage, which needs device, kernel module and library.
fn gpu_direct_finding(driver: &Driver, root: &Root) -> Finding {
    let device = driver.device(0).is_ok_and(|info| info.gpu_direct);
    let module = root.0.join("proc/driver/nvidia-fs").is_dir();
    let library = NvidiaLibrary::CuFile.find().is_some();
    let parts = [(device, "the device"), (module, "the nvidia-fs module"), (library, "cuFile")];
    let missing: Vec<&str> =
        parts.iter().filter(|(there, _)| !there).map(|(_, name)| *name).collect();
    let shown = match missing.as_slice() {
        [] => "yes".to_owned(),
        missing => format!("no, missing {}", missing.join(" and ")),
    };
    Finding::new("gpu_direct_storage", "GPUDirect Storage", missing.is_empty(), shown).costs_unless(
        missing.is_empty(),
        "data read from NVMe passes through host memory on its way to the device",
    )
}

#[cfg(test)]
mod tests {
    use super::*;

    fn device() -> DeviceInfo {
        DeviceInfo {
            index: 1,
            name: "Card".to_owned(),
            capability: (8, 6),
            total_bytes: 16 << 30,
            bus: "0000:01:00.0".to_owned(),
            uuid: "GPU-1".to_owned(),
            multiprocessors: 48,
            gpu_direct: false,
        }
    }

    #[test]
    fn a_device_says_what_it_is_and_what_its_slot_costs() {
        let link = |generation, width| Some(PcieLink { generation, width });
        let fine = device_finding(&device(), Some(15 << 30), [link(1, 16), link(4, 16)]);
        assert_eq!(
            fine.shown,
            "Card, compute capability 8.6, 16.0 GiB (15.0 GiB free), PCIe 1.0 x16, at most 4.0 x16"
        );
        assert_eq!((fine.costs, fine.label.as_str()), (None, "cuda:1"));
        let narrow = device_finding(&device(), None, [link(4, 8), link(4, 16)]);
        assert!(narrow.costs.is_some_and(|costs| costs.contains("slot")));
        let old =
            device_finding(&DeviceInfo { capability: (7, 5), ..device() }, None, [None, None]);
        assert!(old.costs.is_some_and(|costs| costs.contains("8.0")));
        assert!(old.shown.ends_with("PCIe link unknown"));
    }

    #[test]
    fn absences_cost_one_sentence_each() {
        for library in NvidiaLibrary::ALL {
            let costs = |file, device| library_finding(library, file, device).costs;
            assert_eq!(costs(Some("lib.so"), true), None);
            assert!(costs(None, true).is_some_and(|text| text.contains(library.packages())));
            assert!(costs(None, false).is_some_and(|text| text.starts_with("no effect without")));
        }
        let driver = missing_driver_finding(&CudaError::NoDriver);
        assert_eq!((driver.shown.as_str(), driver.value.is_null()), ("none", true));
        assert!(
            missing_driver_finding(&CudaError::TooOld { major: 11, minor: 8 })
                .shown
                .contains("11.8")
        );
        assert!(ipc_finding(&Ok(false)).costs.is_some_and(|costs| costs.contains("container")));
        assert_eq!(ipc_finding(&Ok(true)).costs, None);
        let untried = ipc_finding(&Err(CudaError::NoDevice));
        assert!(untried.value.is_null() && untried.shown.starts_with("not tried"));
    }
}
