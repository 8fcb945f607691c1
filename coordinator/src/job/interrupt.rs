//! SIGINT and SIGTERM: the first asks, the second insists.

use std::io;
use std::sync::Arc;

use shm::sync::{AtomicBool, Ordering};
use signal_hook::consts::{SIGINT, SIGTERM};
use signal_hook::flag;

use crate::exit::Exit;

/// Whether the run was asked to end. Cheap to clone and to ask.
#[derive(Debug, Clone, Default)]
pub struct Interrupt {
    asked: Arc<AtomicBool>,
}

impl Interrupt {
    /// An interrupt that only [`Interrupt::ask`] sets.
    pub fn new() -> Interrupt {
        Interrupt::default()
    }

    /// Listens to SIGINT and SIGTERM. The first of either sets the flag; the next ends the process
    /// at once with code 130 (the workers die with their parent).
    ///
    /// # Errors
    /// What the system says to installing a handler.
    pub fn install() -> io::Result<Interrupt> {
        let interrupt = Interrupt::new();
        for signal in [SIGINT, SIGTERM] {
            // Registered first, so that it runs first and sees the flag of an earlier signal only.
            let code = i32::from(Exit::Interrupted.code());
            flag::register_conditional_shutdown(signal, code, Arc::clone(&interrupt.asked))?;
            flag::register(signal, Arc::clone(&interrupt.asked))?;
        }
        Ok(interrupt)
    }

    /// Whether the run was asked to end.
    pub fn asked(&self) -> bool {
        // Relaxed: the flag orders nothing, it is looked at again soon.
        self.asked.load(Ordering::Relaxed)
    }

    /// Asks the run to end, as a first signal would.
    pub fn ask(&self) {
        self.asked.store(true, Ordering::Relaxed);
    }
}
