//! The workers' device lanes over the stand-in driver: tokens equal the CPU's in f32, for every
//! placement and any order in which streams run, and any refusal of the driver results in an error.

mod case;
mod counts;
mod deep;
mod families;
mod faults;
mod harness;
mod models;
mod orders;
mod overlap;
mod owners;
mod placements;
mod products;

use workers::alloc_counter::CountingAllocator;

#[global_allocator]
static ALLOCATOR: CountingAllocator = CountingAllocator;

/// Entry point of a worker process of the tests, not a test of its own.
#[test]
#[ignore = "started by the other tests, with a channel"]
fn worker_child() {
    let Ok(number) = std::env::var(harness::CHANNEL_VARIABLE) else {
        println!("SKIP worker_child: it runs only as a child of the other tests");
        return;
    };
    let number = number.parse().expect("a descriptor");
    // SAFETY: the number was inherited for this call, and nothing else here owns it.
    let code = unsafe { workers::worker_main::worker_main(number, &harness::open_dummy) };
    #[expect(clippy::disallowed_methods, clippy::exit, reason = "the harness has its own codes")]
    std::process::exit(i32::from(code));
}
