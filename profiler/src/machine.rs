//! The machine as described by the operating system, for which a profile is valid.

use std::collections::BTreeMap;
use std::fs;
use std::path::{Path, PathBuf};

use kernels::Variant;

/// Revision of each family of kernels. Increment one when its speed changes: profiles with another
/// revision are measured again.
pub const KERNEL_REVISIONS: [(&str, u32); 6] = [
    ("linear kernels", 9),
    ("4-bit kernels", 6),
    ("attention kernels", 5),
    ("small kernels", 2),
    ("copies", 1),
    ("thread pool", 1),
];

/// CPU features that kernels or the system's copies use, as named by the Linux kernel.
const FEATURES: [&str; 15] = [
    "avx2",
    "fma",
    "f16c",
    "avx512f",
    "avx512bw",
    "avx512dq",
    "avx512vl",
    "avx512_vnni",
    "avx512_bf16",
    "avx512_fp16",
    "avx_vnni",
    "amx_tile",
    "amx_bf16",
    "amx_int8",
    "erms",
];

/// Properties of a GPU.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct GpuInfo {
    pub name: String,
    pub uuid: String,
    pub driver: String,
    /// Generation and width, for example `4.0 x16`.
    pub pcie_link: String,
}

/// Named properties of a machine, and the cache size that profiling itself needs.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct MachineIdentity {
    /// Values by name.
    pub fields: BTreeMap<String, String>,
    /// Size of the largest cache in bytes; 0 if unknown.
    pub last_level_cache_bytes: u64,
}

impl MachineIdentity {
    /// Returns this machine, with a GPU if a device found one.
    pub fn this(gpu: Option<&GpuInfo>) -> MachineIdentity {
        MachineIdentity::read(Path::new("/"), gpu)
    }

    /// Reads a machine whose `proc` and `sys` are below `root`. Values that cannot be read are
    /// `unknown`.
    pub fn read(root: &Path, gpu: Option<&GpuInfo>) -> MachineIdentity {
        let text = |path: &str| fs::read_to_string(root.join(path)).unwrap_or_default();
        let unknown = || "unknown".to_owned();
        let cpuinfo = text("proc/cpuinfo");
        let caches = caches(&root.join("sys/devices/system/cpu/cpu0/cache"));
        let mut fields = BTreeMap::new();
        let mut set = |name: &str, value: String| drop(fields.insert(name.to_owned(), value));
        set("CPU model", line(&cpuinfo, "model name").map_or_else(unknown, str::to_owned));
        set("CPU features", features(line(&cpuinfo, "flags").unwrap_or_default()));
        let online = text("sys/devices/system/cpu/online");
        set("CPUs", if online.is_empty() { unknown() } else { online.trim().to_owned() });
        let usable = std::thread::available_parallelism().map_or(0, |count| count.get());
        set("usable CPUs", usable.to_string());
        let described: Vec<&str> = caches.iter().map(|cache| cache.0.as_str()).collect();
        set("caches", if described.is_empty() { unknown() } else { described.join(", ") });
        set("memory", memory(&text("proc/meminfo")).unwrap_or_else(unknown));
        let nodes = numbered(&root.join("sys/devices/system/node"), "node");
        set("NUMA nodes", nodes.len().max(1).to_string());
        let release = text("proc/sys/kernel/osrelease");
        set("kernel", if release.is_empty() { unknown() } else { release.trim().to_owned() });
        let variant = Variant::from_env().map_or_else(|_| unknown(), |v| v.name().to_owned());
        set("kernel variant", variant);
        for (family, revision) in KERNEL_REVISIONS {
            set(family, format!("revision {revision}"));
        }
        let of_gpu = |field: fn(&GpuInfo) -> &String| {
            gpu.map_or_else(|| "none".to_owned(), |g| field(g).clone())
        };
        set("GPU", of_gpu(|gpu| &gpu.name));
        set("GPU UUID", of_gpu(|gpu| &gpu.uuid));
        set("GPU driver", of_gpu(|gpu| &gpu.driver));
        set("PCIe link", of_gpu(|gpu| &gpu.pcie_link));
        let last_level_cache_bytes = caches.iter().map(|cache| cache.1).max().unwrap_or(0);
        MachineIdentity { fields, last_level_cache_bytes }
    }
}

/// Returns the value after the first `name :` in a file of lines.
fn line<'a>(text: &'a str, name: &str) -> Option<&'a str> {
    let found =
        text.lines().find(|line| line.split(':').next().is_some_and(|k| k.trim() == name))?;
    found.split_once(':').map(|(_, value)| value.trim())
}

