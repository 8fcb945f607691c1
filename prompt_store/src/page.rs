//! What a page is, whether it is written or read.

use crate::name::Name;

/// What a page is beside its bytes.
#[derive(Debug, Clone, Copy)]
pub struct Page<'a> {
    pub name: Name,
    /// Of the page before it.
    pub before: Name,
    /// How many are before it.
    pub index: u32,
    pub tokens: &'a [u32],
}
