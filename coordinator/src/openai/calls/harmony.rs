//! Tool calls in OpenAI's Harmony format, as gpt-oss writes them: a message to a function,
//! `<|channel|>commentary to=functions.f <|constrain|>json<|message|>{...}`. The recipient may also
//! precede the channel.

use grammar::{CallSyntax, Headers, Part, Word};

use super::parts::{Marker, maybe, text, trigger};

/// Recipient of a call, before the function's name.
const TO: &str = "to=functions.";
const START: &str = "<|start|>";
const CHANNEL: &str = "<|channel|>";
const MESSAGE: &str = "<|message|>";
const CONSTRAIN: &str = "<|constrain|>";

pub(super) fn is_shown(template: &str) -> bool {
    [CHANNEL, MESSAGE, TO].iter().all(|shown| template.contains(shown))
}

pub(super) fn syntax(marker: Marker<'_>) -> Result<CallSyntax, String> {
    let (channel, message) = (marker(CHANNEL)?, marker(MESSAGE)?);
    let word = |text: &str| Word::Text(text.to_owned());
    let commentary = || Part::MayAll(vec![channel.clone(), word("commentary")]);
    let constrained = Part::MayAll(vec![word(" "), marker(CONSTRAIN)?, word("json")]);
    let token = |word: &Word| match word {
        Word::Token(token) => Some(*token),
        _ => None,
    };
    let opens = [marker(START)?, channel.clone()].iter().filter_map(token).collect();
    let closes = token(&message).into_iter().collect();
    Ok(CallSyntax {
        triggers: vec![trigger(word(TO))],
        headers: Some(Headers { opens, closes }),
        first: vec![commentary(), maybe(" ")],
        open: vec![text(TO)],
        middle: vec![commentary(), constrained, maybe(" json"), Part::Must(message)],
        ..CallSyntax::default()
    })
}
