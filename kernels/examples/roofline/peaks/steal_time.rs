//! Steal time: processor time that the host of a virtual machine took from its cores.

/// Returns the clock ticks since the machine started, of all cores together (proc_stat(5)); 0 if
/// the system does not report them.
pub fn ticks() -> u64 {
    std::fs::read_to_string("/proc/stat").ok().and_then(|text| of_all_cores(&text)).unwrap_or(0)
}

/// Parses the first line, `cpu` and its figures, and returns the eighth.
fn of_all_cores(stat: &str) -> Option<u64> {
    stat.lines().next()?.strip_prefix("cpu ")?.split_whitespace().nth(7)?.parse().ok()
}
