//! Tests of the shim itself: the errors that it must report, and the correctness of its barriers,
//! copies and tensor-core step.

mod device;

use cuda_shim::{LaunchFault, drop_barrier, kernel_names, launch, set_order};
use device::{of, of_mut};
use half::bf16;

fn start(
    name: &str,
    grid: u32,
    threads: u32,
    shared_bytes: u32,
    slots: &mut [u64],
) -> Result<(), LaunchFault> {
    let mut pointers: Vec<_> =
        slots.iter_mut().map(|slot| std::ptr::from_mut(slot).cast()).collect();
    // SAFETY: needed to run C++; every slot holds a parameter of the self-test, and addresses among
    // them are of slices that outlive the call.
    unsafe { launch(name, [grid, 1, 1], [threads, 1, 1], shared_bytes, &mut pointers) }
}

fn neighbours(stride: u64) -> Result<bool, LaunchFault> {
    let mut out = vec![0u32; 3 * 64];
    start("selftest_neighbours", 3, 64, 256, &mut [of_mut(&mut out), stride])?;
    Ok((0u32..).zip(&out).all(|(i, out)| *out == i % 64 + (i + 1) % 64))
}

#[test]
fn a_barrier_is_kept_in_every_order_and_its_absence_shows() {
    for seed in 0..20 {
        set_order(seed);
        assert_eq!(neighbours(8), Ok(true), "order {seed}");
    }
    let sites = cuda_shim::barrier_sites();
    assert_eq!(sites.len(), 1);
    drop_barrier(Some(sites[0]));
    let wrong = (0..4).filter(|seed| {
        set_order(*seed);
        neighbours(8) != Ok(true)
    });
    assert!(wrong.count() > 0, "a removed barrier is not noticed in any order");
    drop_barrier(None);
    set_order(0);
    assert_eq!(neighbours(8), Ok(true));
}

#[test]
fn a_wrong_stride_shows() {
    // Within the shared memory, but in another row.
    assert_eq!(neighbours(7), Ok(false));
    assert_eq!(neighbours(0), Ok(false));
}

#[test]
fn divergence_ends_in_an_error_and_the_next_launch_works() {
    let mut out = vec![0u32; 64];
    let pointer = of_mut(&mut out);
    for seed in 0..5 {
        set_order(seed);
        let faults = ["divergent_barrier", "other_barrier", "divergent_shuffle"].map(|name| {
            let threads = if name == "divergent_shuffle" { 32 } else { 64 };
            start(&format!("selftest_{name}"), 1, threads, 0, &mut [pointer])
        });
        let barrier = Err(LaunchFault::DivergentBarrier);
        assert_eq!(faults, [barrier, barrier, Err(LaunchFault::DivergentWarp)]);
        assert_eq!(neighbours(8), Ok(true));
    }
}

#[test]
fn a_write_behind_the_shared_memory_is_an_error() {
    let mut out = vec![0u32; 32];
    let pointer = of_mut(&mut out);
    let write = |words| start("selftest_shared_overrun", 1, 32, 128, &mut [pointer, words]);
    assert_eq!(write(31), Ok(()));
    assert_eq!(write(32), Err(LaunchFault::SharedOverrun));
}

#[test]
fn copies_come_no_earlier_than_they_are_waited_for() {
    let from: Vec<u32> = (0..128).collect();
    let mut out = vec![0u32; 128];
    let pointers = [of(&from), of_mut(&mut out)];
    start("selftest_copy", 1, 32, 512, &mut [pointers[0], pointers[1], 1]).expect("runs");
    assert_eq!(from, out);
    start("selftest_copy", 1, 32, 512, &mut [pointers[0], pointers[1], 0]).expect("runs");
    assert!(out.iter().all(|word| *word == u32::MAX), "shared memory begins as garbage");
    let result = start("selftest_misaligned_copy", 1, 32, 1024, &mut [pointers[0], pointers[1]]);
    assert_eq!(result, Err(LaunchFault::Misaligned));
}

#[test]
fn the_tensor_cores_twin_multiplies() {
    let value = |i: usize| bf16::from_f32((i * 37 % 64) as f32 / 8.0 - 4.0);
    let a: Vec<bf16> = (0..16 * 16).map(value).collect();
    let b: Vec<bf16> = (0..8 * 16).map(|i| value(3 * i + 1)).collect();
    let mut out = vec![f32::NAN; 16 * 8];
    let slots = &mut [of(&a), of(&b), of_mut(&mut out)];
    start("selftest_multiply", 1, 32, 0, slots).expect("runs");
    for (i, out) in out.iter().enumerate() {
        let (row, column) = (i / 8, i % 8);
        let product = |k: usize| a[row * 16 + k].to_f32() * b[column * 16 + k].to_f32();
        assert_eq!(*out, (0..16).map(product).sum::<f32>(), "row {row} column {column}");
    }
}

#[test]
fn bad_launches_are_refused() {
    let mut out = vec![0u32; 64];
    let pointer = of_mut(&mut out);
    let neighbours =
        |threads, shared| start("selftest_neighbours", 1, threads, shared, &mut [pointer, 8]);
    assert_eq!(neighbours(0, 256), Err(LaunchFault::BadShape));
    assert_eq!(neighbours(33, 256), Err(LaunchFault::BadShape));
    assert_eq!(
        neighbours(128, 256),
        Err(LaunchFault::BadShape),
        "more threads than it was compiled for"
    );
    assert_eq!(neighbours(64, (48 << 10) + 1), Err(LaunchFault::BadShape));
    assert_eq!(start("no_such_kernel", 1, 32, 0, &mut []), Err(LaunchFault::UnknownKernel));
    assert_eq!(start("selftest\0", 1, 32, 0, &mut []), Err(LaunchFault::UnknownKernel));
}

#[test]
fn host_threads_launch_at_once() {
    std::thread::scope(|scope| {
        for seed in 0..4 {
            scope.spawn(move || {
                set_order(seed);
                for _ in 0..50 {
                    assert_eq!(neighbours(8), Ok(true));
                }
            });
        }
    });
}

#[test]
fn the_committed_ptx_has_the_kernels_that_the_shim_runs() {
    let mut entries: Vec<&str> = cuda_kernels::PTX
        .split(".visible .entry ")
        .skip(1)
        .map(|entry| entry.split('(').next().unwrap_or_default())
        .collect();
    let mut kernels = kernel_names();
    kernels.retain(|name| !name.starts_with("selftest_"));
    entries.sort_unstable();
    kernels.sort_unstable();
    assert!(entries.len() > 50, "only {} kernels in the PTX", entries.len());
    assert_eq!(entries, kernels, "run scripts/ptx.sh and commit what it makes");
    assert!(
        cuda_kernels::PTX.contains(".version 8.0\n.target sm_80"),
        "any driver from 525 takes it"
    );
}
