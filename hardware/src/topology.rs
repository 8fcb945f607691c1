//! Cores, caches and memory, read through hwloc and restricted to what this process may use.

use hwlocality::Topology as Hwloc;
use hwlocality::object::TopologyObject;
use hwlocality::object::attributes::ObjectAttributes;
use hwlocality::object::types::ObjectType;
use rustix::thread::{CpuSet, sched_getaffinity};
use serde::{Deserialize, Serialize};

/// Error of reading the topology.
#[derive(Debug, thiserror::Error)]
pub enum CpuTopologyError {
    /// hwloc failed.
    #[error("The machine's cores and caches cannot be read through hwloc: {0}.")]
    Hwloc(String),
    /// The system does not report the CPUs on which this process may run.
    #[error("The system does not report which CPUs this process may use: {0}.")]
    Affinity(#[source] std::io::Error),
    /// The affinity mask excludes all CPUs.
    #[error("hwloc found no core among the CPUs that this process may use.")]
    NoCore,
}

/// A physical core, with the hardware threads that this process may use.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Core {
    /// Hardware threads in the system's numbering, ascending; never empty.
    pub cpus: Vec<usize>,
    /// Index into [`CpuTopology::packages`].
    pub package: usize,
    /// Index into [`CpuTopology::l3`]; `None` without an L3 cache, or if the system hides it.
    pub l3: Option<usize>,
    /// Index into [`CpuTopology::numa_nodes`]; `None` if hwloc finds no memory near the core.
    pub numa_node: Option<usize>,
    /// Size of the L1 data cache; 0 if unknown.
    pub l1d_bytes: u64,
    /// Size of the L2 cache; 0 if unknown. Shared if [`Core::l2_cores`] is above 1.
    pub l2_bytes: u64,
    /// Number of cores that share the L2 cache, including this one.
    pub l2_cores: usize,
}

/// A processor package (socket).
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Package {
    /// Name reported by the processor; empty if unknown.
    pub model: String,
}

/// A cache shared by several cores.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct SharedCache {
    /// Size; 0 if unknown.
    pub size_bytes: u64,
}

/// A NUMA node: memory attached to one memory controller.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct NumaNode {
    /// Number assigned by the system.
    pub os_index: usize,
    /// Size of the memory; 0 if unknown.
    pub memory_bytes: u64,
}

/// The part of the machine that this process may use: excludes CPUs outside its affinity mask and
/// its cgroup, and cores without any usable CPU.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct CpuTopology {
    /// Cores in hardware order: adjacent ones share caches.
    pub cores: Vec<Core>,
    pub packages: Vec<Package>,
    pub l3: Vec<SharedCache>,
    pub numa_nodes: Vec<NumaNode>,
}

/// Order in which threads are placed on cores.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Serialize, Deserialize)]
pub enum ThreadPlacement {
    /// Adjacent cores first: threads share caches and a memory controller.
    Packed,
    /// Round-robin over L3 domains: threads share as little as possible, and a few of them already
    /// use every memory channel.
    Spread,
}

impl CpuTopology {
    /// Reads the topology of this machine.
    ///
    /// # Errors
    /// Fails if hwloc or the system fails, or if no core is usable by this process.
    pub fn read() -> Result<CpuTopology, CpuTopologyError> {
        let hwloc = Hwloc::new().map_err(|error| CpuTopologyError::Hwloc(error.to_string()))?;
        let mask =
            sched_getaffinity(None).map_err(|errno| CpuTopologyError::Affinity(errno.into()))?;
        CpuTopology::from_hwloc(&hwloc, |cpu| cpu < CpuSet::MAX_CPU && mask.is_set(cpu))
    }

