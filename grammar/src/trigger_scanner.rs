//! Search for triggers in a text that arrives in pieces.

use crate::calls::Trigger;
use crate::syntax::SyntaxElement;

/// State of the search.
#[derive(Clone, Default)]
pub(crate) struct TriggerScanner {
    /// End of the text, where a trigger may have begun.
    pending: Vec<u8>,
    /// True if anything but whitespace precedes `said`.
    has_text: bool,
}

impl TriggerScanner {
    /// Returns true if a trigger is allowed at this position.
    pub(crate) fn can_start(&self, trigger: &Trigger) -> bool {
        !trigger.at_start || (!self.has_text && self.pending.is_empty())
    }

    /// Advances by bytes; returns the bytes from the first trigger on that they complete.
    pub(crate) fn advance(&mut self, triggers: &[Trigger], bytes: &[u8]) -> Option<Vec<u8>> {
        let before = self.pending.len();
        self.pending.extend(bytes);
        if !self.has_text && before == 0 {
            let blanks = self.pending.iter().take_while(|byte| byte.is_ascii_whitespace()).count();
            self.pending.drain(..blanks);
        }
        let texts = || {
            triggers.iter().filter_map(|trigger| match &trigger.word {
                SyntaxElement::Text(text) => Some((text.as_bytes(), trigger.at_start)),
                _ => None,
            })
        };
        let found = texts().filter_map(|(text, at_start)| {
            if at_start {
                let is_it = !self.has_text && self.pending.starts_with(text);
                return is_it.then_some(0);
            }
            self.pending.windows(text.len()).position(|window| window == text)
        });
        let found = found.min().map(|at| self.pending[at..].to_vec());
        // Bytes that may still become a trigger are kept.
        let may_become = |at: &usize| {
            let rest = &self.pending[*at..];
            let is_first = !self.has_text && *at == 0;
            texts().any(|(text, at_start)| {
                text.len() > rest.len() && text.starts_with(rest) && (is_first || !at_start)
            })
        };
        let kept = (0..self.pending.len()).find(may_become).unwrap_or(self.pending.len());
        self.has_text |= kept > 0;
        self.pending.drain(..kept);
        found
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn trigger(text: &str, at_start: bool) -> Trigger {
        Trigger { word: SyntaxElement::Text(text.to_owned()), at_start }
    }

    /// Returns the position of the first trigger, which must not depend on how the text is split
    /// into pieces.
    fn found(triggers: &[Trigger], text: &str) -> Option<usize> {
        let places = |length: usize| {
            let mut watch = TriggerScanner::default();
            let mut said = 0;
            text.as_bytes().chunks(length).find_map(|piece| {
                said += piece.len();
                let begun = watch.advance(triggers, piece)?;
                Some(said - begun.len())
            })
        };
        let whole = places(text.len());
        for length in 1..text.len() {
            assert_eq!(places(length), whole, "{text} in pieces of {length}");
        }
        whole
    }

    #[test]
    fn triggers_are_found_in_any_pieces() {
        let anywhere = [trigger("<call>", false)];
        for (text, place) in [
            ("<call>", Some(0)),
            ("a<<call>{", Some(2)),
            ("<cal<call>", Some(4)),
            ("<cal l>", None),
            ("  <call>", Some(2)),
        ] {
            assert_eq!(found(&anywhere, text), place, "{text}");
        }
        let at_start = [trigger("{\"a\"", true), trigger("{\"b\"", true)];
        for (text, place) in [
            ("{\"b\"", Some(0)),
            (" \n{\"a\":", Some(2)),
            ("x{\"a\"", None),
            ("{\"c\"{\"a\"", None),
            ("{{\"a\"", None),
        ] {
            assert_eq!(found(&at_start, text), place, "{text}");
        }
    }
}
