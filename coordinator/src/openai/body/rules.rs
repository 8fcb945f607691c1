//! Rules that apply to all bodies of a kind.

use super::origin::Origin;
use super::unread::Unread;
use crate::boundary::engine::Sampling;

/// Rules for reading bodies.
#[derive(Debug, Clone, Copy)]
pub struct Rules<'a> {
    pub origin: Origin,
    /// Sampling parameters for fields that a request does not give.
    pub sampling: Sampling,
    /// Policy for fields that are not read.
    pub unread: &'a Unread,
}
