//! The `main` of tests that start their workers from the test's own program, as the engine starts
//! them from the coordinator. With the arguments of a worker it runs that worker; otherwise it
//! lists and runs the tests like a test harness.

use std::process::ExitCode;

use session::model::open_weights;

/// Name and function of a test.
pub type Test = (&'static str, fn());

/// Runs a worker, or lists or runs the tests, depending on the arguments.
pub fn main(tests: &[Test]) -> ExitCode {
    let args: Vec<String> = std::env::args().skip(1).collect();
    if let [first, _, channel] = &args[..]
        && first == "worker"
    {
        let channel = channel.parse().expect("the number of a channel");
        // SAFETY: needed to take over the inherited channel. The engine passes its number to this
        // process alone, and nothing has opened or closed descriptors before.
        return ExitCode::from(unsafe {
            workers::worker_main::worker_main(channel, &open_weights)
        });
    }
    let is_given = |flag: &str| args.iter().any(|arg| arg == flag);
    if is_given("--list") {
        // Runners also list the ignored tests: there are none.
        let listed = tests.iter().filter(|_| !is_given("--ignored"));
        listed.for_each(|(name, _)| println!("{name}: test"));
        return ExitCode::SUCCESS;
    }
    let filters: Vec<&String> = args.iter().filter(|arg| !arg.starts_with('-')).collect();
    let is_chosen =
        |name: &str| filters.is_empty() || filters.iter().any(|part| name.contains(*part));
    for (name, test) in tests.iter().filter(|(name, _)| is_chosen(name)) {
        test();
        println!("test {name} ... ok");
    }
    ExitCode::SUCCESS
}