fn features(flags: &str) -> String {
    let present: Vec<&str> = flags.split_whitespace().collect();
    FEATURES.into_iter().filter(|feature| present.contains(feature)).collect::<Vec<_>>().join(" ")
}

/// Returns the memory in tenths of a GiB: the last kilobytes change from boot to boot.
fn memory(meminfo: &str) -> Option<String> {
    let kib: u64 = line(meminfo, "MemTotal")?.split(' ').next()?.parse().ok()?;
    Some(format!("{:.1} GiB", kib as f64 / f64::from(1u32 << 20)))
}

/// Returns the entries `<prefix><number>` of a directory, ascending.
fn numbered(directory: &Path, prefix: &str) -> Vec<PathBuf> {
    let Ok(entries) = fs::read_dir(directory) else { return Vec::new() };
    let mut found: Vec<(u32, PathBuf)> = entries
        .flatten()
        .filter_map(|entry| {
            let number = entry.file_name().to_str()?.strip_prefix(prefix)?.parse().ok()?;
            Some((number, entry.path()))
        })
        .collect();
    found.sort();
    found.into_iter().map(|(_, path)| path).collect()
}

/// Returns descriptions of a CPU's caches, with their bytes.
fn caches(directory: &Path) -> Vec<(String, u64)> {
    let one = |path: PathBuf| {
        let read = |name: &str| Some(fs::read_to_string(path.join(name)).ok()?.trim().to_owned());
        let (level, kind, size) = (read("level")?, read("type")?, read("size")?);
        let sharers = read("shared_cpu_list")?;
        if kind == "Instruction" {
            return None;
        }
        let kib: u64 = size.strip_suffix('K')?.parse().ok()?;
        Some((format!("L{level} {size} of CPUs {sharers}"), kib << 10))
    };
    numbered(directory, "index").into_iter().filter_map(one).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_described_machine_is_read() {
        let root = tempfile::tempdir().expect("a folder");
        let write = |path: &str, text: &str| {
            let path = root.path().join(path);
            fs::create_dir_all(path.parent().expect("below the root")).expect("a folder");
            fs::write(path, text).expect("a file");
        };
        write(
            "proc/cpuinfo",
            "processor\t: 0\nmodel name\t: Test CPU 3000\nflags\t\t: sse fma avx2\n",
        );
        write("proc/meminfo", "MemTotal:       50331648 kB\nMemFree: 1 kB\n");
        write("proc/sys/kernel/osrelease", "6.1.0-test\n");
        write("sys/devices/system/cpu/online", "0-7\n");
        for (index, (level, kind, size)) in
            [("1", "Data", "48K"), ("1", "Instruction", "32K"), ("3", "Unified", "2048K")]
                .into_iter()
                .enumerate()
        {
            let folder = format!("sys/devices/system/cpu/cpu0/cache/index{index}");
            write(&format!("{folder}/level"), level);
            write(&format!("{folder}/type"), kind);
            write(&format!("{folder}/size"), size);
            write(&format!("{folder}/shared_cpu_list"), "0-1");
        }
        write("sys/devices/system/node/node0/cpulist", "0-3");
        write("sys/devices/system/node/node1/cpulist", "4-7");
        let machine = MachineIdentity::read(root.path(), None);
        let field = |name: &str| machine.fields[name].as_str();
        assert_eq!(field("CPU model"), "Test CPU 3000");
        assert_eq!(field("CPU features"), "avx2 fma");
        assert_eq!(field("CPUs"), "0-7");
        assert_eq!(field("memory"), "48.0 GiB");
        assert_eq!(field("kernel"), "6.1.0-test");
        assert_eq!(field("NUMA nodes"), "2");
        assert_eq!(field("caches"), "L1 48K of CPUs 0-1, L3 2048K of CPUs 0-1");
        assert_eq!(field("PCIe link"), "none");
        assert_eq!(machine.last_level_cache_bytes, 2 << 20);
        assert_eq!(
            MachineIdentity::read(&root.path().join("nothing"), None).fields["memory"],
            "unknown"
        );
    }

    #[test]
    fn this_machine_is_the_same_twice() {
        assert_eq!(MachineIdentity::this(None), MachineIdentity::this(None));
        assert_ne!(MachineIdentity::this(None).fields["kernel"], "unknown");
    }
}
