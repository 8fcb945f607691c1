//! Operands next to inaccessible memory: a slice that starts right after a PROT_NONE page, or ends
//! right before one. An access beyond it ends the process, after a message that names the operand,
//! its end and the case.
#![allow(dead_code, reason = "each test binary uses its part")]

use std::cell::{Cell, RefCell};
use std::ptr::NonNull;
use std::sync::Once;

/// End of the slice that is at a forbidden page.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Side {
    Start,
    End,
}

pub const SIDES: [Side; 2] = [Side::Start, Side::End];

const MAX_REGIONS: usize = 32;

/// A mapping of this thread, including guard pages.
#[derive(Clone, Copy)]
struct Region {
    start: usize,
    end: usize,
    name: &'static str,
}

thread_local! {
    /// Regions that the handler names; a kernel with one thread faults on the thread that made the
    /// operands.
    static REGIONS: Cell<[Option<Region>; MAX_REGIONS]> = const { Cell::new([None; MAX_REGIONS]) };
    static CASE: RefCell<String> = const { RefCell::new(String::new()) };
}

/// Sets the case that the next accesses belong to.
pub fn set_case(case: String) {
    CASE.set(case);
}

/// A guarded slice; see the module header.
pub struct Guarded<T> {
    map: NonNull<u8>,
    map_bytes: usize,
    first: *mut T,
    len: usize,
}

fn page_bytes() -> usize {
    // SAFETY: reads a constant of the system.
    unsafe { libc::sysconf(libc::_SC_PAGESIZE) as usize }
}

impl<T: bytemuck::Pod> Guarded<T> {
    /// Copies `values` to guarded memory; `name` identifies it in the message.
    pub fn new(name: &'static str, side: Side, values: &[T]) -> Self {
        install();
        let (page, bytes) = (page_bytes(), size_of_val(values));
        let inner = bytes.next_multiple_of(page).max(page);
        let map_bytes = inner + 2 * page;
        // SAFETY: a new mapping at an address the system chooses; the middle of it is made
        // accessible. Both results are checked.
        let map = unsafe {
            let (private, none) = (libc::MAP_PRIVATE | libc::MAP_ANONYMOUS, libc::PROT_NONE);
            let map = libc::mmap(std::ptr::null_mut(), map_bytes, none, private, -1, 0);
            assert_ne!(map, libc::MAP_FAILED, "memory for a guarded operand");
            let open = libc::PROT_READ | libc::PROT_WRITE;
            assert_eq!(libc::mprotect(map.byte_add(page), inner, open), 0, "memory is opened");
            NonNull::new(map.cast::<u8>()).expect("a mapping has an address")
        };
        let offset = match side {
            Side::Start => page,
            Side::End => page + inner - bytes,
        };
        // SAFETY: the offset is within the accessible pages, of which `bytes` remain after it.
        let first = unsafe {
            let first = map.as_ptr().add(offset).cast::<T>();
            std::ptr::copy_nonoverlapping(values.as_ptr(), first, values.len());
            first
        };
        assert!(first.is_aligned());
        let start = map.as_ptr() as usize;
        let mut regions = REGIONS.get();
        let free = regions.iter_mut().find(|region| region.is_none()).expect("few operands");
        *free = Some(Region { start, end: start + map_bytes, name });
        REGIONS.set(regions);
        Guarded { map, map_bytes, first, len: values.len() }
    }

    pub fn slice(&self) -> &[T] {
        // SAFETY: `len` elements were copied there, and any bytes are a `T`.
        unsafe { std::slice::from_raw_parts(self.first, self.len) }
    }

    pub fn slice_mut(&mut self) -> &mut [T] {
        // SAFETY: as above, with an exclusive borrow.
        unsafe { std::slice::from_raw_parts_mut(self.first, self.len) }
    }
}

impl<T> Drop for Guarded<T> {
    fn drop(&mut self) {
        let start = self.map.as_ptr() as usize;
        let mut regions = REGIONS.get();
        for region in &mut regions {
            if region.is_some_and(|region| region.start == start) {
                *region = None;
            }
        }
        REGIONS.set(regions);
        // SAFETY: the mapping belongs to this value, and nothing borrows from it any more.
        unsafe { libc::munmap(self.map.as_ptr().cast(), self.map_bytes) };
    }
}

fn install() {
    static ONCE: Once = Once::new();
    ONCE.call_once(|| {
        // SAFETY: as for the emulator's handler: a zeroed structure and a matching signature.
        unsafe {
            let mut action: libc::sigaction = std::mem::zeroed();
            action.sa_sigaction = on_fault as *const () as usize;
            action.sa_flags = libc::SA_SIGINFO;
            let result = libc::sigaction(libc::SIGSEGV, &action, std::ptr::null_mut());
            assert_eq!(result, 0, "the handler is installed");
        }
    });
}

extern "C" fn on_fault(
    _signal: libc::c_int,
    info: *mut libc::siginfo_t,
    _context: *mut libc::c_void,
) {
    // SAFETY: the kernel passes the address that was accessed.
    let at = unsafe { (*info).si_addr() } as usize;
    let touched = |region: &Region| region.start <= at && at < region.end;
    if let Some(region) = REGIONS.get().into_iter().flatten().find(touched) {
        let before = at - region.start < page_bytes();
        write("guard page touched: operand ");
        write(region.name);
        write(if before { ", before its start, " } else { ", behind its end, " });
        CASE.with(|case| {
            if let Ok(case) = case.try_borrow() {
                write(&case);
            }
        });
        write("\n");
    }
    // SAFETY: the call may be made in a handler. The access is made again and then ends the
    // process.
    unsafe {
        libc::signal(libc::SIGSEGV, libc::SIG_DFL);
    }
}

fn write(text: &str) {
    // SAFETY: the bytes are valid, and `write` may be called in a handler.
    unsafe { libc::write(2, text.as_ptr().cast(), text.len()) };
}
