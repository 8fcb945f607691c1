//! Checks that the NUMA nodes named for a run's host memory exist and have enough free memory.

use std::fs;
use std::path::Path;

use program::plan::Plan;
use program::topology::{Holds, MemoryKind};
use protocol::messages::SegmentNodes;
use shm::nodes::listed;

use super::argument_error::ArgumentError;
use crate::session::Session;

/// Directory in which Linux describes NUMA nodes.
const NODES_DIR: &str = "/sys/devices/system/node";

/// Returns the NUMA nodes that the command line names, after checking them.
///
/// # Errors
/// A node that is missing, or that has too little free memory for the plan.
pub(super) fn validated_nodes(session: &Session<'_>, plan: &Plan) -> anyhow::Result<SegmentNodes> {
    let needed = |holds: Holds| -> u64 {
        let topology = &plan.topology;
        let segments = topology.segments().into_iter().filter(|segment| {
            segment.holds == holds && topology.memory_kind(segment.memory) == Some(MemoryKind::Dram)
        });
        segments.map(|segment| plan.segment_bytes(segment)).sum()
    };
    let root = Path::new(NODES_DIR);
    let nodes = &session.options.nodes;
    if root.is_dir() {
        check_free_memory(root, "--weights-nodes", &nodes.weights, needed(Holds::Weights))?;
        check_free_memory(root, "--kv-nodes", &nodes.kv, needed(Holds::Kv))?;
    }
    Ok(nodes.clone())
}

fn check_free_memory(
    root: &Path,
    flag: &str,
    nodes: &[u16],
    needed_bytes: u64,
) -> Result<(), ArgumentError> {
    let mut min_free_bytes = u64::MAX;
    for node in nodes {
        let Some(free_bytes) = free_bytes(&root.join(format!("node{node}"))) else {
            let online = fs::read_to_string(root.join("online")).unwrap_or_default();
            let online = online.trim();
            return Err(ArgumentError(format!(
                "{flag} {node}: this machine has no such NUMA node; it has {online}"
            )));
        };
        min_free_bytes = min_free_bytes.min(free_bytes);
    }
    // Pages are interleaved over the nodes, so the one with the least free memory limits each of
    // them.
    let capacity_bytes = min_free_bytes.saturating_mul(nodes.len() as u64);
    if !nodes.is_empty() && capacity_bytes < needed_bytes {
        return Err(ArgumentError(format!(
            "{flag} {}: {} are required, and {} are free; add nodes, or use smaller batches or a \
             smaller model",
            listed(nodes),
            format_gib(needed_bytes),
            format_gib(capacity_bytes),
        )));
    }
    Ok(())
}

fn format_gib(bytes: u64) -> String {
    format!("{:.1} GiB", bytes as f64 / (1u64 << 30) as f64)
}

/// Returns the bytes of a node that are free or hold file pages, which can be evicted. `None` if
/// there is no such node, or if it has no memory.
fn free_bytes(node: &Path) -> Option<u64> {
    let text = fs::read_to_string(node.join("meminfo")).ok()?;
    // Format of a line: "Node 0 MemFree:  1234 kB".
    let kib = |name: &str| -> u64 {
        let line = text.lines().find_map(|line| line.split_once(name));
        let number = line.and_then(|(_, rest)| rest.trim().split(' ').next()?.parse().ok());
        number.unwrap_or(0)
    };
    if kib("MemTotal:") == 0 {
        return None;
    }
    let files = kib("FilePages:").saturating_sub(kib("Shmem:"));
    Some((kib("MemFree:") + files) * 1024)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn machine() -> tempfile::TempDir {
        let folder = tempfile::tempdir().expect("a temporary folder");
        let node = |number: u16, meminfo: &str| {
            let path = folder.path().join(format!("node{number}"));
            fs::create_dir(&path).expect("writable");
            let lines = meminfo.lines().map(|line| format!("Node {number} {line} kB\n"));
            fs::write(path.join("meminfo"), lines.collect::<String>()).expect("writable");
        };
        node(0, "MemTotal:  8388608\nMemFree:   1048576\nFilePages: 3145728\nShmem: 1048576");
        node(1, "MemTotal:  8388608\nMemFree:   6291456\nFilePages: 0\nShmem: 0");
        node(2, "MemTotal:  0\nMemFree:   0");
        fs::write(folder.path().join("online"), "0-2\n").expect("writable");
        folder
    }

    #[test]
    fn free_memory_is_what_is_free_or_can_be_read_again() {
        let machine = machine();
        let free = |node: &str| free_bytes(&machine.path().join(node));
        assert_eq!([free("node0"), free("node1")], [Some(3 << 30), Some(6 << 30)]);
        assert_eq!([free("node2"), free("node3")], [None, None]);
    }

    #[test]
    fn what_is_missing_or_full_is_said_before_anything_loads() {
        let machine = machine();
        let refused = |nodes: &[u16], needed_bytes: u64| {
            let outcome = check_free_memory(machine.path(), "--kv-nodes", nodes, needed_bytes);
            outcome.err().map(|ArgumentError(sentence)| sentence)
        };
        assert_eq!(refused(&[], u64::MAX), None);
        assert_eq!((refused(&[1], 6 << 30), refused(&[0, 1], 6 << 30)), (None, None));
        let full = refused(&[0, 1], 7 << 30).expect("node 0 has 3 of its 3.5 GiB");
        assert!(full.contains("--kv-nodes 0, 1") && full.contains("7.0 GiB"), "{full}");
        assert!(full.contains("6.0 GiB are free"), "{full}");
        for missing in [2, 3] {
            let missing = refused(&[missing], 1).expect("no such node");
            assert!(missing.contains("it has 0-2"), "{missing}");
        }
    }
}
