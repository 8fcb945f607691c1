//! Memory of the machine and of processes, from procfs.

use std::collections::BTreeMap;
use std::fs;
use std::time::{Duration, Instant};

use super::supervisor::Supervisor;

/// Maximum proportional set sizes observed, by process and for their sum.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct PeakMemory {
    pub by_process_bytes: BTreeMap<String, u64>,
    pub sum_bytes: u64,
}

impl PeakMemory {
    pub(super) fn sample(&mut self, supervisor: &Supervisor) {
        let own_pid = std::process::id();
        let workers = supervisor.processes();
        let mut sum = 0;
        for (name, pid) in workers.chain(std::iter::once(("coordinator", own_pid))) {
            let Some(bytes) = pss_bytes(pid) else { continue };
            sum += bytes;
            let peak = self.by_process_bytes.entry(name.to_owned()).or_insert(0);
            *peak = (*peak).max(bytes);
        }
        self.sum_bytes = self.sum_bytes.max(sum);
    }
}

/// Interval between samples of the processes' memory, which cost the processes a little time.
const SAMPLE_INTERVAL: Duration = Duration::from_millis(500);

/// Sampler of the processes' memory.
#[derive(Debug)]
pub(super) struct MemorySampler {
    pub(super) peak: PeakMemory,
    sampled_at: Instant,
}

impl MemorySampler {
    pub(super) fn new() -> MemorySampler {
        MemorySampler { peak: PeakMemory::default(), sampled_at: Instant::now() }
    }

    /// Samples the memory, at most once per [`SAMPLE_INTERVAL`].
    pub(super) fn sample_if_due(&mut self, supervisor: &Supervisor) {
        if self.sampled_at.elapsed() > SAMPLE_INTERVAL {
            self.peak.sample(supervisor);
            self.sampled_at = Instant::now();
        }
    }
}

/// Returns the bytes that can be used without swapping: `MemAvailable`, bounded by the rest of the
/// control group's limit.
pub fn available_bytes() -> u64 {
    let meminfo = fs::read_to_string("/proc/meminfo").unwrap_or_default();
    let available = field_kib(&meminfo, "MemAvailable:").unwrap_or(0) * 1024;
    let limit = group_limit_bytes();
    let used = fs::read_to_string("/sys/fs/cgroup/memory.current")
        .ok()
        .and_then(|text| text.trim().parse::<u64>().ok())
        .unwrap_or(0);
    limit.map_or(available, |limit| available.min(limit.saturating_sub(used)))
}

/// Returns the memory of the machine in bytes: `MemTotal`, bounded by the control group's limit.
pub fn total_bytes() -> u64 {
    let meminfo = fs::read_to_string("/proc/meminfo").unwrap_or_default();
    let total = field_kib(&meminfo, "MemTotal:").unwrap_or(0) * 1024;
    group_limit_bytes().map_or(total, |limit| total.min(limit))
}

fn group_limit_bytes() -> Option<u64> {
    fs::read_to_string("/sys/fs/cgroup/memory.max").ok()?.trim().parse().ok()
}

/// Returns the proportional set size of a process in bytes: shared pages are divided among all
/// processes that map them. Returns `None` if the process has ended.
pub fn pss_bytes(pid: u32) -> Option<u64> {
    let rollup = fs::read_to_string(format!("/proc/{pid}/smaps_rollup")).ok()?;
    field_kib(&rollup, "Pss:").map(|kib| kib * 1024)
}

fn field_kib(text: &str, name: &str) -> Option<u64> {
    let line = text.lines().find(|line| line.starts_with(name))?;
    line[name.len()..].trim().split(' ').next()?.parse().ok()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn own_process_uses_memory_and_the_machine_has_some() {
        assert!(pss_bytes(std::process::id()).is_some_and(|bytes| bytes > 0));
        assert!(available_bytes() > 0 && total_bytes() >= available_bytes());
        assert_eq!(field_kib("Rss:  12 kB\nPss:     345 kB\n", "Pss:"), Some(345));
    }
}
