//! Stop strings of a request, compiled once and searched for in a growing text.

use std::collections::HashMap;
use std::fmt;
use std::ops::Deref;
use std::sync::Arc;

use aho_corasick::Anchored;
use aho_corasick::automaton::{Automaton, StateID};
use aho_corasick::nfa::contiguous::NFA;

/// Maximum number of stop strings of a request; OpenAI's is 4.
pub const MAX_STOP_STRINGS: usize = 64;
/// Maximum total size of a request's stop strings, in bytes.
pub const MAX_STOP_BYTES: usize = 16 << 10;

/// Stop strings and the automaton that finds them. Clones share both.
#[derive(Clone, Default)]
pub struct StopStrings(Option<Arc<CompiledStopStrings>>);

struct CompiledStopStrings {
    strings: Vec<String>,
    automaton: NFA,
    start: StateID,
    /// Number of bytes of a stop string that have been read in each state; 0 for missing states.
    depths: HashMap<StateID, usize>,
}

impl StopStrings {
    /// Compiles stop strings, none of which is empty.
    ///
    /// # Panics
    /// Panics if they exceed [`MAX_STOP_STRINGS`] or [`MAX_STOP_BYTES`] by so much that the
    /// automaton runs out of states.
    pub fn new(strings: Vec<String>) -> StopStrings {
        if strings.is_empty() {
            return StopStrings(None);
        }
        let automaton = NFA::new(&strings).expect("the number and size of stop strings is bounded");
        let start = automaton.start_state(Anchored::No).expect("an NFA starts either way");
        let mut depths = HashMap::new();
        for string in &strings {
            let mut state = start;
            for (byte, depth) in string.bytes().zip(1..) {
                state = automaton.next_state(Anchored::No, state, byte);
                depths.insert(state, depth);
            }
        }
        StopStrings(Some(Arc::new(CompiledStopStrings { strings, automaton, start, depths })))
    }
}

impl From<Vec<String>> for StopStrings {
    fn from(strings: Vec<String>) -> StopStrings {
        StopStrings::new(strings)
    }
}

impl FromIterator<String> for StopStrings {
    fn from_iter<I: IntoIterator<Item = String>>(strings: I) -> StopStrings {
        StopStrings::new(strings.into_iter().collect())
    }
}

impl Deref for StopStrings {
    type Target = [String];

    fn deref(&self) -> &[String] {
        self.0.as_ref().map_or(&[], |compiled| &compiled.strings)
    }
}

impl PartialEq for StopStrings {
    fn eq(&self, other: &StopStrings) -> bool {
        **self == **other
    }
}

impl Eq for StopStrings {}

impl fmt::Debug for StopStrings {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_list().entries(self.iter()).finish()
    }
}

/// Scanner of a growing text for stop strings. Its work is proportional to the text, regardless of
/// the number of stop strings.
#[derive(Debug, Clone)]
pub struct StopScanner {
    stop: StopStrings,
    state: StateID,
    /// Number of bytes of the text that have been read.
    read_bytes: usize,
}

impl StopScanner {
    /// Creates a scanner at the beginning of a text.
    pub fn new(stop: &StopStrings) -> StopScanner {
        let state = stop.0.as_ref().map_or(StateID::ZERO, |compiled| compiled.start);
        StopScanner { stop: stop.clone(), state, read_bytes: 0 }
    }

    /// Reads more of the text. Returns the byte at which a stop string begins that this piece
    /// completes: the earliest one, since all text after it is cut.
    pub fn push(&mut self, piece: &str) -> Option<usize> {
        let Some(compiled) = &self.stop.0 else {
            self.read_bytes += piece.len();
            return None;
        };
        let mut first = None;
        for byte in piece.bytes() {
            self.state = compiled.automaton.next_state(Anchored::No, self.state, byte);
            self.read_bytes += 1;
            if !compiled.automaton.is_match(self.state) {
                continue;
            }
            for index in 0..compiled.automaton.match_len(self.state) {
                let pattern = compiled.automaton.match_pattern(self.state, index);
                let begin = self.read_bytes - compiled.automaton.pattern_len(pattern);
                first = Some(first.map_or(begin, |first: usize| first.min(begin)));
            }
        }
        first
    }

    /// Returns the number of bytes at the end of the text that may begin a stop string.
    pub fn held_bytes(&self) -> usize {
        let compiled = self.stop.0.as_ref();
        compiled.and_then(|compiled| compiled.depths.get(&self.state)).copied().unwrap_or(0)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Returns the byte at which the first stop string begins that is completed after `before`, by
    /// trying all of them.
    fn tried(text: &str, before: usize, stop: &[String]) -> Option<usize> {
        let ends = |stop: &String| {
            let found = text.match_indices(stop.as_str()).map(|(at, _)| at);
            // Includes overlapping occurrences.
            let all =
                (0..text.len()).filter(|at| text.as_bytes()[*at..].starts_with(stop.as_bytes()));
            let all: Vec<usize> = found.chain(all).collect();
            all.into_iter().filter(|at| at + stop.len() > before).min()
        };
        stop.iter().filter_map(ends).min()
    }

    fn may_begin(text: &str, stop: &[String]) -> usize {
        let starts = (0..text.len()).filter(|start| text.is_char_boundary(*start));
        let begins = |start: &usize| stop.iter().any(|stop| stop.starts_with(&text[*start..]));
        starts.into_iter().find(begins).map_or(0, |start| text.len() - start)
    }

    #[test]
    fn the_automaton_agrees_with_trying_every_string_at_every_place() {
        let words = ["a", "b", "ab", "é", "ba", "€"];
        let mut seed: u64 = 7;
        let mut next = |most: usize| {
            seed = seed.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888);
            (seed >> 33) as usize % most
        };
        let mut found = 0;
        for _ in 0..3000 {
            let stop: Vec<String> = (0..1 + next(4))
                .map(|_| (0..1 + next(4)).map(|_| words[next(6)]).collect())
                .collect();
            let mut scanner = StopScanner::new(&StopStrings::new(stop.clone()));
            let mut text = String::new();
            for _ in 0..12 {
                let piece: String = (0..next(4)).map(|_| words[next(6)]).collect();
                let before = text.len();
                text.push_str(&piece);
                let at = scanner.push(&piece);
                assert_eq!(at, tried(&text, before, &stop), "{text:?} {stop:?}");
                if at.is_some() {
                    found += 1;
                    break;
                }
                assert_eq!(scanner.held_bytes(), may_begin(&text, &stop), "{text:?} {stop:?}");
            }
        }
        assert!(found > 1000, "{found}");
    }

    #[test]
    fn as_many_and_as_long_as_allowed_are_compiled() {
        let each = MAX_STOP_BYTES / MAX_STOP_STRINGS;
        let string = |index: usize| format!("{index:03}{}", "x".repeat(each - 3));
        let stop = StopStrings::new((0..MAX_STOP_STRINGS).map(string).collect());
        let mut scanner = StopScanner::new(&stop);
        assert_eq!(scanner.push(&string(63)[..each - 1]), None);
        assert_eq!(scanner.held_bytes(), each - 1);
        assert_eq!(scanner.push("x"), Some(0));
        let none = StopStrings::default();
        assert!(none.is_empty() && StopScanner::new(&none).push("text").is_none());
    }
}
