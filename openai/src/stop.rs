//! The end of an answer: its text is cut at the first stop string, and its parts are separated.
//!
//! That a stop string is noticed while tokens are generated only saves work. [`finish`] determines
//! the cut from the tokens alone.

use engine_api::codec::{CodecError, TextCodec};
use engine_api::event::{FinishCause, Logprob};

use super::answer_options::AnswerOptions;
use super::answer_parser::AnswerParser;
use super::answer_parts::{AnswerParts, Call};
use super::logprobs::Logprobs;
use super::raw_logprobs::RawLogprobs;
use super::stop_strings::StopScanner;

/// Tokens of a sequence that has ended.
#[derive(Debug, Clone, PartialEq)]
pub struct GeneratedTokens {
    /// New tokens without a final end-of-sequence token.
    pub tokens: Vec<u32>,
    /// Log-probabilities of the tokens, as many for each as requested.
    pub logprobs: Vec<Logprob>,
    pub finish: FinishCause,
}

/// The answer to a prompt, ready for output.
#[derive(Debug, Clone, PartialEq)]
pub struct Answer {
    /// `None` if the model has no tokenizer, or the answer consists of tool calls only.
    pub text: Option<String>,
    /// Reasoning before the answer; empty if it is not separated from the text.
    pub reasoning: String,
    /// Tool calls of the answer.
    pub calls: Vec<Call>,
    /// Tokens whose text is entirely before a stop string.
    pub token_ids: Vec<u32>,
    /// Number of tokens that were generated for the answer. It includes those of a stop string and
    /// an end-of-sequence token, but not those after a stop string.
    pub generated: u32,
    /// Number of generated tokens that belong to the reasoning, markers included; 0 if reasoning is
    /// not separated from the text.
    pub reasoning_tokens: u32,
    /// Stop string that cut the text.
    pub stop_string: Option<String>,
    /// `None` if none were requested.
    pub logprobs: Option<Logprobs>,
    pub finish: FinishCause,
    /// The answer ended with an end-of-sequence token: neither a stop string nor its maximum number
    /// of tokens cut it.
    pub ended_with_eos: bool,
    /// Sentence that explains why the answer is not what was requested.
    pub error: Option<String>,
    /// The error is the tokenizer's, and another attempt may decode these tokens.
    pub is_retryable: bool,
}

impl Answer {
    /// Returns the answer to a request that only evaluates its prompt.
    #[must_use]
    pub fn without_tokens(self) -> Answer {
        let tokens = self.token_ids.len();
        Answer {
            text: self.text.map(|_| String::new()),
            reasoning: String::new(),
            calls: Vec::new(),
            token_ids: Vec::new(),
            generated: 0,
            reasoning_tokens: 0,
            logprobs: self.logprobs.map(|logprobs| logprobs.skip(tokens)),
            finish: match self.finish {
                FinishCause::NotFinite => FinishCause::NotFinite,
                FinishCause::Stop | FinishCause::Length => FinishCause::Length,
            },
            ..self
        }
    }
}

/// Decodes a finished sequence, cuts it at the first stop string that was completed, and separates
/// its parts. Returns its log-probabilities separately, to be spelled later.
pub fn finish(
    generated: GeneratedTokens,
    options: &AnswerOptions,
    codec: Option<&dyn TextCodec>,
) -> (Answer, Option<RawLogprobs>) {
    let GeneratedTokens { tokens, logprobs, finish } = generated;
    let (width, cut) = (options.logprobs_per_token, trim_at_stop(&tokens, options, finish, codec));
    let (text, AnswerParts { reasoning, calls, .. }, reasoning_tokens) =
        read_parts(&tokens, &cut, options);
    let TrimmedAnswer { starts, generated, stop_string, decode_error, .. } = cut;
    let at_stop = stop_string.is_some();
    let token_ids = tokens[..starts.len()].to_vec();
    let spells_ids = options.output.spells_token_ids;
    let found = (width > 0).then(|| RawLogprobs::new(logprobs, width, starts, spells_ids));
    let ended_with_eos = !at_stop && finish == FinishCause::Stop;
    let finish = if at_stop { FinishCause::Stop } else { finish };
    let not_finite = (finish == FinishCause::NotFinite).then(|| NOT_FINITE.to_owned());
    let is_retryable =
        not_finite.is_none() && matches!(decode_error, Some(CodecError::Unavailable(_)));
    let error = not_finite.or_else(|| {
        decode_error.map(|reason| format!("The answer could not be decoded: {reason}."))
    });
    let logprobs = None;
    let answer = Answer {
        text,
        reasoning,
        calls,
        token_ids,
        generated,
        reasoning_tokens,
        stop_string,
        logprobs,
        finish,
        ended_with_eos,
        error,
        is_retryable,
    };
    (answer, found)
}

