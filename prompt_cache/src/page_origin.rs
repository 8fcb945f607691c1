//! Origin of a page: everything except tokens that its bytes depend on.

use serde::{Deserialize, Serialize};
use sha2::{Digest, Sha256};

/// Version of the page format. Incremented when a page's file or the order of its bytes changes.
pub(crate) const PAGE_FORMAT_VERSION: u32 = 1;

/// Maximum number of characters of a model's name in the name of a folder.
const MAX_MODEL_NAME_CHARS: usize = 60;

/// Origin of pages.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct PageOrigin {
    /// Name of the model, for people; not part of the fingerprint.
    pub model: String,
    /// Names and values of all other properties that determine the bytes.
    pub fields: Vec<(String, String)>,
}

impl PageOrigin {
    /// Returns a hash of the fields.
    pub(crate) fn fingerprint(&self) -> [u8; 32] {
        let mut hash = Sha256::new();
        hash.update(PAGE_FORMAT_VERSION.to_le_bytes());
        for text in self.fields.iter().flat_map(|(name, value)| [name, value]) {
            hash.update((text.len() as u64).to_le_bytes());
            hash.update(text);
        }
        hash.finalize().into()
    }

    /// Returns the name of the folder of its pages.
    pub(crate) fn folder(&self) -> String {
        let letter = |letter: char| {
            if letter.is_ascii_alphanumeric() { letter.to_ascii_lowercase() } else { '-' }
        };
        let model: String = self.model.chars().take(MAX_MODEL_NAME_CHARS).map(letter).collect();
        let digits: String =
            self.fingerprint().iter().take(8).map(|byte| format!("{byte:02x}")).collect();
        format!("{model}-{digits}")
    }
}

/// Returns true if a folder's name may be that of an origin.
pub(crate) fn is_origin_folder(name: &str) -> bool {
    let is_digit = |byte: u8| byte.is_ascii_digit() || (b'a'..=b'f').contains(&byte);
    name.rsplit_once('-')
        .is_some_and(|(_, digits)| digits.len() == 16 && digits.bytes().all(is_digit))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn origin(model: &str, fields: &[(&str, &str)]) -> PageOrigin {
        let fields = fields.iter().map(|(name, value)| ((*name).into(), (*value).into()));
        PageOrigin { model: model.to_owned(), fields: fields.collect() }
    }

    #[test]
    fn fields_decide_and_the_model_s_name_does_not() {
        let one = origin("Tiny/Model", &[("dtype", "bf16"), ("kernels", "avx2")]);
        assert_eq!(
            one.fingerprint(),
            PageOrigin { model: "x".into(), ..one.clone() }.fingerprint()
        );
        for other in [
            origin("Tiny/Model", &[("dtype", "f32"), ("kernels", "avx2")]),
            origin("Tiny/Model", &[("dtype", "bf16")]),
            origin("Tiny/Model", &[("dtypeb", "f16"), ("kernels", "avx2")]),
        ] {
            assert_ne!(one.fingerprint(), other.fingerprint());
        }
        assert!(one.folder().starts_with("tiny-model-") && is_origin_folder(&one.folder()));
        assert!(
            !is_origin_folder("models")
                && !is_origin_folder("a-b")
                && !is_origin_folder(&"a".repeat(16))
        );
    }
}
