//! Model check of a run: every interleaving of the caller and one pool thread, with a model of the
//! futex. A lost wake-up shows as a deadlock; a thread that accesses a run's job, or data that its
//! tasks borrow, after the run's end shows as a race on a cell.
//!
//! Run with `RUSTFLAGS="--cfg loom" cargo test -p kernels --release --lib loom`.

use loom::sync::Arc;
use loom::thread;
use shm::futex;
use shm::sync::{AtomicU32, Ordering, UnsafeCell};

use super::rendezvous::Rendezvous;

/// One value per task, checked by loom: two accesses that race fail the model.
#[derive(Debug)]
struct Cells(Vec<UnsafeCell<u32>>);

// SAFETY: needed to share the cells between model threads; loom itself checks that no two accesses
// race.
unsafe impl Sync for Cells {}

impl Cells {
    fn new(count: usize) -> Cells {
        Cells((0..count).map(|_| UnsafeCell::new(0)).collect())
    }

    fn add(&self, index: usize) {
        // SAFETY: needed to write the cell; loom reports a race if another thread accesses it.
        self.0[index].with_mut(|cell| unsafe { *cell += 1 });
    }

    fn values(&self) -> Vec<u32> {
        // SAFETY: needed to read the cells; loom reports a race if another thread writes one.
        self.0.iter().map(|cell| cell.with(|cell| unsafe { *cell })).collect()
    }
}

fn check(preemptions_max: impl Into<Option<usize>>, case: impl Fn() + Send + Sync + 'static) {
    let mut model = loom::model::Builder::new();
    model.preemption_bound = preemptions_max.into();
    model.check(case);
}

fn start(rendezvous: &Arc<Rendezvous>, thread: usize) -> thread::JoinHandle<()> {
    let rendezvous = Arc::clone(rendezvous);
    thread::spawn(move || rendezvous.serve(thread))
}

/// Performs runs of `tasks` tasks each on `threads` threads; as soon as a run has returned, reads
/// everything its tasks wrote and drops everything they borrowed.
fn runs(threads: usize, tasks: &[usize]) {
    let rendezvous = Arc::new(Rendezvous::new(threads));
    let workers: Vec<_> = (1..threads).map(|thread| start(&rendezvous, thread)).collect();
    for &tasks in tasks {
        let (cells, scratch) = (Cells::new(tasks), Cells::new(threads));
        rendezvous.run(threads, tasks, &|task, thread| {
            cells.add(task);
            scratch.add(thread);
        });
        assert_eq!(cells.values(), vec![1; tasks]);
        assert_eq!(scratch.values().iter().sum::<u32>(), tasks as u32);
    }
    rendezvous.stop();
    for worker in workers {
        worker.join().unwrap();
    }
}

#[test]
fn loom_one_run_of_two_threads() {
    check(3, || runs(2, &[2]));
}

#[test]
fn loom_a_thread_helps_with_what_another_left() {
    check(3, || runs(2, &[3]));
}

#[test]
fn loom_no_thread_of_a_run_is_left_in_the_next() {
    check(3, || runs(2, &[2, 2]));
}

#[test]
fn loom_three_threads() {
    check(2, || runs(3, &[3]));
}

#[test]
fn loom_a_run_that_needs_its_other_thread_gets_it() {
    // The two tasks meet: if the sleeping thread were not woken, the caller would wait for ever.
    check(3, || {
        let rendezvous = Arc::new(Rendezvous::new(2));
        let worker = start(&rendezvous, 1);
        let arrived = AtomicU32::new(0);
        rendezvous.run(2, 2, &|_, _| {
            let before = arrived.fetch_add(1, Ordering::AcqRel);
            if before == 0 {
                while arrived.load(Ordering::Acquire) < 2 {
                    futex::wait(&arrived, 1, None);
                }
            } else {
                futex::wake(&arrived, futex::EVERYONE);
            }
        });
        rendezvous.stop();
        worker.join().unwrap();
    });
}
