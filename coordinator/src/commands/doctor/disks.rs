//! Block devices, and the free space of the file systems mounted from them.

use serde_json::{Value, json};

use super::{Finding, Root, format_size};

/// A whole disk, not a partition.
#[derive(Debug, Clone, PartialEq, Eq)]
struct Disk {
    name: String,
    model: Option<String>,
    size_bytes: u64,
    /// `None` if the system does not report it.
    rotates: Option<bool>,
    /// Mount points of file systems on the disk or its partitions.
    mounted: Vec<String>,
}

impl Disk {
    fn is_nvme(&self) -> bool {
        self.name.starts_with("nvme")
    }
}

pub(super) fn findings(root: &Root) -> Vec<Finding> {
    let disks = disks(root);
    let mut found: Vec<Finding> = disks.iter().map(|disk| disk_finding(disk, free_bytes)).collect();
    let nvme: Vec<&str> =
        disks.iter().filter(|disk| disk.is_nvme()).map(|disk| disk.name.as_str()).collect();
    let shown = if nvme.is_empty() { "none".to_owned() } else { nvme.join(" ") };
    found.push(Finding::new("nvme", "NVMe drives", json!(nvme), shown).costs_unless(
        !nvme.is_empty(),
        "weights cannot be staged, so all of them must fit in memory",
    ));
    found
}

/// Returns the physical disks, without loop devices and RAM disks.
fn disks(root: &Root) -> Vec<Disk> {
    let mounts = root.text("proc/mounts").unwrap_or_default();
    let names = root.names("sys/block").into_iter();
    names
        .filter(|name| {
            !["loop", "ram", "zram", "dm-", "md", "sr"].iter().any(|kind| name.starts_with(kind))
        })
        .filter_map(|name| {
            let text = |file: &str| root.text(&format!("sys/block/{name}/{file}"));
            // The kernel counts sectors of 512 bytes, regardless of the disk's own sector size.
            let size_bytes = text("size")?.parse::<u64>().ok()? * 512;
            let (model, rotational) = (text("device/model"), text("queue/rotational"));
            (size_bytes > 0).then(|| Disk {
                model,
                rotates: rotational.map(|flag| flag == "1"),
                mounted: mount_points(&mounts, &name),
                size_bytes,
                name,
            })
        })
        .collect()
}

/// Returns the mount points of a disk or its partitions, the first one of each device.
fn mount_points(mounts: &str, disk: &str) -> Vec<String> {
    let mut devices: Vec<&str> = Vec::new();
    let mut paths = Vec::new();
    for line in mounts.lines() {
        let mut words = line.split_whitespace();
        let (Some(device), Some(place)) = (words.next(), words.next()) else { continue };
        let Some(rest) = device.strip_prefix("/dev/").and_then(|name| name.strip_prefix(disk))
        else {
            continue;
        };
        let part = rest.trim_start_matches('p').chars().all(|c| c.is_ascii_digit());
        if part && !devices.contains(&device) {
            devices.push(device);
            // The kernel escapes a space in a path as \040.
            paths.push(place.replace("\\040", " "));
        }
    }
    paths
}

fn free_bytes(path: &str) -> Option<u64> {
    let system = rustix::fs::statvfs(path).ok()?;
    Some(system.f_bavail * system.f_frsize)
}

fn disk_finding(disk: &Disk, free: impl Fn(&str) -> Option<u64>) -> Finding {
    let kind = match (disk.is_nvme(), disk.rotates) {
        (true, _) => "NVMe",
        (false, Some(true)) => "hard disk",
        (false, Some(false)) => "SSD",
        (false, None) => "of unknown type",
    };
    let mounts: Vec<(&String, Option<u64>)> =
        disk.mounted.iter().map(|place| (place, free(place))).collect();
    let mut shown = format!("{} {kind}", format_size(disk.size_bytes));
    if let Some(model) = &disk.model {
        shown += &format!(" ({model})");
    }
    for (path, free) in &mounts {
        let free = free.map_or_else(|| "unknown".to_owned(), format_size);
        shown += &format!(", {free} free on {path}");
    }
    let mounts: Vec<Value> =
        mounts.iter().map(|(path, free)| json!({"at": path, "free_bytes": free})).collect();
    let value = json!({
        "device": disk.name, "model": disk.model, "size_bytes": disk.size_bytes,
        "nvme": disk.is_nvme(), "rotational": disk.rotates, "mounts": mounts,
    });
    Finding::new("disk", &disk.name, value, shown)
        .costs_unless(disk.rotates != Some(true), "models load slowly from it")
}

#[cfg(test)]
mod tests {
    use super::{Disk, disk_finding, mount_points};

    #[test]
    fn parts_belong_to_their_disk() {
        let mounts = "/dev/sda1 / ext4\n/dev/sda1 /again ext4\n/dev/sdab /other ext4\n\
                      /dev/nvme0n1p2 /with\\040space xfs\nproc /proc proc\n/dev/nvme0n1 /whole xfs";
        assert_eq!(mount_points(mounts, "sda"), ["/"]);
        assert_eq!(mount_points(mounts, "sdab"), ["/other"]);
        assert_eq!(mount_points(mounts, "nvme0n1"), ["/with space", "/whole"]);
        assert!(mount_points(mounts, "nvme1n1").is_empty());
    }

    #[test]
    fn a_disk_says_what_it_is() {
        let disk = Disk {
            name: "sda".to_owned(),
            model: Some("SPINNER".to_owned()),
            size_bytes: 1 << 40,
            rotates: Some(true),
            mounted: vec!["/data".to_owned()],
        };
        let found = disk_finding(&disk, |_| Some(3 << 30));
        assert_eq!(found.shown, "1.0 TiB hard disk (SPINNER), 3.0 GiB free on /data");
        assert!(found.costs.is_some());
        let solid = Disk { rotates: Some(false), model: None, mounted: Vec::new(), ..disk };
        let found = disk_finding(&solid, |_| None);
        assert_eq!((found.shown.as_str(), found.costs), ("1.0 TiB SSD", None));
    }
}
