//! Whose weights a staging holds, and in what form.

use serde::{Deserialize, Serialize};

use crate::error::{Difference, StageError};

/// The longest name of a folder.
const NAME_BYTES_MAX: usize = 200;

/// What makes two stagings the same.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Identity {
    /// The folder: small letters, digits, `.`, `_` and `-`, not beginning with `.`.
    pub name: String,
    /// The model's name.
    pub model: String,
    /// The hash of the weights that were staged.
    pub weights: String,
    /// The form in which they were: type, compression, order.
    pub form: String,
    /// Further facts for people, such as where the weights came from. They make no difference.
    pub description: Vec<(String, String)>,
}

impl Identity {
    /// Refuses a name that is not a plain folder's.
    pub(crate) fn check_name(&self) -> Result<(), StageError> {
        if is_name(&self.name) {
            return Ok(());
        }
        Err(StageError::Name { name: self.name.clone() })
    }

    /// The fields, but for the description, that are not as in `expected`.
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

/// Whether `name` can be that of a staging.
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
