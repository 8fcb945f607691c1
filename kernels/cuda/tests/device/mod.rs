//! Shared by the tests: launches on the CPU through the shim, device addresses of slices.
#![allow(dead_code, reason = "each test binary uses its part")]

use bytemuck::Pod;
use cuda_kernels::{DevicePointer, Launch};
use cuda_shim::Fault;
use half::bf16;
use kernels::Element;
use model::config::Dtype;

/// The device address of a slice: with the shim, its own.
pub fn of<T>(slice: &[T]) -> DevicePointer {
    slice.as_ptr() as usize as u64
}

/// As [`of`], for what the kernel writes.
pub fn of_mut<T>(slice: &mut [T]) -> DevicePointer {
    slice.as_mut_ptr() as usize as u64
}

/// Runs launches in order.
pub fn try_run(launches: &[Launch]) -> Result<(), Fault> {
    for launch in launches {
        if launch.is_empty() {
            continue;
        }
        assert_eq!(
            cuda_shim::parameter_count(launch.name),
            launch.args.count(),
            "{} has as many parameters as its launch",
            launch.name
        );
        let mut args = launch.args;
        let mut pointers = args.pointers();
        // SAFETY: needed to run C++; the parameters are of the kernel's number, in slots of the
        // launch, and lead to slices of the test that outlive this call.
        unsafe {
            cuda_shim::launch(
                launch.name,
                launch.grid,
                launch.block,
                launch.shared_bytes,
                &mut pointers,
            )?;
        }
    }
    Ok(())
}

/// As [`try_run`], of which nothing may go wrong.
pub fn run(launches: &[Launch]) {
    if let Err(fault) = try_run(launches) {
        panic!("{}: {fault:?}", launches[0].name);
    }
}

/// The dtype that `T` is.
pub fn dtype<T: Element>() -> Dtype {
    if size_of::<T>() == 2 { Dtype::Bf16 } else { Dtype::F32 }
}

/// Elements behind every output, that no kernel may touch.
const GUARD: usize = 64;

/// An output of NaN with a guard behind it.
pub struct Output<T> {
    values: Vec<T>,
}

impl<T: Element + Pod> Output<T> {
    pub fn new(len: usize) -> Self {
        Output { values: vec![T::from_f32(f32::NAN); len + GUARD] }
    }

    /// Values to begin with, for what is updated in place.
    pub fn holding(values: &[T]) -> Self {
        let mut output = Output::new(values.len());
        output.values[..values.len()].copy_from_slice(values);
        output
    }

    pub fn pointer(&mut self) -> DevicePointer {
        of_mut(&mut self.values)
    }

    /// What was written, once it is sure that nothing was written behind it.
    pub fn take(self) -> Vec<T> {
        let mut values = self.values;
        let guard = values.split_off(values.len() - GUARD);
        assert!(guard.iter().all(|value| value.to_f32().is_nan()), "written behind the output");
        values
    }
}

/// Both element types, for tests that are generic.
pub type Half = bf16;
