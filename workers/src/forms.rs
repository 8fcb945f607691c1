//! The thread that compiles forms of answers while a run serves.

use std::sync::Arc;
use std::time::Duration;

use grammar::{Compiler, Grammars};
use rustix::event::{PollFd, PollFlags, poll};
use rustix::time::Timespec;
use shm::{Channel, Timeline};

use crate::messages::{receive, send};
use crate::shared::forms::ReadyForms;
use crate::shared::protocol::{FromWorker, ToWorker};

/// Between two looks at whether the lanes have ended.
const SLICE: Duration = Duration::from_millis(200);

/// Compiles what the coordinator sends until `lanes` lanes have ended, which `ended` counts, or the
/// channel has.
pub(crate) fn compile_all(
    channel: &Channel,
    grammars: &Grammars,
    ready: &Arc<ReadyForms>,
    (ended, lanes): (&Timeline, u32),
) {
    // The tables of the vocabulary are made when the first form comes.
    let mut compiler = None;
    while ended.value() < lanes {
        if !is_readable(channel) {
            continue;
        }
        match receive(channel) {
            Ok((ToWorker::Form { number, form }, _)) => {
                let compiler = compiler.get_or_insert_with(|| Compiler::new(grammars));
                let compiled = match compiler {
                    Ok(compiler) => compiler.compile(form).map_err(|error| error.to_string()),
                    Err(error) => Err(error.to_string()),
                };
                let failure = compiled.map(|form| ready.keep(number, form)).err();
                let _ = send(channel, &FromWorker::FormReady { number, failure }, &[]);
            }
            Ok((ToWorker::Forget { number }, _)) => ready.forget(number),
            // The coordinator has ended, which the lanes see too.
            _ => return,
        }
    }
}

/// Waits a little for a message. Allocates nothing.
fn is_readable(channel: &Channel) -> bool {
    let slice = Timespec::try_from(SLICE).unwrap_or_default();
    let mut polled = [PollFd::new(channel, PollFlags::IN)];
    matches!(poll(&mut polled, Some(&slice)), Ok(1..))
}
