//! The door: arguments in, exit code out. Everything else is in the library beside it.

use std::io::Write;
use std::process::ExitCode;

use coordinator::cli::{Refusal, parse};
use coordinator::exit::Exit;

fn main() -> ExitCode {
    let (text, exit, to_stdout) = match parse(std::env::args_os()) {
        // What runs a command is not part of this build yet, and saying so beats pretending.
        Ok(_) => {
            let text = "coordinator: this build only reads its command line; it has no engine.\n";
            (text.to_owned(), Exit::Failure, false)
        }
        Err(Refusal::Told(text)) => (text, Exit::Done, true),
        Err(Refusal::Wrong(text, exit)) => (text, exit, false),
    };
    // A closed stdout or stderr leaves nobody to tell.
    let _ = if to_stdout {
        std::io::stdout().write_all(text.as_bytes())
    } else {
        std::io::stderr().write_all(text.as_bytes())
    };
    exit.into()
}
