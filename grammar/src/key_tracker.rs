//! Tracking of the keys of objects in a JSON text: if a key is repeated, its first value is lost
//! and the number of keys is wrong.

use std::collections::HashMap;

/// State of a text. A text that is not JSON is followed as far as it resembles JSON.
#[derive(Debug, Clone, Default)]
pub(crate) struct KeyTracker {
    /// Enclosing objects and lists, the innermost last.
    containers: Vec<Container>,
    place: TextPosition,
    /// Accepts only one spelling of each key: the fewest escapes, with lowercase digits.
    has_one_spelling: bool,
}

#[derive(Debug, Clone)]
enum Container {
    /// The keys of an object, each with its spelling.
    Object(HashMap<String, Vec<u8>>),
    List,
}

#[derive(Debug, Clone, Default)]
enum TextPosition {
    /// Outside of strings, where the next string is not a key.
    #[default]
    Value,
    BeforeKey,
    /// Within a key, with its bytes so far.
    Key(Vec<u8>),
    /// Within another string.
    String,
    /// After a backslash in a string, with the bytes so far if it is a key.
    Escaped(Option<Vec<u8>>),
    /// After `\u` in a key, with the bytes so far and the number of digits.
    Digits(Vec<u8>, usize),
}

/// Changes that bytes make to a text.
struct KeyUpdate {
    /// Number of previously open objects and lists that they close.
    closed: usize,
    /// Objects and lists that they open and leave open.
    opened: Vec<Container>,
    /// New keys of the innermost object that was open before and still is.
    keys: HashMap<String, Vec<u8>>,
    place: TextPosition,
}

/// Returns true if `digit` may be the digit at `index` of the escape of a character that has no
/// other escape.
fn is_digit(index: usize, digit: u8, before: u8) -> bool {
    match index {
        0 | 1 => digit == b'0',
        2 => matches!(digit, b'0' | b'1'),
        // \b, \t, \n, \f and \r have escapes of their own.
        _ if before == b'0' => matches!(digit, b'0'..=b'7' | b'b' | b'e' | b'f'),
        _ => matches!(digit, b'0'..=b'9' | b'a'..=b'f'),
    }
}

/// Effect of bytes on the keys of a text.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum KeyEffect {
    /// They complete a key a second time.
    Repeats,
    /// They begin, or are about to begin, a key with the same prefix as keys that the object has:
    /// possibly no other key has this prefix.
    SharesPrefix,
    Nothing,
}

impl KeyTracker {
    /// Creates the state at the beginning of a text, accepting one spelling of each key.
    pub(crate) fn with_one_spelling() -> KeyTracker {
        KeyTracker { has_one_spelling: true, ..KeyTracker::default() }
    }

    /// Advances by bytes.
    ///
    /// # Errors
    /// Returns the key that they complete a second time.
    pub(crate) fn advance_bytes(&mut self, bytes: &[u8]) -> Result<(), String> {
        let KeyUpdate { closed, opened, keys, place } = self.update(bytes)?;
        self.containers.truncate(self.containers.len() - closed);
        if let Some(Container::Object(known)) = self.containers.last_mut() {
            known.extend(keys);
        }
        self.containers.extend(opened);
        self.place = place;
        Ok(())
    }

    /// Returns true if bytes would complete a key a second time.
    pub(crate) fn repeats(&self, bytes: &[u8]) -> bool {
        self.update(bytes).is_err()
    }

    /// Returns the effect of bytes without advancing.
    pub(crate) fn effect(&self, bytes: &[u8]) -> KeyEffect {
        if let TextPosition::Key(key) = &self.place
            && !bytes.iter().any(|byte| matches!(byte, b'"' | b'\\'))
        {
            // The bytes continue a key.
            let Some(Container::Object(known)) = self.containers.last() else {
                return KeyEffect::Nothing;
            };
            let crowds = known.values().any(|known| {
                known.strip_prefix(key.as_slice()).is_some_and(|rest| rest.starts_with(bytes))
            });
            return if crowds { KeyEffect::SharesPrefix } else { KeyEffect::Nothing };
        }
        match self.update(bytes) {
            Err(_) => KeyEffect::Repeats,
            Ok(added) if self.shares_prefix(&added) => KeyEffect::SharesPrefix,
            Ok(_) => KeyEffect::Nothing,
        }
    }

    /// Returns true if a key has begun or must begin.
    pub(crate) fn is_at_key(&self) -> bool {
        matches!(self.place, TextPosition::BeforeKey) || self.is_in_key()
    }

    /// Returns true if a key has begun.
    pub(crate) fn is_in_key(&self) -> bool {
        matches!(
            self.place,
            TextPosition::Key(_) | TextPosition::Escaped(Some(_)) | TextPosition::Digits(..)
        )
    }

