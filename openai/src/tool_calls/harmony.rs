//! Tool calls in OpenAI's Harmony format, as gpt-oss writes them: a message to a function,
//! `<|channel|>commentary to=functions.f <|constrain|>json<|message|>{...}`. The recipient may also
//! precede the channel.

use grammar::{CallSyntax, Headers, SyntaxElement, SyntaxPart};

use super::parts::{Marker, optional, text, trigger};

/// Recipient of a call, before the function's name.
const RECIPIENT_PREFIX: &str = "to=functions.";
const START: &str = "<|start|>";
const CHANNEL: &str = "<|channel|>";
const MESSAGE: &str = "<|message|>";
const CONSTRAIN: &str = "<|constrain|>";

pub(super) fn matches_template(template: &str) -> bool {
    [CHANNEL, MESSAGE, RECIPIENT_PREFIX].iter().all(|shown| template.contains(shown))
}

pub(super) fn syntax(marker: Marker<'_>) -> Result<CallSyntax, String> {
    let (channel, message) = (marker(CHANNEL)?, marker(MESSAGE)?);
    let word = |text: &str| SyntaxElement::Text(text.to_owned());
    let commentary = || SyntaxPart::MayAll(vec![channel.clone(), word("commentary")]);
    let constrained = SyntaxPart::MayAll(vec![word(" "), marker(CONSTRAIN)?, word("json")]);
    let token = |word: &SyntaxElement| match word {
        SyntaxElement::Token(token) => Some(*token),
        _ => None,
    };
    let opens = [marker(START)?, channel.clone()].iter().filter_map(token).collect();
    let closes = token(&message).into_iter().collect();
    Ok(CallSyntax {
        triggers: vec![trigger(word(RECIPIENT_PREFIX))],
        headers: Some(Headers { opens, closes }),
        first: vec![commentary(), optional(" ")],
        open: vec![text(RECIPIENT_PREFIX)],
        middle: vec![commentary(), constrained, optional(" json"), SyntaxPart::Must(message)],
        ..CallSyntax::default()
    })
}
