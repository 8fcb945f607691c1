//! What holds for all bodies of a kind.

use super::origin::Origin;
use super::unread::Unread;
use crate::boundary::engine::Sampling;

/// How bodies are read.
#[derive(Debug, Clone, Copy)]
pub struct Rules<'a> {
    pub origin: Origin,
    /// What a request draws by that does not say.
    pub sampling: Sampling,
    /// What becomes of fields that nothing reads.
    pub unread: &'a Unread,
}