    /// Returns true within an escape of a key, where not every character may follow.
    pub(crate) fn is_in_escape(&self) -> bool {
        matches!(self.place, TextPosition::Escaped(Some(_)) | TextPosition::Digits(..))
    }

    fn shares_prefix(&self, added: &KeyUpdate) -> bool {
        let begun = match &added.place {
            TextPosition::BeforeKey => &[],
            TextPosition::Key(key)
            | TextPosition::Escaped(Some(key))
            | TextPosition::Digits(key, _) => key.as_slice(),
            _ => return false,
        };
        let begins = |keys: &HashMap<String, Vec<u8>>| keys.values().any(|k| k.starts_with(begun));
        match (added.opened.last(), self.enclosing_container(added.closed)) {
            (Some(Container::Object(keys)), _) => begins(keys),
            (None, Some(Container::Object(known))) => begins(known) || begins(&added.keys),
            _ => false,
        }
    }

    fn update(&self, bytes: &[u8]) -> Result<KeyUpdate, String> {
        let place = self.place.clone();
        let mut added = KeyUpdate { closed: 0, opened: Vec::new(), keys: HashMap::new(), place };
        for byte in bytes {
            let place = std::mem::take(&mut added.place);
            added.place = self.advance(&mut added, place, *byte)?;
        }
        Ok(added)
    }

    fn advance(
        &self,
        added: &mut KeyUpdate,
        place: TextPosition,
        byte: u8,
    ) -> Result<TextPosition, String> {
        Ok(match (place, byte) {
            (TextPosition::Escaped(Some(mut key)), _) => {
                key.push(byte);
                let has_digits = byte == b'u' && self.has_one_spelling;
                if has_digits { TextPosition::Digits(key, 0) } else { TextPosition::Key(key) }
            }
            (TextPosition::Digits(mut key, index), _) => {
                let before = key.last().copied().unwrap_or(b'0');
                key.push(byte);
                if !is_digit(index, byte, before) {
                    return Err(decode_key(&key));
                }
                if index == 3 {
                    TextPosition::Key(key)
                } else {
                    TextPosition::Digits(key, index + 1)
                }
            }
            (TextPosition::Escaped(None), _) => TextPosition::String,
            (TextPosition::String, b'"') => TextPosition::Value,
            (TextPosition::String, b'\\') => TextPosition::Escaped(None),
            (TextPosition::String, _) => TextPosition::String,
            (TextPosition::Key(key), b'"') => {
                self.insert(added, key)?;
                TextPosition::Value
            }
            (TextPosition::Key(mut key), _) => {
                key.push(byte);
                if byte == b'\\' {
                    TextPosition::Escaped(Some(key))
                } else {
                    TextPosition::Key(key)
                }
            }
            (TextPosition::BeforeKey, b'"') => TextPosition::Key(Vec::new()),
            (TextPosition::Value, b'"') => TextPosition::String,
            (_, b'{') => {
                added.opened.push(Container::Object(HashMap::new()));
                TextPosition::BeforeKey
            }
            (_, b'[') => {
                added.opened.push(Container::List);
                TextPosition::Value
            }
            (_, b'}' | b']') => {
                if added.opened.pop().is_none() && added.closed < self.containers.len() {
                    added.closed += 1;
                    added.keys.clear();
                }
                TextPosition::Value
            }
            (TextPosition::Value, b',') if self.is_in_object(added) => TextPosition::BeforeKey,
            (place, _) => place,
        })
    }

    /// Returns the innermost object or list that was open before and still is.
    fn enclosing_container(&self, closed: usize) -> Option<&Container> {
        self.containers[..self.containers.len() - closed].last()
    }

    fn is_in_object(&self, added: &KeyUpdate) -> bool {
        let innermost = added.opened.last().or_else(|| self.enclosing_container(added.closed));
        matches!(innermost, Some(Container::Object(_)))
    }

    fn insert(&self, added: &mut KeyUpdate, spelling: Vec<u8>) -> Result<(), String> {
        let key = decode_key(&spelling);
        let left = self.enclosing_container(added.closed);
        let (keys, known) = match (added.opened.last_mut(), left) {
            (Some(Container::Object(keys)), _) => (keys, None),
            (None, Some(Container::Object(known))) => (&mut added.keys, Some(known)),
            _ => return Ok(()),
        };
        if known.is_some_and(|known| known.contains_key(&key)) || keys.contains_key(&key) {
            return Err(key);
        }
        keys.insert(key, spelling);
        Ok(())
    }
}

