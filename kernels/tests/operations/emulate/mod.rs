//! Software emulation of instructions that this processor lacks: a SIGILL handler decodes the few
//! that the AMX and AVX512-BF16 kernels contain, executes them as Intel's manual describes them,
//! and steps over them. The layouts, strides, tile shapes and tails of those kernels are therefore
//! tested unchanged on any machine with AVX-512. Speed is not, and neither are the roundings of a
//! real processor.
//!
//! Used only by tests. If the processor has an instruction there is no signal and it runs natively.
//! Any other illegal instruction keeps its meaning: the process dies of SIGILL.
#![allow(dead_code, reason = "each test binary uses its part")]

mod decode;
pub mod products;
mod tiles;
mod vectors;

use std::cell::Cell;
use std::sync::Once;

use decode::{Cursor, Prefix};

thread_local! {
    static EMULATED: Cell<u64> = const { Cell::new(0) };
}

/// Returns the number of instructions emulated on this thread so far: shows that a test exercised
/// the emulator.
pub fn emulated() -> u64 {
    EMULATED.get()
}

/// Enables emulation in every thread. Returns `false`, without any change, if it cannot: the
/// handler itself needs AVX-512 state in the signal frame.
pub fn install() -> bool {
    static ONCE: Once = Once::new();
    if !kernels::Variant::Avx512.is_available() {
        return false;
    }
    ONCE.call_once(|| {
        vectors::find_offsets();
        // SAFETY: `sigaction` is a plain structure for which zero means no flags and an empty mask;
        // the handler has the signature that SA_SIGINFO requires.
        unsafe {
            let mut action: libc::sigaction = std::mem::zeroed();
            action.sa_sigaction = on_illegal as *const () as usize;
            action.sa_flags = libc::SA_SIGINFO;
            let result = libc::sigaction(libc::SIGILL, &action, std::ptr::null_mut());
            assert_eq!(result, 0, "the handler is installed");
        }
    });
    true
}

/// The interrupted thread, as saved by the kernel.
pub(crate) struct Machine<'a>(&'a mut libc::mcontext_t);

impl Machine<'_> {
    /// Returns general register `number`, in the order of instruction encodings.
    pub(crate) fn register(&self, number: u8) -> u64 {
        const ORDER: [libc::c_int; 16] = [
            libc::REG_RAX,
            libc::REG_RCX,
            libc::REG_RDX,
            libc::REG_RBX,
            libc::REG_RSP,
            libc::REG_RBP,
            libc::REG_RSI,
            libc::REG_RDI,
            libc::REG_R8,
            libc::REG_R9,
            libc::REG_R10,
            libc::REG_R11,
            libc::REG_R12,
            libc::REG_R13,
            libc::REG_R14,
            libc::REG_R15,
        ];
        self.0.gregs[ORDER[usize::from(number)] as usize] as u64
    }

    fn instruction(&self) -> *const u8 {
        self.0.gregs[libc::REG_RIP as usize] as *const u8
    }

    fn step_to(&mut self, next: *const u8) {
        self.0.gregs[libc::REG_RIP as usize] = next as i64;
    }

    /// Returns the XSAVE area of vector registers.
    pub(crate) fn vector_state(&mut self) -> *mut u8 {
        self.0.fpregs.cast()
    }
}

extern "C" fn on_illegal(
    _signal: libc::c_int,
    _info: *mut libc::siginfo_t,
    context: *mut libc::c_void,
) {
    // SAFETY: the kernel passes the interrupted thread's context to a SA_SIGINFO handler, and no
    // other code uses it while the handler runs.
    let context = unsafe { &mut *context.cast::<libc::ucontext_t>() };
    let mut machine = Machine(&mut context.uc_mcontext);
    // SAFETY: the processor has fetched the instruction that starts here, and the cursor reads no
    // byte beyond it.
    let mut cursor = unsafe { Cursor::new(machine.instruction()) };
    let done = match cursor.prefix() {
        Some(Prefix::Vex(prefix)) => tiles::execute(&mut machine, &mut cursor, prefix),
        Some(Prefix::Evex(prefix)) => vectors::execute(&mut machine, &mut cursor, prefix),
        None => None,
    };
    match done {
        Some(()) => {
            machine.step_to(cursor.position());
            EMULATED.set(EMULATED.get() + 1);
        }
        // SAFETY: both calls may be made in a handler. The instruction is executed again and then
        // ends the process as it would have without the handler.
        None => unsafe {
            libc::signal(libc::SIGILL, libc::SIG_DFL);
        },
    }
}

/// Ends the process with a message: for conditions that a processor answers with an exception,
/// where silence would hide a wrong kernel.
pub(crate) fn refuse(sentence: &str) -> ! {
    // SAFETY: `write` and `abort` are among the few functions a signal handler may call; panicking
    // is not.
    unsafe {
        libc::write(2, sentence.as_ptr().cast(), sentence.len());
        libc::write(2, b"\n".as_ptr().cast(), 1);
        libc::abort()
    }
}

/// Returns kernels of `variant`, run natively if it is available and emulated if possible.
pub fn kernels(variant: kernels::Variant, threads: usize) -> Option<kernels::Kernels> {
    use kernels::Variant;
    let can_emulate = || matches!(variant, Variant::Avx512Bf16 | Variant::Amx) && install();
    if !(variant.is_available() || can_emulate()) {
        return None;
    }
    // SAFETY: the variant is available, or the handler that executes its instructions has been
    // installed for the whole process.
    let kernels =
        unsafe { kernels::Kernels::new_unchecked(variant, threads, crate::common::LIMITS) };
    Some(kernels.expect("threads start"))
}
