//! Identity of a staged copy: which weights it contains, and in which format.

use serde::{Deserialize, Serialize};

use crate::error::{Difference, StageError};

/// Maximum length of a folder's name.
const NAME_BYTES_MAX: usize = 200;

/// Properties that determine the content of a staged copy.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Identity {
    /// Name of the folder: lower-case letters, digits, `.`, `_` and `-`, not starting with `.`.
    pub name: String,
    /// Name of the model.
    pub model: String,
    /// Hash of the weights that were staged.
    pub weights: String,
    /// Format of the weights: type, compression, order.
    pub form: String,
    /// Additional information for people, such as the source of the weights. Ignored in
    /// comparisons.
    pub description: Vec<(String, String)>,
}

impl Identity {
    /// Returns an error if the name is not allowed.
    pub(crate) fn check_name(&self) -> Result<(), StageError> {
        if is_name(&self.name) {
            return Ok(());
        }
        Err(StageError::Name { name: self.name.clone() })
    }

    /// Returns the fields that differ from `expected`, except for the description.
    pub(crate) fn differences(&self, expected: &Identity) -> Vec<Difference> {
        let fields = [
            ("name", &self.name, &expected.name),
            ("model", &self.model, &expected.model),
            ("weights", &self.weights, &expected.weights),
            ("form", &self.form, &expected.form),
        ];
        let differing = fields.into_iter().filter(|(_, staged, expected)| staged != expected);
        differing
            .map(|(field, staged, expected)| Difference {
                field,
                staged: staged.clone(),
                expected: expected.clone(),
            })
            .collect()
    }
}

/// Returns true if `name` is allowed as the name of a staged copy.
pub(crate) fn is_name(name: &str) -> bool {
    let is_plain = |byte: u8| {
        byte.is_ascii_lowercase() || byte.is_ascii_digit() || matches!(byte, b'.' | b'_' | b'-')
    };
    !name.is_empty()
        && name.len() <= NAME_BYTES_MAX
        && !name.starts_with('.')
        && name.bytes().all(is_plain)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_are_plain() {
        for good in ["opt-30b-bf16-1a2b3c4d5e6f7a8b", "a", "a.b_c-9"] {
            assert!(is_name(good), "{good}");
        }
        for bad in ["", ".", "..", ".a", "a/b", "A", "a b", "ä", &"a".repeat(201)] {
            assert!(!is_name(bad), "{bad}");
        }
    }
}