/// Decodes the escapes of a key.
fn decode_key(key: &[u8]) -> String {
    let quoted = [b"\"", key, b"\""].concat();
    serde_json::from_slice(&quoted).unwrap_or_else(|_| String::from_utf8_lossy(key).into_owned())
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Returns the repeated key, which must not depend on how the text is split into pieces.
    fn repeated(text: &str) -> Option<String> {
        let whole = KeyTracker::default().advance_bytes(text.as_bytes()).err();
        for length in 1..4 {
            let mut keys = KeyTracker::default();
            let mut pieces = text.as_bytes().chunks(length);
            let found = pieces.find_map(|piece| {
                let repeats = keys.repeats(piece);
                let taken = keys.advance_bytes(piece);
                assert_eq!(repeats, taken.is_err());
                taken.err()
            });
            assert_eq!(found, whole, "{text} in pieces of {length}");
        }
        whole
    }

    #[test]
    fn keys_said_twice_are_found() {
        for (text, key) in [
            (r#"{"a":1,"a":2}"#, "a"),
            (r#"{"a" : {"b": [], "c": {}}, "d": "}", "a": 2}"#, "a"),
            (r#"[{"a":1},{"b":1,"b"#, ""),
            (r#"[{"a":1},{"b":1,"b":"#, "b"),
            (r#"{"a":{"b":{"c":1},"d":2,"b":3}}"#, "b"),
            (r#"{"\u0061":1,"a":2}"#, "a"),
            (r#"{"\"":1,"\"":2}"#, "\""),
            (r#"{"é":1,"\u00e9":2}"#, "é"),
        ] {
            assert_eq!(repeated(text).unwrap_or_default(), key, "{text}");
        }
    }

    #[test]
    fn a_key_has_one_spelling_where_it_is_asked_for() {
        for (text, is_taken) in [
            (r#"{"\u0001":1}"#, true),
            (r#"{"\u001f":1}"#, true),
            (r#"{"\u000b\n":1}"#, true),
            (r#"{"\u001F":1}"#, false),
            (r#"{"\u000a":1}"#, false),
            (r#"{"\u0061":1}"#, false),
            (r#"{"\u007f":1}"#, false),
            (r#"{"\\u0061":"\u0061"}"#, true),
        ] {
            for length in 1..9 {
                let mut keys = KeyTracker::with_one_spelling();
                let taken =
                    text.as_bytes().chunks(length).try_for_each(|piece| keys.advance_bytes(piece));
                assert_eq!(taken.is_ok(), is_taken, "{text} in pieces of {length}");
            }
        }
    }

    #[test]
    fn keys_that_begin_alike_are_crowded() {
        use KeyEffect::{Nothing, Repeats, SharesPrefix};
        for (text, bytes, effect) in [
            (r#"{"ab":1"#, ",", SharesPrefix),
            (r#"{"ab":1"#, "}", Nothing),
            ("", "{", Nothing),
            (r#"{"ab":1,"#, " ", SharesPrefix),
            (r#"{"ab":1,"#, "\"", SharesPrefix),
            (r#"{"ab":1,"#, "\"b", Nothing),
            (r#"{"ab":1,""#, "a", SharesPrefix),
            (r#"{"ab":1,""#, "ab", SharesPrefix),
            (r#"{"ab":1,""#, "abc", Nothing),
            (r#"{"ab":1,"a"#, "b", SharesPrefix),
            (r#"{"ab":1,"a"#, "\":1", Nothing),
            (r#"{"ab":1,"a"#, "\":1,", SharesPrefix),
            (r#"{"ab":1,"a"#, "b\"", Repeats),
            (r#"{"\\":1,""#, "\\", SharesPrefix),
            (r#"{"\\":1,""#, "\\n", Nothing),
            (r#"{"ab":{"#, "\"a", Nothing),
            ("", r#"{"ab":1,""#, SharesPrefix),
        ] {
            let mut keys = KeyTracker::default();
            keys.advance_bytes(text.as_bytes()).expect("no key twice");
            assert_eq!(keys.effect(bytes.as_bytes()), effect, "{text} and {bytes}");
        }
    }

    #[test]
    fn equal_strings_elsewhere_are_no_keys() {
        for text in [
            r#"{"a":"a","b":["a","a"],"c":{"a":1}}"#,
            r#"[{"a":1},{"a":1}]"#,
            r#"{"a":{"a":{"a":1}},"b":1}"#,
            r#"{"a":"{\"b\":1,\"b\":2}","b":1}"#,
            r#"{"a\\":1,"a":2}"#,
            r#"]]}},"a","a""#,
        ] {
            assert_eq!(repeated(text), None, "{text}");
        }
    }
}
