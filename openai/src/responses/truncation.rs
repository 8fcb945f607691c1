//! Conversations that are shortened until they fit the context.

use engine_api::codec::ChatTurn;

use crate::body::{Body, RawPrompt};
use crate::input_line::CompletionRequest;

/// Builds a request from a body whose conversation is shortened if it exceeds the context: as few
/// of the earliest turns as possible are removed, but neither system messages at the beginning, nor
/// calls without their results. `exceeds_context` returns true for the error of a conversation that
/// is too long.
///
/// # Errors
/// Returns the error of `build`; if the last turn alone exceeds the context, that of the whole
/// conversation.
pub fn build_truncated<E>(
    body: &mut Body,
    build: impl Fn(&Body) -> Result<CompletionRequest, E>,
    exceeds_context: impl Fn(&E) -> bool,
) -> Result<CompletionRequest, E> {
    let error = match build(body) {
        Err(error) if exceeds_context(&error) => error,
        built => return built,
    };
    let Some(RawPrompt::Chat(chat)) = body.prompts.first_mut() else { return Err(error) };
    let turns = std::mem::take(&mut chat.turns);
    let is_system = |turn: &&ChatTurn| ["system", "developer"].contains(&&*turn.role);
    let kept = turns.iter().take_while(is_system).count();
    let starts: Vec<usize> =
        (kept + 1..turns.len()).filter(|start| turns[*start].role != "tool").collect();
    let mut build_from = |start: usize| {
        if let Some(RawPrompt::Chat(chat)) = body.prompts.first_mut() {
            chat.turns = [&turns[..kept], &turns[start..]].concat();
        }
        build(body)
    };
    // The conversations get shorter, so the first that fits is found by bisection.
    let (mut low, mut high) = (0, starts.len());
    let mut fitting = None;
    while low < high {
        let middle = low.midpoint(high);
        match build_from(starts[middle]) {
            Ok(request) => {
                fitting = Some(request);
                high = middle;
            }
            Err(error) if exceeds_context(&error) => low = middle + 1,
            Err(error) => return Err(error),
        }
    }
    fitting.ok_or(error)
}
