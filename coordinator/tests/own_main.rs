//! The `main` of tests whose workers are started from the test's own program, as the engine starts
//! them from the coordinator: it is a worker where it is asked to be one, and lists and runs the
//! tests as test runners ask otherwise.

use std::process::ExitCode;

use coordinator::setup::model::open_weights;

/// A test with its name.
pub type Test = (&'static str, fn());

/// What the program does.
pub fn main(tests: &[Test]) -> ExitCode {
    let args: Vec<String> = std::env::args().skip(1).collect();
    if let [first, _, channel] = &args[..]
        && first == "worker"
    {
        let channel = channel.parse().expect("the number of a channel");
        // SAFETY: needed to take over the inherited channel. The engine passes its number to this
        // process alone, and nothing has opened or closed descriptors before.
        return ExitCode::from(unsafe { workers::roles::worker_main(channel, &open_weights) });
    }
    let is_given = |flag: &str| args.iter().any(|arg| arg == flag);
    if is_given("--list") {
        // Runners ask for the ignored ones too: there are none.
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