    /// Returns the part of `hwloc` whose CPUs are `allowed`.
    pub(crate) fn from_hwloc(
        hwloc: &Hwloc,
        allowed: impl Fn(usize) -> bool,
    ) -> Result<CpuTopology, CpuTopologyError> {
        let numa_nodes: Vec<&TopologyObject> =
            hwloc.objects_with_type(ObjectType::NUMANode).collect();
        let mut cores = Vec::new();
        for object in hwloc.objects_with_type(ObjectType::Core) {
            let cpus: Vec<usize> = cpus_of(object).filter(|cpu| allowed(*cpu)).collect();
            if cpus.is_empty() {
                continue;
            }
            let cache = |kind| object.first_ancestor_with_type(kind);
            let l2 = cache(ObjectType::L2Cache);
            let near = |node: &&TopologyObject| cpus_of(node).any(|cpu| cpu == cpus[0]);
            cores.push(Core {
                package: index_of(object, ObjectType::Package).unwrap_or(0),
                l3: index_of(object, ObjectType::L3Cache),
                numa_node: numa_nodes.iter().position(near),
                l1d_bytes: cache(ObjectType::L1Cache).map_or(0, cache_bytes),
                l2_bytes: l2.map_or(0, cache_bytes),
                l2_cores: l2.map_or(1, |l2| cores_inside(hwloc, l2)),
                cpus,
            });
        }
        if cores.is_empty() {
            return Err(CpuTopologyError::NoCore);
        }
        let mut packages: Vec<Package> = hwloc
            .objects_with_type(ObjectType::Package)
            .map(|package| Package { model: info(package, "CPUModel") })
            .collect();
        if packages.is_empty() {
            packages.push(Package { model: String::new() });
        }
        let l3 = hwloc.objects_with_type(ObjectType::L3Cache);
        Ok(CpuTopology {
            cores,
            packages,
            l3: l3.map(|cache| SharedCache { size_bytes: cache_bytes(cache) }).collect(),
            numa_nodes: numa_nodes.into_iter().map(numa_node).collect(),
        })
    }

    /// Returns the CPUs in the order in which compute threads use them: the first hardware thread
    /// of every core, then the siblings, since siblings share the units that kernels keep busy.
    pub fn cpus(&self, placement: ThreadPlacement) -> Vec<usize> {
        let order = match placement {
            ThreadPlacement::Packed => (0..self.cores.len()).collect(),
            ThreadPlacement::Spread => self.spread(),
        };
        let siblings_max = self.cores.iter().map(|core| core.cpus.len()).max().unwrap_or(0);
        (0..siblings_max)
            .flat_map(|sibling| order.iter().map(move |core| (*core, sibling)))
            .filter_map(|(core, sibling)| self.cores[core].cpus.get(sibling).copied())
            .collect()
    }

    /// Returns the number of hardware threads that this process may use.
    pub fn cpu_count(&self) -> usize {
        self.cores.iter().map(|core| core.cpus.len()).sum()
    }

    /// Returns the cores in the order: first of each L3 domain, second of each, and so on. Domains
    /// alternate between packages.
    fn spread(&self) -> Vec<usize> {
        let mut rank_in_domain = std::collections::BTreeMap::new();
        let mut rank_of_domain = std::collections::BTreeMap::new();
        let mut keyed: Vec<_> = (0..self.cores.len())
            .map(|index| {
                let core = &self.cores[index];
                let domain = (core.package, core.l3);
                let domains_before = rank_of_domain
                    .range((core.package, None)..domain)
                    .filter(|(other, _)| **other != domain)
                    .count();
                rank_of_domain.entry(domain).or_insert(());
                let rank = rank_in_domain.entry(domain).or_insert(0usize);
                *rank += 1;
                (*rank, domains_before, core.package, index)
            })
            .collect();
        keyed.sort_unstable();
        keyed.into_iter().map(|(.., index)| index).collect()
    }
}

fn cpus_of(object: &TopologyObject) -> impl Iterator<Item = usize> + '_ {
    object.cpuset().into_iter().flat_map(|set| set.iter_set().map(usize::from).collect::<Vec<_>>())
}

/// Returns the index of the ancestor of type `kind` among all objects of its type.
fn index_of(object: &TopologyObject, kind: ObjectType) -> Option<usize> {
    object.first_ancestor_with_type(kind).map(TopologyObject::logical_index)
}

fn cores_inside(hwloc: &Hwloc, cache: &TopologyObject) -> usize {
    hwloc.objects_with_type(ObjectType::Core).filter(|core| core.is_in_subtree(cache)).count()
}

fn cache_bytes(object: &TopologyObject) -> u64 {
    match object.attributes() {
        Some(ObjectAttributes::Cache(cache)) => cache.size().map_or(0, u64::from),
        _ => 0,
    }
}

fn numa_node(object: &TopologyObject) -> NumaNode {
    let memory_bytes = match object.attributes() {
        Some(ObjectAttributes::NUMANode(node)) => node.local_memory().map_or(0, u64::from),
        _ => 0,
    };
    NumaNode { os_index: object.os_index().unwrap_or(0), memory_bytes }
}

fn info(object: &TopologyObject, key: &str) -> String {
    object.info(key).map(|text| text.to_string_lossy().into_owned()).unwrap_or_default()
}
