//! The workers' device lanes over the stand-in driver: the same tokens as on the CPU in f32, for
//! every placement, whatever the order in which streams run; and an error for whatever the driver
//! refuses.

mod case;
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

use workers::counting::CountingAllocator;

#[global_allocator]
static ALLOCATOR: CountingAllocator = CountingAllocator;

/// Not a test of its own: what a worker process of the tests runs.
#[test]
#[ignore = "started by the other tests, with a channel"]
fn worker_child() {
    let Ok(number) = std::env::var(harness::CHANNEL_VARIABLE) else {
        println!("SKIP worker_child: it runs only as a child of the other tests");
        return;
    };
    let number = number.parse().expect("a descriptor");
    // SAFETY: the number was inherited for this call, and nothing else here owns it.
    let code = unsafe { workers::roles::worker_main(number, &harness::open_dummy) };
    #[expect(clippy::disallowed_methods, clippy::exit, reason = "the harness has its own codes")]
    std::process::exit(i32::from(code));
}
