//! Validation of names from a hub before they become names of files on this machine.

use std::fmt;

/// Number of hexadecimal digits of a SHA-1, which names an object in git.
const SHA1_DIGITS: usize = 40;
/// Number of hexadecimal digits of a SHA-256.
const SHA256_DIGITS: usize = 64;
/// Maximum size of a component of a path.
const COMPONENT_MAX_BYTES: usize = 255;
/// Maximum size of a file's path in a repository.
const PATH_MAX_BYTES: usize = 1024;

/// Commit or checksum of a file: 40 or 64 hexadecimal digits, in lower case.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Hash(String);

impl Hash {
    /// Parses digits as they appear in a hub's list and headers; returns `None` for anything else.
    pub(super) fn parse(text: &str) -> Option<Hash> {
        let is_hash = matches!(text.len(), SHA1_DIGITS | SHA256_DIGITS)
            && text.bytes().all(|byte| byte.is_ascii_hexdigit());
        is_hash.then(|| Hash(text.to_ascii_lowercase()))
    }

    /// Parses an ETag, which is quoted and may be weak.
    pub(super) fn parse_etag(text: &str) -> Option<Hash> {
        let text = text.trim();
        let text = text.strip_prefix("W/").unwrap_or(text);
        Hash::parse(text.strip_prefix('"').and_then(|text| text.strip_suffix('"')).unwrap_or(text))
    }

    pub(super) fn as_str(&self) -> &str {
        &self.0
    }

    pub(super) fn is_sha256(&self) -> bool {
        self.0.len() == SHA256_DIGITS
    }
}

impl fmt::Display for Hash {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0)
    }
}

/// Returns true for a relative path to a file that stays below its base folder and contains no
/// characters that control a terminal.
pub(super) fn is_path(path: &str) -> bool {
    let is_component = |part: &str| {
        !matches!(part, "" | "." | "..")
            && part.len() <= COMPONENT_MAX_BYTES
            && !part.chars().any(|character| character.is_control() || character == '\\')
    };
    path.len() <= PATH_MAX_BYTES && path.split('/').all(is_component)
}

/// Percent-encodes `text` as a segment of a URL's path.
pub(super) fn url_segment(text: &str) -> String {
    let mut segment = String::with_capacity(text.len());
    for byte in text.bytes() {
        match byte {
            b'a'..=b'z' | b'A'..=b'Z' | b'0'..=b'9' | b'-' | b'.' | b'_' | b'~' => {
                segment.push(byte.into());
            }
            _ => segment.push_str(&format!("%{byte:02X}")),
        }
    }
    segment
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_hash_is_hexadecimal_digits_and_nothing_else() {
        let (sha1, sha256) = ("0123456789abcdefABCD".repeat(2), "f".repeat(64));
        for text in [sha1.clone(), format!("\"{sha1}\""), format!("W/\"{sha1}\"")] {
            let hash = Hash::parse_etag(&text).expect(&text);
            assert_eq!((hash.as_str(), hash.is_sha256()), (&*sha1.to_lowercase(), false));
        }
        assert!(Hash::parse(&sha256).is_some_and(|hash| hash.is_sha256()));
        for text in ["", "abc", "../../x", &"g".repeat(40), &"a".repeat(41), &"é".repeat(20)] {
            assert_eq!(Hash::parse(text), None, "{text}");
            assert_eq!(Hash::parse_etag(text), None, "{text}");
        }
        assert_eq!(Hash::parse(&format!("\"{sha1}\"")), None);
    }

    #[test]
    fn a_path_stays_below_where_it_begins() {
        for path in ["config.json", "Q4/model 1.gguf", "a/b/c", "..a", "模型.gguf"] {
            assert!(is_path(path), "{path}");
        }
        let (long, deep) = ("x".repeat(256), "x/".repeat(600) + "x");
        for path in [
            "",
            "/",
            "/etc/passwd",
            "../x",
            "a/../b",
            "a//b",
            "a/",
            "./a",
            ".",
            "..",
            "a\0b",
            "a\nb",
            "\u{1b}[2J",
            "a\\..\\b",
            "a\u{9b}b",
            &long,
            &deep,
        ] {
            assert!(!is_path(path), "{path:?}");
        }
        assert_eq!(url_segment("refs/pr/1 ?#%é"), "refs%2Fpr%2F1%20%3F%23%25%C3%A9");
    }
}
