//! The only access to atomics: the standard library's, or loom's models of them under `cfg(loom)`.
//!
//! Used by every module here and by every crate that needs an atomic; `clippy.toml` bans the
//! originals elsewhere, so that everything that waits or publishes can be model-checked. The types
//! are aliases and not re-exports, because the ban looks through a re-export.
#![allow(
    clippy::disallowed_types,
    reason = "this file is the one place that names the banned types"
)]

#[cfg(not(loom))]
mod real {
    pub use std::sync::atomic::{Ordering, fence};

    /// See [`std::sync::atomic::AtomicU32`].
    pub type AtomicU32 = std::sync::atomic::AtomicU32;
    /// See [`std::sync::atomic::AtomicU64`].
    pub type AtomicU64 = std::sync::atomic::AtomicU64;
    /// See [`std::sync::atomic::AtomicUsize`].
    pub type AtomicUsize = std::sync::atomic::AtomicUsize;
    /// See [`std::sync::atomic::AtomicBool`]. Not for shared memory: a peer could write a byte that
    /// is no `bool`.
    pub type AtomicBool = std::sync::atomic::AtomicBool;

    pub use std::hint::spin_loop;

    /// A cell whose accesses loom checks for races; transparent outside loom.
    #[derive(Debug)]
    #[repr(transparent)]
    pub struct UnsafeCell<T>(std::cell::UnsafeCell<T>);

    impl<T> UnsafeCell<T> {
        /// Wraps a value.
        pub const fn new(value: T) -> Self {
            Self(std::cell::UnsafeCell::new(value))
        }

        /// Calls `f` with a pointer for reading; nothing may write the cell meanwhile.
        #[inline]
        pub fn with<R>(&self, f: impl FnOnce(*const T) -> R) -> R {
            f(self.0.get())
        }

        /// Calls `f` with a pointer for writing; nothing else may access the cell meanwhile.
        #[inline]
        pub fn with_mut<R>(&self, f: impl FnOnce(*mut T) -> R) -> R {
            f(self.0.get())
        }
    }
}

#[cfg(loom)]
mod real {
    pub use loom::cell::UnsafeCell;
    pub use loom::hint::spin_loop;
    pub use loom::sync::atomic::{Ordering, fence};

    /// Loom's model of the standard type.
    pub type AtomicU32 = loom::sync::atomic::AtomicU32;
    /// Loom's model of the standard type.
    pub type AtomicU64 = loom::sync::atomic::AtomicU64;
    /// Loom's model of the standard type.
    pub type AtomicUsize = loom::sync::atomic::AtomicUsize;
    /// Loom's model of the standard type.
    pub type AtomicBool = loom::sync::atomic::AtomicBool;
}

pub use real::*;
