//! Refusals of the planner, with their numbers.

use model::config::Dtype;
use program::compile::CompileError;
use program::plan::RunShape;

use super::bytes::{Budget, MemoryLimits, PROCESS_OVERHEAD_BYTES};

/// Reason for which no plan was made.
#[derive(Debug, thiserror::Error)]
pub enum PlanError {
    #[error(transparent)]
    Compile(#[from] CompileError),
    #[error(
        "{model} has an operation ({op}) that the kernels for CUDA devices do not support, and \
         this placement runs it on the device: use a placement that runs it on the CPU (--split, \
         --policy cpu-only), or --device none"
    )]
    NotOnDevice {
        model: String,
        /// Name of the operation.
        op: &'static str,
    },
    #[error(
        "{}",
        does_not_fit_message(.model, .shape, .budget, .limits, *.fitting, *.has_storages)
    )]
    DoesNotFit {
        model: String,
        shape: Box<RunShape>,
        budget: Box<Budget>,
        limits: Box<MemoryLimits>,
        fitting: Option<u16>,
        /// True if weights are read from storages; the budget is then what stays in memory.
        has_storages: bool,
    },
}

fn gib(bytes: u64) -> f64 {
    bytes as f64 / (1u64 << 30) as f64
}

fn does_not_fit_message(
    model: &str,
    shape: &RunShape,
    budget: &Budget,
    limits: &MemoryLimits,
    fitting: Option<u16>,
    has_storages: bool,
) -> String {
    let lacks_vram = limits.vram_bytes.is_some_and(|vram| budget.device_bytes > vram);
    let (even_so, weights) = match has_storages && !lacks_vram {
        true => (
            " even where weights are read from storages in every step",
            "resident weights, and slots for reads,",
        ),
        false => ("", "weights"),
    };
    let slow_tier_bytes: u64 = budget.slow_tier_bytes.iter().sum();
    let far = match slow_tier_bytes {
        0 => String::new(),
        _ => format!(" plus {:.2} in further memory", gib(slow_tier_bytes)),
    };
    let mut text = format!(
        "{model} with {}x{} sequences of up to {} positions needs {:.2} GiB of memory{even_so} \
         ({weights} {:.2}{far}, KV {:.2}, activations {:.2}, device {:.2}, the processes \
         themselves {:.2}), ",
        shape.batches,
        shape.batch_size,
        shape.max_context,
        gib(budget.dram_bytes(limits)),
        gib(budget.weights_bytes),
        gib(budget.kv_bytes),
        gib(budget.activations_bytes),
        gib(budget.device_bytes),
        gib(budget.tables_bytes + PROCESS_OVERHEAD_BYTES),
    );
    match limits.vram_bytes {
        Some(vram) if lacks_vram => {
            text += &format!("but the device has {:.2} GiB", gib(vram));
        }
        _ => text += &format!("but {:.2} GiB are available", gib(limits.dram_bytes)),
    }
    text += &match fitting {
        Some(batch) => format!("; --batches {}x{batch} fits", shape.batches),
        None if lacks_vram => {
            "; not even one sequence fits the device: use a --policy that keeps less on it, \
             --compress w4 or a smaller model"
                .to_owned()
        }
        None => {
            let narrower = if shape.dtype == Dtype::F32 { "--dtype bf16, " } else { "" };
            let drives =
                if has_storages { "" } else { "drives to read weights from (--nvme DIR), " };
            format!(
                "; not even one sequence fits: use {drives}{narrower}a smaller model, fewer \
                 --layers or a shorter context"
            )
        }
    };
    text
}
