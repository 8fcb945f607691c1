//! The driver's state behind one lock, and the checks that every call passes.

use std::cell::Cell;
use std::collections::{BTreeSet, HashMap};
use std::io::Write;
use std::sync::{Mutex, MutexGuard, PoisonError};

use crate::code;
use crate::cufile_state::CuFileState;
use crate::memory::MemoryRanges;
use crate::objects::CublasObject;
use crate::ptx::Entry;
use crate::settings::settings;
use crate::streams::StreamTable;

/// Codes after which a real device refuses everything until the process ends.
const STICKY_ERRORS: [u32; 6] = [214, 700, 702, 715, 716, 719];

#[derive(Debug, Default)]
pub(crate) struct DriverState {
    pub(crate) ranges: MemoryRanges,
    pub(crate) streams: StreamTable,
    /// Kernels by handle; a handle is the index plus one.
    pub(crate) functions: Vec<Entry>,
    /// Kernels of each module, as a range of `functions`; a handle is the index plus one.
    pub(crate) modules: Vec<std::ops::Range<usize>>,
    /// Handles of functions that are loaded.
    loaded: BTreeSet<usize>,
    /// Shapes of products, width and depth, whose code is loaded.
    loaded_products: BTreeSet<(usize, usize)>,
    /// Objects of cuBLASLt, by handle.
    pub(crate) objects: Vec<CublasObject>,
    /// State of cuFile.
    pub(crate) direct: CuFileState,
    calls: HashMap<&'static str, u64>,
    /// Number of waits for words so far.
    pub(crate) waits: u64,
    /// Number of launches so far.
    pub(crate) launches: u64,
    /// Number of times that the context is retained.
    pub(crate) contexts: u64,
    sticky_error: Option<u32>,
}

static STATE: Mutex<Option<DriverState>> = Mutex::new(None);

thread_local! {
    static CURRENT: Cell<bool> = const { Cell::new(false) };
}

/// Sets whether the calling thread has a context.
pub(crate) fn set_current(current: bool) {
    CURRENT.set(current);
}

/// The held lock; waits release it and take it again.
pub(crate) struct StateGuard(MutexGuard<'static, Option<DriverState>>);

impl std::ops::Deref for StateGuard {
    type Target = DriverState;
    fn deref(&self) -> &DriverState {
        self.0.as_ref().unwrap_or_else(|| unreachable!("made by `hold`"))
    }
}

impl std::ops::DerefMut for StateGuard {
    fn deref_mut(&mut self) -> &mut DriverState {
        self.0.as_mut().unwrap_or_else(|| unreachable!("made by `hold`"))
    }
}

pub(crate) fn lock_state() -> StateGuard {
    let mut guard = STATE.lock().unwrap_or_else(PoisonError::into_inner);
    guard.get_or_insert_with(DriverState::default);
    StateGuard(guard)
}

impl DriverState {
    /// Records a failure of the device.
    pub(crate) fn fail(&mut self, code: u32) {
        if STICKY_ERRORS.contains(&code) {
            self.sticky_error.get_or_insert(code);
        }
    }

    /// Loads a function unless it is loaded.
    pub(crate) fn load(&mut self, function: usize) -> Result<(), u32> {
        if settings().loads_lazily && !self.loaded.contains(&function) {
            self.wait_until_idle()?;
            self.loaded.insert(function);
        }
        Ok(())
    }

    /// Loads the code of a product's shape unless it is loaded.
    pub(crate) fn load_product(&mut self, shape: (usize, usize)) -> Result<(), u32> {
        if settings().loads_lazily && !self.loaded_products.contains(&shape) {
            self.wait_until_idle()?;
            self.loaded_products.insert(shape);
        }
        Ok(())
    }

    pub(crate) fn sticky(&self) -> Option<u32> {
        self.sticky_error
    }

    /// Counts a call of `name`; returns the code of an injected failure as an error.
    fn count(&mut self, name: &'static str) -> Result<(), u32> {
        let count = self.calls.entry(name).or_default();
        *count += 1;
        if let Some(failure) = &settings().failure
            && failure.function == name
            && failure.nth == *count
        {
            self.fail(failure.code);
            return Err(failure.code);
        }
        Ok(())
    }
}

/// Writes a line to the log, if there is one.
pub(crate) fn log(name: &str) {
    let Some(path) = &settings().log else { return };
    let file = std::fs::File::options().create(true).append(true).open(path);
    // A test that reads the log notices missing lines.
    let _ = file.and_then(|mut file| file.write_all(format!("{name}\n").as_bytes()));
}

/// Begins a call that requires no context.
pub(crate) fn enter(name: &'static str) -> Result<StateGuard, u32> {
    log(name);
    let mut state = lock_state();
    state.count(name)?;
    Ok(state)
}

/// Begins a call on the device: it requires a context, fails after a sticky failure, and may find
/// that queued work has run meanwhile.
pub(crate) fn enter_device(name: &'static str) -> Result<StateGuard, u32> {
    let mut state = enter(name)?;
    if !CURRENT.get() {
        return Err(code::INVALID_CONTEXT);
    }
    state.pass_time();
    match state.sticky() {
        Some(code) => Err(code),
        None => Ok(state),
    }
}
