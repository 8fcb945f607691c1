//! A launch: a kernel's name, its grid and block, and its parameters in order.

use std::ffi::c_void;

/// An address in device memory; 0 is "none".
pub type DevicePointer = u64;

/// Maximum number of parameters of a kernel.
pub const MAX_ARGS: usize = 20;

/// A kernel's parameters, each in a slot of eight bytes. Machines with CUDA are little-endian, so
/// the address of a slot is also that of the 32-bit number in it.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct KernelArgs {
    slots: [u64; MAX_ARGS],
    count: usize,
}

impl KernelArgs {
    pub(crate) fn new() -> KernelArgs {
        KernelArgs { slots: [0; MAX_ARGS], count: 0 }
    }

    fn push(mut self, slot: u64) -> KernelArgs {
        self.slots[self.count] = slot;
        self.count += 1;
        self
    }

    /// Adds a device address or another number of 64 bits.
    pub(crate) fn u64(self, value: u64) -> KernelArgs {
        self.push(value)
    }

    pub(crate) fn u32(self, value: u32) -> KernelArgs {
        self.push(u64::from(value))
    }

    pub(crate) fn f32(self, value: f32) -> KernelArgs {
        self.push(u64::from(value.to_bits()))
    }

    /// Returns the number of parameters.
    pub fn count(&self) -> usize {
        self.count
    }

    /// Returns the parameters, one in the low bytes of each word.
    pub fn slots(&self) -> &[u64] {
        &self.slots[..self.count]
    }

    /// Returns the `kernelParams` of `cuLaunchKernel`: the address of each parameter, the rest
    /// null. They point into `self`, which must not move until the launch has returned.
    pub fn pointers(&mut self) -> [*mut c_void; MAX_ARGS] {
        let mut pointers = [std::ptr::null_mut(); MAX_ARGS];
        for (pointer, slot) in pointers.iter_mut().zip(&mut self.slots).take(self.count) {
            *pointer = std::ptr::from_mut(slot).cast();
        }
        pointers
    }
}

/// One launch of a kernel of [`PTX`](crate::PTX). An empty one (see [`KernelLaunch::is_empty`])
/// must be omitted: the driver refuses a grid of 0 blocks.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct KernelLaunch {
    /// Name of the entry in the module.
    pub name: &'static str,
    /// Blocks in x, y and z.
    pub grid: [u32; 3],
    /// Threads of a block in x, y and z.
    pub block: [u32; 3],
    /// Bytes of dynamic shared memory, at most 48 KiB.
    pub shared_bytes: u32,
    pub args: KernelArgs,
}

impl KernelLaunch {
    /// Returns true if the grid has no blocks.
    pub fn is_empty(&self) -> bool {
        self.grid.contains(&0)
    }
}

/// Returns the number of warps of a block that take segments in turn: the minimum number of turns,
/// and no more warps than these need.
pub(crate) fn warps_of_segments(k: u32, max_warps: u32) -> u32 {
    let segments = k.div_ceil(512);
    segments.div_ceil(segments.div_ceil(max_warps))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn pointers_lead_to_the_parameters_in_order() {
        let mut args = KernelArgs::new().u64(1 << 40).u32(7).f32(1.5);
        assert_eq!((args.count(), args.slots()), (3, &[1 << 40, 7, 0x3fc0_0000][..]));
        let pointers = args.pointers();
        assert!(pointers[3..].iter().all(|pointer| pointer.is_null()));
        // SAFETY: needed to read like the driver; the pointers lead into `args`, which is alive.
        unsafe {
            assert_eq!(*pointers[0].cast::<u64>(), 1 << 40);
            assert_eq!(*pointers[1].cast::<u32>(), 7);
            assert_eq!(*pointers[2].cast::<f32>(), 1.5);
        }
    }
}
