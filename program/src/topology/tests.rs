//! Topologies by hand.

use super::*;

#[test]
fn the_names_of_the_canonical_ids_are_those_of_the_lanes() {
    let topology = Topology::with_device();
    topology.check().expect("a topology");
    let names = [
        (LaneId::CPU_COMPUTE, "cpu.compute"),
        (LaneId::CPU_APPEND, "cpu.append"),
        (LaneId::GPU_COMPUTE, "gpu.compute"),
        (LaneId::GPU_DECOMPRESS, "gpu.decompress"),
        (LaneId::H2D_WEIGHTS, "h2d.weights"),
        (LaneId::H2D_ACTIVATIONS, "h2d.activations"),
        (LaneId::D2H, "d2h"),
    ];
    assert_eq!(topology.lanes.len(), names.len());
    for (id, name) in names {
        assert_eq!(topology.lane_name(id), name);
    }
    let workers = [WorkerId::CPU, WorkerId::GPU, WorkerId::TRANSFER];
    let roles = workers.map(|id| topology.worker(id).role);
    assert_eq!(roles, [Role::Cpu, Role::Gpu, Role::Transfer]);
    assert_eq!((topology.host(), topology.device()), (MemoryId::DRAM, Some(MemoryId::VRAM)));
    let alone = Topology::cpu_alone();
    assert_eq!(alone.lanes[..], topology.lanes[..2]);
    assert_eq!((alone.host(), alone.device()), (MemoryId::DRAM, None));
}

#[test]
fn only_the_transfer_worker_maps_both_sides() {
    let topology = Topology::with_device();
    let maps = |worker| [MemoryId::DRAM, MemoryId::VRAM].map(|id| topology.maps(worker, id));
    assert_eq!(maps(WorkerId::CPU), [true, false]);
    assert_eq!(maps(WorkerId::GPU), [false, true]);
    assert_eq!(maps(WorkerId::TRANSFER), [true, true]);
}

#[test]
fn a_storage_has_a_worker_and_a_lane() {
    let mut topology = Topology::with_device();
    let added = [topology.add_storage(), topology.add_storage()];
    topology.check().expect("a topology");
    assert_eq!(added, [MemoryId(3), MemoryId(4)]);
    assert_eq!((topology.workers.len(), topology.lanes.len()), (5, 9));
    assert_eq!(topology.lane_name(LaneId(8)), "nvme1.read");
    assert_eq!(topology.lanes_of(WorkerId(4)), [LaneId(8)]);
    assert!(topology.maps(WorkerId(4), added[1]) && !topology.maps(WorkerId(4), added[0]));
    assert_eq!(topology.segments().len(), 6);
}

#[test]
fn a_further_memory_of_the_host_is_mapped_by_who_computes_and_who_copies() {
    let mut topology = Topology::with_device();
    let added = [topology.add_slow_tier(), topology.add_slow_tier()];
    topology.check().expect("a topology");
    assert_eq!(
        [topology.slow_tier(0), topology.slow_tier(1), topology.slow_tier(2)],
        [Some(added[0]), Some(added[1]), None]
    );
    assert_eq!(topology.host(), MemoryId::DRAM);
    assert_eq!(added.map(|id| topology.slow_tier_index(id)), [Some(0), Some(1)]);
    assert_eq!(topology.slow_tier_index(MemoryId::DRAM), None);
    let maps = |worker| topology.maps(worker, added[1]);
    assert_eq!([WorkerId::CPU, WorkerId::GPU, WorkerId::TRANSFER].map(maps), [true, false, true]);
    assert_eq!(
        (MemoryId::slow_tier(1).slow_tier_index(), MemoryId::STORAGES.slow_tier_index()),
        (Some(1), None)
    );
    assert!(topology.memories.len() < usize::from(MemoryId::slow_tier(1).0));
}

#[test]
fn ids_of_what_is_not_there_are_refused() {
    let mut topology = Topology::cpu_alone();
    topology.lanes[1].worker = WorkerId(7);
    assert!(matches!(topology.check(), Err(TopologyError::NoWorker { worker: 7, .. })));
    let mut topology = Topology::cpu_alone();
    topology.workers[0].memories.push(MemoryId(9));
    assert!(matches!(topology.check(), Err(TopologyError::NoMemory { memory: 9, .. })));
    let mut topology = Topology::cpu_alone();
    topology.memories.remove(0);
    assert_eq!(topology.check(), Err(TopologyError::NoControl));
    let mut topology = Topology::cpu_alone();
    (0..LANES_MAX).for_each(|_| {
        topology.add_storage();
    });
    assert_eq!(topology.check(), Err(TopologyError::TooManyLanes { count: 66 }));
}

#[test]
fn a_set_has_room_for_every_lane() {
    let all: LaneSet = (0..LANES_MAX as u8).map(LaneId).collect();
    let last = LaneId(LANES_MAX as u8 - 1);
    assert!(all.contains(last) && !all.without(last).contains(last));
    assert!(all.intersects(LaneSet::EMPTY.with(last)));
    assert_eq!(all.iter().collect::<LaneSet>(), all);
    let some = LaneSet::EMPTY.with(LaneId(2)).with(last);
    assert_eq!(all.without(LaneId(2)).within(some).iter().collect::<Vec<_>>(), [last]);
    assert!(!all.without(last).intersects(LaneSet::EMPTY.with(last)));
}

#[test]
fn the_table_knows_who_does_what() {
    let from = |lane, work| rule(lane, work).map(|rule| rule.from);
    assert_eq!(from(LaneKind::Read, WorkKind::Read), Some(&[MemoryKind::Storage][..]));
    assert_eq!(from(LaneKind::Read, WorkKind::CopyWeights), None);
    assert_eq!(from(LaneKind::Download, WorkKind::CopyWeights), None);
    assert_eq!(from(LaneKind::Append, WorkKind::Compute), None);
    assert_eq!(MemoryKind::Vram.segment(Holds::Kv), Some(Holds::Arena));
    assert_eq!(MemoryKind::Storage.segment(Holds::Kv), None);
}
