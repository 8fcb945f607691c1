//! A message to a function in OpenAI's Harmony format, as gpt-oss writes it:
//! `<|channel|>commentary to=functions.f <|constrain|>json<|message|>{...}`, or with whom it is to
//! before the channel.

use grammar::{CallSyntax, Headers, Part, Word};

use super::parts::{Marker, maybe, text, trigger};

/// Before a function's name.
const TO: &str = "to=functions.";
const START: &str = "<|start|>";
const CHANNEL: &str = "<|channel|>";
const MESSAGE: &str = "<|message|>";
const CONSTRAIN: &str = "<|constrain|>";

pub(super) fn is_shown(template: &str) -> bool {
    [CHANNEL, MESSAGE, "to=functions."].iter().all(|shown| template.contains(shown))
}

pub(super) fn syntax(marker: Marker<'_>) -> Result<CallSyntax, String> {
    let (channel, message) = (marker(CHANNEL)?, marker(MESSAGE)?);
    let commentary = || [Part::May(channel.clone()), maybe("commentary")];
    let kind = [maybe(" "), Part::May(marker(CONSTRAIN)?), maybe("json")];
    let middle = commentary().into_iter().chain(kind).chain([Part::Must(message.clone())]);
    let token = |word: &Word| match word {
        Word::Token(token) => Some(*token),
        Word::Text(_) => None,
    };
    let opens = [marker(START)?, channel.clone()].iter().filter_map(token).collect();
    let closes = token(&message).into_iter().collect();
    Ok(CallSyntax {
        triggers: vec![trigger(Word::Text(TO.to_owned()))],
        headers: Some(Headers { opens, closes }),
        first: commentary().into_iter().chain([maybe(" ")]).collect(),
        open: vec![text(TO)],
        middle: middle.collect(),
        ..CallSyntax::default()
    })
}
