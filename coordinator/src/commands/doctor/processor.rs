//! Cores, caches, NUMA nodes and the instruction sets that processor and system both permit.

use hardware::{CpuTopology, features};
use kernels::Variant;
use serde_json::json;

use super::{Finding, format_size};

pub(super) fn findings() -> Vec<Finding> {
    let mut found = match CpuTopology::read() {
        Ok(topology) => topology_findings(&topology),
        Err(error) => vec![
            Finding::new(
                "topology",
                "cores and caches",
                serde_json::Value::Null,
                error.to_string(),
            )
            .costs_unless(false, "threads are not pinned, so they may share cores"),
        ],
    };
    found.extend(instruction_findings(&features()));
    let best = Variant::best().name();
    found.push(Finding::new("kernels", "kernels in use", best, best.to_owned()));
    found
}

fn topology_findings(topology: &CpuTopology) -> Vec<Finding> {
    let cores = topology.cores.len();
    let threads = topology.cpu_count();
    let model = topology.packages.first().map_or("", |package| package.model.as_str());
    let shown = if model.is_empty() { "unknown" } else { model };
    let mut found = vec![
        Finding::new("model", "model", model, shown.to_owned()),
        Finding::new("cores", "cores", cores, cores.to_string()).costs_unless(
            cores > 1,
            "computation and data transfers share one core and hardly overlap",
        ),
        Finding::new("hardware_threads", "hardware threads", threads, threads.to_string()),
    ];
    let l2 = topology.cores.iter().map(|core| core.l2_bytes).max().unwrap_or(0);
    found.push(Finding::new("l2_bytes", "L2 cache of a core", l2, format_memory(l2)));
    let l3: u64 = topology.l3.iter().map(|cache| cache.size_bytes).sum();
    let domains = topology.l3.len();
    let shown = match domains {
        0 | 1 => format_memory(l3),
        _ => format!("{} in {domains} domains", format_memory(l3)),
    };
    found.push(Finding::new("l3_bytes", "L3 cache", l3, shown).costs_unless(
        l3 > 0,
        "there is none, or the system hides it, so threads are placed without considering it",
    ));
    let nodes = topology.numa_nodes.len().max(1);
    found.push(Finding::new("numa_nodes", "NUMA nodes", nodes, nodes.to_string()).costs_unless(
        nodes == 1,
        "weights are stored on the node that loaded them, and threads of other nodes read them \
         through the interconnect; --weights-nodes and --kv-nodes choose the nodes, and \
         interleave memory over several",
    ));
    if nodes > 1 {
        found.push(node_memory_finding(topology));
    }
    found
}

/// Returns the finding for the memory of each node and its number of cores.
fn node_memory_finding(topology: &CpuTopology) -> Finding {
    let nodes = topology.numa_nodes.iter().enumerate().map(|(index, node)| {
        let cores = topology.cores.iter().filter(|core| core.numa_node == Some(index)).count();
        (node, cores)
    });
    let node_values = nodes.clone().map(|(node, cores)| {
        let (node, memory_bytes) = (node.os_index, node.memory_bytes);
        json!({"node": node, "memory_bytes": memory_bytes, "cores": cores})
    });
    let shown = nodes.map(|(node, cores)| {
        let size = format_memory(node.memory_bytes);
        format!("node {}: {size}, {cores} cores", node.os_index)
    });
    let shown = shown.collect::<Vec<_>>().join("; ");
    Finding::new("numa_memory", "memory of nodes", node_values.collect::<Vec<_>>(), shown)
}

fn format_memory(bytes: u64) -> String {
    if bytes == 0 { "unknown".to_owned() } else { format_size(bytes) }
}

/// Returns findings for instruction sets. `features` are those that processor and system permit.
fn instruction_findings(features: &[&str]) -> Vec<Finding> {
    let has = |names: &[&str]| names.iter().all(|name| features.contains(name));
    let amx = has(&["amx_tile", "amx_bf16", "amx_int8"]);
    let granted = Variant::Amx.is_available();
    let mut found = vec![
        Finding::for_feature(
            "avx2",
            "AVX2, FMA and F16C",
            has(&["avx2", "fma", "f16c"]),
            "kernels run in portable code, many times slower",
        ),
        Finding::for_feature(
            "avx512",
            "AVX-512 F, BW, DQ and VL",
            has(&["avx512f", "avx512bw", "avx512dq", "avx512vl"]),
            "vectors are half as wide, which slows prefill and large batches",
        ),
        Finding::for_feature(
            "avx512_vnni",
            "AVX512-VNNI",
            has(&["avx512_vnni"]),
            "attention over a 4-bit cache takes more instructions for the same products",
        ),
        Finding::for_feature(
            "avx512_bf16",
            "AVX512-BF16",
            has(&["avx512_bf16"]),
            "bf16 is converted to f32 before it is multiplied, about half the arithmetic of large \
             batches",
        ),
    ];
    let costs = if amx {
        "the processor has it, but Linux does not permit tile data to this process"
    } else {
        "prefill and large batches on the CPU use vector instead of tile instructions"
    };
    found.push(Finding::for_feature("amx_bf16", "AMX-BF16, permitted", amx && granted, costs));
    found
}

#[cfg(test)]
mod tests {
    use hardware::{Core, CpuTopology, NumaNode, Package};
    use serde_json::json;

    use super::{instruction_findings, topology_findings};

    /// Returns a topology of two sockets and a memory expander without cores.
    fn server() -> CpuTopology {
        let core = |cpu, node| Core {
            cpus: vec![cpu],
            package: node,
            l3: None,
            numa_node: Some(node),
            l1d_bytes: 0,
            l2_bytes: 0,
            l2_cores: 1,
        };
        let node = |os_index| NumaNode { os_index, memory_bytes: 64 << 30 };
        CpuTopology {
            cores: vec![core(0, 0), core(1, 0), core(2, 1)],
            packages: vec![Package { model: "x".to_owned() }; 2],
            l3: Vec::new(),
            numa_nodes: vec![node(0), node(1), node(4)],
        }
    }

    #[test]
    fn nodes_are_told_with_their_cores() {
        let found = topology_findings(&server());
        let memory =
            found.iter().find(|finding| finding.name == "numa_memory").expect("three nodes");
        assert_eq!(memory.value[2], json!({"node": 4, "memory_bytes": 64u64 << 30, "cores": 0}));
        assert!(memory.shown.starts_with("node 0: 64.0 GiB, 2 cores; node 1:"), "{}", memory.shown);
        let mut single_node = server();
        single_node.numa_nodes.truncate(1);
        assert!(
            topology_findings(&single_node).iter().all(|finding| finding.name != "numa_memory")
        );
    }

    #[test]
    fn what_is_missing_costs_and_what_is_there_does_not() {
        let names = |features: &[&str]| -> Vec<&str> {
            let found = instruction_findings(features);
            found.iter().filter(|f| f.costs.is_none()).map(|f| f.name).collect()
        };
        assert!(names(&[]).is_empty());
        assert_eq!(names(&["avx2", "fma", "f16c", "avx512f"]), ["avx2"]);
        let all = ["avx2", "fma", "f16c", "avx512f", "avx512bw", "avx512dq", "avx512vl"];
        assert_eq!(names(&all), ["avx2", "avx512"]);
        assert_eq!(names(&["avx512_bf16", "avx512_vnni"]), ["avx512_vnni", "avx512_bf16"]);
    }
}
