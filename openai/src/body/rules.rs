//! Rules that apply to all bodies of a kind.

use engine_api::request::Sampling;

use super::origin::BodyOrigin;
use super::unknown_fields::UnknownFieldPolicy;

/// Rules for reading bodies.
#[derive(Debug, Clone, Copy)]
pub struct BodyRules<'a> {
    pub origin: BodyOrigin,
    /// Sampling parameters for fields that a request does not give.
    pub sampling: Sampling,
    /// Policy for fields that are not read.
    pub unknown_fields: &'a UnknownFieldPolicy,
}
