//! Stop strings: found while tokens come, cut out when the sequence has ended.
//!
//! The watcher only saves work. What is cut is decided by [`finish`] from the tokens alone, so that
//! an answer does not depend on how many steps late the engine obeyed.

use super::following::Following;
use super::found_logprobs::FoundLogprobs;
use super::logprobs::Logprobs;
use super::parts::{Call, Parts};
use super::reader::AnswerReader;
use super::stop_strings::{StopScanner, StopStrings};
use crate::boundary::codec::{TextCodec, TextStream};
use crate::boundary::engine::{Finish, Generated};

/// Looks for stop strings in a growing text.
pub struct StopWatcher<'a> {
    stream: Box<dyn TextStream + 'a>,
    scanner: StopScanner,
    text: String,
}

impl std::fmt::Debug for StopWatcher<'_> {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("StopWatcher").field("scanner", &self.scanner).finish_non_exhaustive()
    }
}

impl<'a> StopWatcher<'a> {
    /// A watcher for one sequence.
    pub fn new(codec: &'a dyn TextCodec, stop: &StopStrings) -> StopWatcher<'a> {
        let scanner = StopScanner::new(stop);
        StopWatcher { stream: codec.stream(), scanner, text: String::new() }
    }

    /// Takes the next token; whether a stop string is now complete.
    pub fn push(&mut self, token: u32) -> bool {
        // What the decoder refuses is told when the answer has ended.
        let piece = self.stream.push(token).unwrap_or_default();
        self.scanner.push(&piece).is_some()
    }

    /// Appends text and returns where the first stop string begins, if one is complete: the one
    /// that begins earliest, as all that follows it is cut.
    fn extend(&mut self, piece: &str) -> Option<usize> {
        self.text.push_str(piece);
        self.scanner.push(piece)
    }
}

/// The answer to one prompt, as it is written.
#[derive(Debug, Clone, PartialEq)]
pub struct Answer {
    /// `None` when the model has no tokenizer, or nothing was said beside calls.
    pub text: Option<String>,
    /// What it thinks before; empty where that is not told apart.
    pub reasoning: String,
    /// Functions that it calls.
    pub calls: Vec<Call>,
    /// The tokens whose text lies wholly before a stop string.
    pub token_ids: Vec<u32>,
    /// Tokens that were generated for it: those of a stop string and an end-of-sequence token
    /// count, those after a stop string do not.
    pub generated: u32,
    /// `None` where none were asked for.
    pub logprobs: Option<Logprobs>,
    pub finish: Finish,
    /// It ended with an end-of-sequence token: neither a stop string nor its largest number of
    /// tokens cut it.
    pub ends_by_itself: bool,
    /// Why it is not what was asked for: a sentence.
    pub error: Option<String>,
}

impl Answer {
    /// That to a request which looks at its prompt alone.
    #[must_use]
    pub fn emptied(self) -> Answer {
        let tokens = self.token_ids.len();
        Answer {
            text: self.text.map(|_| String::new()),
            reasoning: String::new(),
            calls: Vec::new(),
            token_ids: Vec::new(),
            generated: 0,
            logprobs: self.logprobs.map(|logprobs| logprobs.skip(tokens)),
            finish: match self.finish {
                Finish::NotFinite => Finish::NotFinite,
                Finish::Stop | Finish::Length => Finish::Length,
            },
            ..self
        }
    }
}

/// Detokenises a finished sequence, cuts it at the first stop string that became complete and tells
/// its parts apart.
pub fn finish(
    generated: Generated,
    following: &Following,
    codec: Option<&dyn TextCodec>,
) -> Answer {
    let (answer, logprobs) = finish_unspelled(generated, following, codec);
    Answer { logprobs: logprobs.map(|found| found.spelled(codec)), ..answer }
}

/// [`finish`] for an answer whose log-probabilities are spelled later.
pub fn finish_unspelled(
    generated: Generated,
    following: &Following,
    codec: Option<&dyn TextCodec>,
) -> (Answer, Option<FoundLogprobs>) {
    let Generated { tokens, logprobs, finish, .. } = generated;
    let Following { stop, width, .. } = following;
    let (width, cut) = (*width, cut(&tokens, stop, finish, codec));
    let (text, reasoning, calls) = read_parts(&tokens, &cut, following);
    let Cut { starts, generated, at_stop, refused, .. } = cut;
    let token_ids = tokens[..starts.len()].to_vec();
    let found = (width > 0).then(|| FoundLogprobs::new(logprobs, width, starts));
    let ends_by_itself = !at_stop && finish == Finish::Stop;
    let finish = if at_stop { Finish::Stop } else { finish };
    let overflowed = (finish == Finish::NotFinite).then(|| NOT_FINITE.to_owned());
    let error = overflowed.or_else(|| {
        refused.map(|reason| format!("The answer cannot be turned into text: {reason}."))
    });
    let logprobs = None;
    let answer = Answer {
        text,
        reasoning,
        calls,
        token_ids,
        generated,
        logprobs,
        finish,
        ends_by_itself,
        error,
    };
    (answer, found)
}

/// The text beside thoughts and calls, and these.
fn read_parts(
    tokens: &[u32],
    cut: &Cut,
    following: &Following,
) -> (Option<String>, String, Vec<Call>) {
    let (Some(mut reader), Some(text)) = (AnswerReader::new(following), &cut.text) else {
        return (cut.text.clone(), String::new(), Vec::new());
    };
    let mut tokens = tokens.iter().zip(&cut.ends).enumerate().peekable();
    for (place, char) in text.char_indices() {
        while let Some((_, (token, _))) = tokens.next_if(|(_, (_, start))| **start <= place) {
            reader.push_token(*token);
        }
        reader.push_char(char);
    }
    // What has no text belongs to a stop string that it comes before.
    tokens.filter(|(index, _)| *index < cut.starts.len()).for_each(|(_, (token, _))| {
        reader.push_token(*token);
    });
    let Parts { reasoning, content, calls } = Parts::of([reader.take(), reader.end()]);
    ((calls.is_empty() || !content.is_empty()).then_some(content), reasoning, calls)
}

/// Of logits from which no token can be drawn.
const NOT_FINITE: &str = "The model's numbers overflowed: what it says of the next token is \
    infinite or no number. A wider --dtype may help; else the weights are damaged.";

/// What of a sequence is the answer.
struct Cut {
    text: Option<String>,
    /// Characters of the text before each of its tokens.
    starts: Vec<usize>,
    /// Bytes of the text before each of all tokens that were looked at.
    ends: Vec<usize>,
    /// See [`Answer::generated`].
    generated: u32,
    /// Whether a stop string cut it.
    at_stop: bool,
    /// Why its tokens have no text.
    refused: Option<String>,
}

fn cut(tokens: &[u32], stop: &StopStrings, finish: Finish, codec: Option<&dyn TextCodec>) -> Cut {
    // The end-of-sequence token is not among them.
    let whole = tokens.len() as u32 + u32::from(finish == Finish::Stop);
    let Some(codec) = codec else {
        let starts = vec![0; tokens.len()];
        let ends = Vec::new();
        return Cut { text: None, starts, ends, generated: whole, at_stop: false, refused: None };
    };
    let mut watcher = StopWatcher::new(codec, stop);
    // `ends[i]`: length of the text after `i` tokens.
    let mut ends = vec![0];
    let (pieces, refused) = match codec.pieces(tokens) {
        Ok(pieces) => (pieces, None),
        Err(reason) => (vec![String::new(); tokens.len() + 1], Some(reason)),
    };
    let (rest, pieces) = pieces.split_last().expect("one more than tokens");
    for (piece, generated) in pieces.iter().zip(1..) {
        if let Some(cut) = watcher.extend(piece) {
            return cut_at(cut, watcher.text, ends, generated);
        }
        ends.push(watcher.text.len());
    }
    if let Some(cut) = watcher.extend(rest) {
        return cut_at(cut, watcher.text, ends, whole);
    }
    let starts = characters(&watcher.text, &ends[..tokens.len()]);
    let text = Some(watcher.text);
    Cut { text, starts, ends, generated: whole, at_stop: false, refused }
}

/// What stands before the `cut`, found with so many tokens.
fn cut_at(cut: usize, mut text: String, ends: Vec<usize>, generated: u32) -> Cut {
    text.truncate(cut);
    let whole = ends.iter().copied().filter(|end| *end <= cut).max().unwrap_or(0);
    // The first of several with equal text: what follows without text of its own belongs to the
    // stop string (half a character, a special token).
    let kept = ends.iter().position(|end| *end == whole).unwrap_or(0);
    let starts = characters(&text, &ends[..kept]);
    Cut { text: Some(text), starts, ends, generated, at_stop: true, refused: None }
}

/// Characters of `text` before each of some places in ascending order.
fn characters(text: &str, places: &[usize]) -> Vec<usize> {
    let (mut before, mut characters) = (0, 0);
    let mut count = |place: usize| {
        characters += text[before..place].chars().count();
        before = place;
        characters
    };
    places.iter().map(|place| count(*place)).collect()
}