/// Returns the text without reasoning and calls, all parts with an empty content, and the number of
/// tokens of the reasoning.
fn read_parts(
    tokens: &[u32],
    cut: &TrimmedAnswer,
    options: &AnswerOptions,
) -> (Option<String>, AnswerParts, u32) {
    let (Some(mut reader), Some(text)) = (AnswerParser::new(options), &cut.text) else {
        return (cut.text.clone(), AnswerParts::default(), 0);
    };
    let mut tokens = tokens.iter().zip(&cut.ends).enumerate().peekable();
    for (place, char) in text.char_indices() {
        while let Some((_, (token, _))) = tokens.next_if(|(_, (_, start))| **start <= place) {
            reader.push_token(*token);
        }
        reader.push_char(char);
    }
    // Tokens without text belong to a stop string that they precede.
    tokens.filter(|(index, _)| *index < cut.starts.len()).for_each(|(_, (token, _))| {
        reader.push_token(*token);
    });
    let reasoning_tokens = reader.reasoning_tokens();
    let mut parts = AnswerParts::from_deltas([reader.take(), reader.end()]);
    let content = std::mem::take(&mut parts.content);
    let text = (parts.calls.is_empty() || !content.is_empty()).then_some(content);
    (text, parts, reasoning_tokens)
}

/// Error of an answer whose logits contain infinities or NaN.
const NOT_FINITE: &str = "The model's logits contained infinities or NaN. A wider --dtype may \
    help; otherwise the weights are damaged.";

/// Part of a sequence that is the answer.
struct TrimmedAnswer {
    text: Option<String>,
    /// Number of characters of the text before each token of the answer.
    starts: Vec<usize>,
    /// Number of bytes of the text before each token that was examined.
    ends: Vec<usize>,
    /// See [`Answer::generated`].
    generated: u32,
    /// Stop string that cut the sequence.
    stop_string: Option<String>,
    /// Reason for which the tokens have no text.
    decode_error: Option<CodecError>,
}

fn trim_at_stop(
    tokens: &[u32],
    options: &AnswerOptions,
    finish: FinishCause,
    codec: Option<&dyn TextCodec>,
) -> TrimmedAnswer {
    let AnswerOptions { context, stop, min_tokens, .. } = options;
    // The end-of-sequence token is not among `tokens`.
    let whole = tokens.len() as u32 + u32::from(finish == FinishCause::Stop);
    let Some(codec) = codec else {
        let starts = vec![0; tokens.len()];
        let ends = Vec::new();
        return TrimmedAnswer {
            text: None,
            starts,
            ends,
            generated: whole,
            stop_string: None,
            decode_error: None,
        };
    };
    let (mut text, mut scanner) = (String::new(), StopScanner::new(stop));
    // Returns the byte at which the first completed stop string begins: the earliest one, since all
    // text after it is cut.
    let mut extend = |text: &mut String, piece: &str| {
        text.push_str(piece);
        scanner.push(piece)
    };
    // `ends[i]`: length of the text after `i` tokens, in bytes.
    let mut ends = vec![0];
    let (pieces, decode_error) = match codec.pieces(context, tokens) {
        Ok(pieces) => (pieces, None),
        Err(reason) => (vec![String::new(); tokens.len() + 1], Some(reason)),
    };
    let (rest, pieces) = pieces.split_last().expect("one more than tokens");
    for (piece, generated) in pieces.iter().zip(1..) {
        if let Some(cut) = extend(&mut text, piece).filter(|_| generated > *min_tokens) {
            if options.output.includes_stop {
                ends.push(text.len());
            }
            return trim_at(cut, text, ends, generated, options);
        }
        ends.push(text.len());
    }
    let is_past_min = tokens.len() as u32 > *min_tokens;
    if let Some(cut) = extend(&mut text, rest).filter(|_| is_past_min) {
        return trim_at(cut, text, ends, whole, options);
    }
    let starts = count_characters(&text, &ends[..tokens.len()]);
    TrimmedAnswer {
        text: Some(text),
        starts,
        ends,
        generated: whole,
        stop_string: None,
        decode_error,
    }
}

/// Returns the part before `cut`, where a stop string begins that was found after `generated`
/// tokens. The part includes the stop string if the options say so.
fn trim_at(
    cut: usize,
    mut text: String,
    ends: Vec<usize>,
    generated: u32,
    options: &AnswerOptions,
) -> TrimmedAnswer {
    let found = options.stop.iter().find(|stop| text[cut..].starts_with(stop.as_str()));
    let included = found.filter(|_| options.output.includes_stop).map_or(0, String::len);
    let cut = cut + included;
    let stop_string = Some(found.cloned().unwrap_or_default());
    text.truncate(cut);
    let whole = ends.iter().copied().filter(|end| *end <= cut).max().unwrap_or(0);
    // The first of several ends with equal text: subsequent tokens without text of their own (half
    // a character, a special token) belong to the stop string.
    let kept = ends.iter().position(|end| *end == whole).unwrap_or(0);
    let starts = count_characters(&text, &ends[..kept]);
    TrimmedAnswer { text: Some(text), starts, ends, generated, stop_string, decode_error: None }
}

/// Returns the number of characters of `text` before each of `places`, which are in ascending
/// order.
fn count_characters(text: &str, places: &[usize]) -> Vec<usize> {
    let (mut before, mut characters) = (0, 0);
    let mut count = |place: usize| {
        characters += text[before..place].chars().count();
        before = place;
        characters
    };
    places.iter().map(|place| count(*place)).collect()
}
