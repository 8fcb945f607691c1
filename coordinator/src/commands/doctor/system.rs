//! Kernel features, and the profiles in the user's cache.

use profiler::ProfileCache;
use serde_json::Value;

use super::{Finding, Root};

pub(super) fn findings(root: &Root) -> Vec<Finding> {
    let release = root.text("proc/sys/kernel/osrelease");
    let shown = release.clone().unwrap_or_else(|| "unknown".to_owned());
    let release = release.map_or(Value::Null, Value::from);
    vec![
        Finding::new("kernel", "kernel", release, shown),
        io_uring_finding(
            probe_io_uring(),
            root.text("proc/sys/kernel/io_uring_disabled").as_deref(),
        ),
        profiles_finding(root),
    ]
}

/// Tries to create a ring, because filters may refuse system calls that the kernel supports.
fn probe_io_uring() -> Result<(), std::io::Error> {
    // `struct io_uring_params` has 120 bytes: the kernel reads the flags (0) and fills in the rest.
    let mut parameters = [0u32; 30];
    // SAFETY: no library in use wraps this call. The kernel writes at most the 120 bytes of
    // `parameters`, which live until it returns.
    let ring = unsafe { libc::syscall(libc::SYS_io_uring_setup, 1u32, parameters.as_mut_ptr()) };
    if ring < 0 {
        return Err(std::io::Error::last_os_error());
    }
    // SAFETY: needed to close the ring, which the call above has just made and nothing else owns.
    drop(unsafe { <std::os::fd::OwnedFd as std::os::fd::FromRawFd>::from_raw_fd(ring as i32) });
    Ok(())
}

/// Returns the finding for io_uring. `disabled` is `kernel.io_uring_disabled`: 0, 1 (only for a
/// group) or 2.
fn io_uring_finding(result: Result<(), std::io::Error>, disabled: Option<&str>) -> Finding {
    let is_available = result.is_ok();
    let shown = match (&result, disabled) {
        (Ok(()), _) => "yes".to_owned(),
        (Err(_), Some(level @ ("1" | "2"))) => format!("no, kernel.io_uring_disabled is {level}"),
        (Err(error), _) => format!("no, {error}"),
    };
    Finding::new("io_uring", "io_uring", is_available, shown).costs_unless(
        is_available,
        "weights on NVMe are read with one system call each, more slowly than the drive allows",
    )
}

fn profiles_finding(root: &Root) -> Finding {
    let Some(cache) = ProfileCache::of_user() else {
        return Finding::new(
            "profiles",
            "profiles",
            Value::Null,
            "no folder to store them in".to_owned(),
        )
        .costs_unless(false, "every run that plans measures the machine again");
    };
    let folder = cache.directory().display().to_string();
    let names = root.names(folder.trim_start_matches('/'));
    let count = names.iter().filter(|name| name.starts_with("profile-")).count();
    Finding::new("profiles", "profiles", count, format!("{count} in {folder}")).costs_unless(
        count > 0,
        "the first run that plans measures the machine, which takes up to 40 s",
    )
}

#[cfg(test)]
mod tests {
    use super::{io_uring_finding, probe_io_uring};

    #[test]
    fn a_refusal_says_who_refused() {
        let refused = || Err(std::io::Error::from_raw_os_error(libc::EPERM));
        assert!(io_uring_finding(Ok(()), Some("0")).costs.is_none());
        assert!(io_uring_finding(refused(), Some("2")).shown.contains("io_uring_disabled is 2"));
        let filtered = io_uring_finding(refused(), Some("0"));
        assert!(filtered.shown.contains("not permitted") && filtered.costs.is_some());
    }

    #[test]
    fn trying_leaves_nothing_open() {
        let open = || std::fs::read_dir("/proc/self/fd").map_or(0, Iterator::count);
        let before = open();
        for _ in 0..64 {
            let _ = probe_io_uring();
        }
        // Other tests of this process open files too, but not dozens.
        assert!(open() < before + 32, "{before}");
    }
}
