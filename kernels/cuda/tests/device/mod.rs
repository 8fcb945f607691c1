//! Helpers of the tests: launches on the CPU through the shim, device addresses of slices.
#![allow(dead_code, reason = "each test binary uses its part")]

use bytemuck::Pod;
use cuda_kernels::{DevicePointer, KernelLaunch};
use cuda_shim::LaunchFault;
use half::bf16;
use kernels::Element;
use model::config::Dtype;

/// Returns the device address of a slice: with the shim, its own.
pub fn of<T>(slice: &[T]) -> DevicePointer {
    slice.as_ptr() as usize as u64
}

/// Returns the device address of a slice that the kernel writes.
pub fn of_mut<T>(slice: &mut [T]) -> DevicePointer {
    slice.as_mut_ptr() as usize as u64
}

/// Runs launches in order.
pub fn try_run(launches: &[KernelLaunch]) -> Result<(), LaunchFault> {
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
        // SAFETY: needed to run C++; the launch has a slot for each of the kernel's parameters, and
        // these lead to slices of the test that outlive this call.
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

/// Runs launches in order, and panics if one fails.
pub fn run(launches: &[KernelLaunch]) {
    if let Err(fault) = try_run(launches) {
        panic!("{}: {fault:?}", launches[0].name);
    }
}

/// Returns the dtype of `T`.
pub fn dtype<T: Element>() -> Dtype {
    if size_of::<T>() == 2 { Dtype::Bf16 } else { Dtype::F32 }
}

/// Number of elements after every output that no kernel may write.
const GUARD: usize = 64;

/// An output of NaN, followed by a guard.
pub struct Output<T> {
    values: Vec<T>,
}

impl<T: Element + Pod> Output<T> {
    pub fn new(len: usize) -> Self {
        Output { values: vec![T::from_f32(f32::NAN); len + GUARD] }
    }

    /// Returns an output with initial values, for operations that update in place.
    pub fn holding(values: &[T]) -> Self {
        let mut output = Output::new(values.len());
        output.values[..values.len()].copy_from_slice(values);
        output
    }

    pub fn pointer(&mut self) -> DevicePointer {
        of_mut(&mut self.values)
    }

    /// Returns the output after checking that the guard is unchanged.
    pub fn take(self) -> Vec<T> {
        let mut values = self.values;
        let guard = values.split_off(values.len() - GUARD);
        assert!(guard.iter().all(|value| value.to_f32().is_nan()), "written behind the output");
        values
    }
}

/// bf16 under a name that parallels `f32` in generic tests.
pub type Half = bf16;
