//! Tests on machines described in hwloc's synthetic notation, and on the machine that runs the
//! test.

use std::collections::BTreeSet;

use hwlocality::Topology as Hwloc;
use rustix::thread::sched_getaffinity;

use crate::{CpuTopology, CpuTopologyError, ThreadPlacement, features};

fn synthetic(description: &str) -> Hwloc {
    Hwloc::builder().from_synthetic(description).unwrap().build().unwrap()
}

fn topology(description: &str) -> CpuTopology {
    CpuTopology::from_hwloc(&synthetic(description), |_| true).unwrap()
}

/// Two packages with two L3 domains each, two cores per domain, two hardware threads per core.
const SERVER: &str = "pack:2 [numa(memory=68719476736)] l3:2(size=33554432) l2:2(size=1048576) \
                      l1d:1(size=49152) core:1 pu:2";

#[test]
fn cores_know_their_caches_packages_and_nodes() {
    let server = topology(SERVER);
    assert_eq!(server.cores.len(), 8);
    assert_eq!((server.packages.len(), server.l3.len(), server.numa_nodes.len()), (2, 4, 2));
    assert_eq!(server.cpu_count(), 16);
    assert!(server.l3.iter().all(|cache| cache.size_bytes == 32 << 20));
    assert!(server.numa_nodes.iter().all(|node| node.memory_bytes == 64 << 30));
    for (index, core) in server.cores.iter().enumerate() {
        assert_eq!(core.cpus, [2 * index, 2 * index + 1]);
        assert_eq!(core.package, index / 4);
        assert_eq!(core.numa_node, Some(index / 4));
        assert_eq!(core.l3, Some(index / 2));
        assert_eq!((core.l1d_bytes, core.l2_bytes, core.l2_cores), (48 << 10, 1 << 20, 1));
    }
}

#[test]
fn every_core_comes_before_any_sibling() {
    let server = topology(SERVER);
    let packed = server.cpus(ThreadPlacement::Packed);
    assert_eq!(packed, [0, 2, 4, 6, 8, 10, 12, 14, 1, 3, 5, 7, 9, 11, 13, 15]);
    let spread = server.cpus(ThreadPlacement::Spread);
    // The first cores of the L3 domains 0, 2 (of the other package), 1, 3; then their second cores.
    assert_eq!(spread, [0, 8, 4, 12, 2, 10, 6, 14, 1, 9, 5, 13, 3, 11, 7, 15]);
}

#[test]
fn what_the_process_may_not_use_is_left_out() {
    let server = synthetic(SERVER);
    // One thread of core 0, all of core 5.
    let part = CpuTopology::from_hwloc(&server, |cpu| [1, 10, 11].contains(&cpu)).unwrap();
    assert_eq!(part.cpus(ThreadPlacement::Packed), [1, 10, 11]);
    assert_eq!(part.cpus(ThreadPlacement::Spread), [1, 10, 11]);
    let none = CpuTopology::from_hwloc(&server, |_| false);
    assert!(matches!(none, Err(CpuTopologyError::NoCore)));
}

#[test]
fn a_machine_without_caches_or_packages_has_cores() {
    let plain = topology("core:3 pu:1");
    assert_eq!(plain.cores.len(), 3);
    assert_eq!(plain.packages.len(), 1);
    assert!(plain.l3.is_empty() && plain.cores.iter().all(|core| core.l3.is_none()));
    assert_eq!(plain.cpus(ThreadPlacement::Spread), [0, 1, 2]);
}

#[test]
fn cores_that_share_an_l2_say_so() {
    let hybrid = topology("l3:1 l2:2(size=2097152) core:4 pu:1");
    assert!(hybrid.cores.iter().all(|core| core.l2_cores == 4 && core.l2_bytes == 2 << 20));
}

#[test]
fn this_machine_has_what_the_system_allows() {
    let here = CpuTopology::read().unwrap();
    let allowed = sched_getaffinity(None).unwrap();
    for placement in [ThreadPlacement::Packed, ThreadPlacement::Spread] {
        let cpus = here.cpus(placement);
        let distinct: BTreeSet<usize> = cpus.iter().copied().collect();
        assert_eq!(distinct.len(), cpus.len());
        assert!(cpus.iter().all(|cpu| allowed.is_set(*cpu)));
        assert_eq!(cpus.len(), here.cpu_count());
    }
    assert!(here.cores.iter().all(|core| core.package < here.packages.len()));
}

#[test]
fn features_imply_what_they_build_on() {
    let found = features();
    let has = |name| found.contains(&name);
    assert!(!has("avx2") || has("avx"));
    assert!(!has("avx512bw") || has("avx512f"));
    assert!(!has("amx_bf16") || has("amx_tile"));
}
