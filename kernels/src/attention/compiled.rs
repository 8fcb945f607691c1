//! The attention task, compiled for each number format.

use half::bf16;

use super::task::BlockTask;
use crate::number::Number;
use crate::variant::{Variant, dispatch};

/// Attention block task that is compiled in this crate once per number format; see
/// `linear::compiled`.
pub trait AttentionTasks: Number {
    /// # Safety
    /// `variant` is available, and the task's own conditions hold.
    unsafe fn attention_block(variant: Variant, task: BlockTask<'_, Self>);
}

impl AttentionTasks for f32 {
    #[inline(never)]
    unsafe fn attention_block(variant: Variant, task: BlockTask<'_, Self>) {
        // SAFETY: the caller's promise is the callee's.
        unsafe { dispatch(variant, task) }
    }
}

impl AttentionTasks for bf16 {
    #[inline(never)]
    unsafe fn attention_block(variant: Variant, task: BlockTask<'_, Self>) {
        // SAFETY: the caller's promise is the callee's.
        unsafe { dispatch(variant, task) }
    }
}
