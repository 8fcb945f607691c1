//! The PCIe link of a device.

use std::fmt;
use std::path::Path;

/// Generation and width of a PCIe link.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct PcieLink {
    pub generation: u32,
    /// Number of lanes.
    pub width: u32,
}

impl fmt::Display for PcieLink {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}.0 x{}", self.generation, self.width)
    }
}

/// State of the link to be reported.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum LinkState {
    /// The current state. An idle device may lower its generation, never its width.
    Current,
    /// The maximum that device and slot support.
    Maximum,
}

impl PcieLink {
    /// Reads the link from the system's files, for machines without NVML. `root` is `/`, `bus` is
    /// in the notation of [`crate::DeviceInfo::bus`]. `None` if the files do not contain it.
    pub fn from_sysfs(root: &Path, bus: &str, at: LinkState) -> Option<PcieLink> {
        let folder = root.join("sys/bus/pci/devices").join(bus.to_lowercase());
        let prefix = match at {
            LinkState::Current => "current",
            LinkState::Maximum => "max",
        };
        let text = |name: &str| std::fs::read_to_string(folder.join(format!("{prefix}_{name}")));
        let speed = text("link_speed").ok()?;
        let width = text("link_width").ok()?.trim().parse().ok()?;
        Some(PcieLink { generation: generation(speed.split_whitespace().next()?)?, width })
    }
}

/// Returns the generation of a rate in GT/s, as formatted by the system.
fn generation(rate: &str) -> Option<u32> {
    let rates = ["2.5", "5.0", "8.0", "16.0", "32.0", "64.0"];
    let place =
        rates.iter().position(|known| *known == rate || known.trim_end_matches(".0") == rate);
    place.map(|place| place as u32 + 1)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_system_says_what_a_link_is() {
        let root = tempfile::tempdir().expect("a folder");
        let folder = root.path().join("sys/bus/pci/devices/0000:3b:00.0");
        std::fs::create_dir_all(&folder).expect("a folder");
        for (name, text) in [
            ("current_link_speed", "8.0 GT/s PCIe\n"),
            ("current_link_width", "8\n"),
            ("max_link_speed", "16.0 GT/s PCIe\n"),
            ("max_link_width", "16\n"),
        ] {
            std::fs::write(folder.join(name), text).expect("a file");
        }
        let link =
            |at| PcieLink::from_sysfs(root.path(), "0000:3B:00.0", at).map(|l| l.to_string());
        assert_eq!(link(LinkState::Current).as_deref(), Some("3.0 x8"));
        assert_eq!(link(LinkState::Maximum).as_deref(), Some("4.0 x16"));
        std::fs::write(folder.join("max_link_speed"), "Unknown\n").expect("a file");
        assert_eq!(link(LinkState::Maximum), None);
        assert_eq!(PcieLink::from_sysfs(root.path(), "0000:00:00.0", LinkState::Current), None);
        assert_eq!(generation("5"), Some(2));
    }
}
