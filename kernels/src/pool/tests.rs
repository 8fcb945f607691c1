//! Tests that every task runs once, on one thread at a time, for all numbers of threads, limits and
//! spin durations.

use std::time::Duration;

use rustix::thread::sched_getaffinity;
use shm::sync::{AtomicBool, AtomicUsize, Ordering};

use super::{PoolOptions, ThreadPool};

fn pool(threads: usize, spin: Duration) -> ThreadPool {
    ThreadPool::with_options(&PoolOptions { spin, ..PoolOptions::unpinned(threads) }).unwrap()
}

#[test]
fn every_task_runs_exactly_once_in_thousands_of_short_runs() {
    for threads in [1, 2, 3, 8] {
        for spin in [Duration::ZERO, Duration::from_micros(20)] {
            let pool = pool(threads, spin);
            let counts: Vec<AtomicUsize> = (0..67).map(|_| AtomicUsize::new(0)).collect();
            for round in 0..2_000usize {
                let (tasks, limit) = (round % 68, round % 9);
                pool.run_on(limit, tasks, &|task, thread| {
                    assert!(thread < limit.clamp(1, threads));
                    counts[task].fetch_add(1, Ordering::Relaxed);
                });
                for (task, count) in counts.iter().enumerate() {
                    let expected = usize::from(task < tasks);
                    assert_eq!(count.swap(0, Ordering::Relaxed), expected, "{threads} {task}");
                }
            }
        }
    }
}

#[test]
fn no_two_tasks_share_a_thread_index_at_a_time_and_plain_writes_are_visible() {
    for spin in [Duration::ZERO, Duration::from_micros(50)] {
        let pool = pool(4, spin);
        let busy: Vec<AtomicBool> = (0..4).map(|_| AtomicBool::new(false)).collect();
        let mut slots = vec![0u64; 64];
        for round in 1..500u64 {
            let base = slots.as_mut_ptr() as usize;
            pool.run(64, &|task, thread| {
                assert!(!busy[thread].swap(true, Ordering::Relaxed));
                // SAFETY: each task writes its own slot of a vector that outlives the run.
                unsafe { *(base as *mut u64).add(task) += round };
                busy[thread].store(false, Ordering::Relaxed);
            });
            assert!(slots.iter().all(|slot| *slot == round * (round + 1) / 2));
        }
    }
}

#[test]
fn a_thread_that_waits_for_another_in_its_task_is_joined() {
    // Two tasks that meet: a pool that ran both on one thread would never return.
    let pool = pool(2, Duration::ZERO);
    for _ in 0..200 {
        let arrived = AtomicUsize::new(0);
        pool.run(2, &|_, _| {
            arrived.fetch_add(1, Ordering::AcqRel);
            while arrived.load(Ordering::Acquire) < 2 {
                std::thread::yield_now();
            }
        });
    }
}

#[test]
fn work_left_by_a_slow_thread_is_taken_by_the_others() {
    let pool = pool(2, Duration::ZERO);
    let (others, tasks) = (AtomicUsize::new(0), 20);
    // Task 0 lasts until all others are done, including those of its own range.
    pool.run(tasks, &|task, _| {
        if task == 0 {
            while others.load(Ordering::Acquire) < tasks - 1 {
                std::thread::yield_now();
            }
        } else {
            others.fetch_add(1, Ordering::AcqRel);
        }
    });
    assert_eq!(others.load(Ordering::Relaxed), tasks - 1);
}

#[test]
fn pinned_threads_run_on_their_cpus() {
    let allowed = sched_getaffinity(None).unwrap();
    let cpus: Vec<usize> = (0..1024).filter(|cpu| allowed.is_set(*cpu)).collect();
    let threads = cpus.len().min(4);
    let options = PoolOptions { threads, cpus, spin: Duration::ZERO };
    // On a separate thread, because the caller is pinned too.
    let pool_options = options.clone();
    std::thread::spawn(move || {
        let pool = ThreadPool::with_options(&pool_options).unwrap();
        let started = AtomicUsize::new(0);
        pool.run(threads, &|_, thread| {
            // Each task waits for the last to start, so each thread has one task.
            started.fetch_add(1, Ordering::AcqRel);
            while started.load(Ordering::Acquire) < threads {
                std::thread::yield_now();
            }
            let set = sched_getaffinity(None).unwrap();
            assert_eq!(set.count(), 1);
            assert!(set.is_set(pool_options.cpus[thread]), "thread {thread}");
        });
    })
    .join()
    .unwrap();
}

#[test]
fn a_cpu_that_is_not_there_is_an_error() {
    let beyond = PoolOptions { cpus: vec![0, usize::MAX], ..PoolOptions::unpinned(2) };
    assert!(ThreadPool::with_options(&beyond).is_err());
    let offline = PoolOptions { cpus: vec![0, 1023], ..PoolOptions::unpinned(2) };
    if sched_getaffinity(None).unwrap().is_set(1023) {
        println!("SKIP a_cpu_that_is_not_there_is_an_error: this machine has CPU 1023");
        return;
    }
    assert!(ThreadPool::with_options(&offline).is_err());
}
