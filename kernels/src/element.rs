//! Trait over which callers of the kernels are generic.

use half::bf16;

use crate::attention::AttentionTasks;
use crate::delta::DeltaTasks;
use crate::linear::LinearTasks;
use crate::norm_row::NormTasks;
use crate::rope::RopeTasks;
use crate::streams::StreamTasks;

/// Number format that every kernel is compiled for.
pub trait Element:
    LinearTasks + AttentionTasks + NormTasks + RopeTasks + DeltaTasks + StreamTasks
{
}

impl Element for f32 {}
impl Element for bf16 {}
