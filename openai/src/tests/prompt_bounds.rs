//! Texts that cannot fit the context are rejected without being tokenised as a whole.

use engine_api::codec::{ChatTurn, Conversation};
use testkit::byte_codec::ByteCodec;

use crate::body::RawPrompt;
use crate::input_line::ErrorCode;
use crate::prompt_bounds::PromptBounds;

fn check(bounds: PromptBounds, prompt: RawPrompt) -> Result<(), ErrorCode> {
    bounds.check(&[prompt], Some(&ByteCodec::CHAT)).map_err(|rejection| rejection.code)
}

#[test]
fn what_cannot_fit_is_refused_by_its_size() {
    let bounds = PromptBounds::new(100, 258, Some(&ByteCodec::CHAT));
    assert_eq!(bounds, PromptBounds { context: 100, token_bytes: 1 });
    assert_eq!(check(bounds, RawPrompt::Text("a".repeat(100))), Ok(()));
    let too_long = Err(ErrorCode::ContextLengthExceeded);
    assert_eq!(check(bounds, RawPrompt::Text("a".repeat(200_000))), Ok(()), "it is counted");
    assert_eq!(check(bounds, RawPrompt::Text("a".repeat(300_000))), too_long);
    let chat = |turns: usize, text: &str| {
        let turn = |_| ChatTurn::new("user", text.to_owned());
        RawPrompt::Chat(Conversation::new((0..turns).map(turn).collect()))
    };
    assert_eq!(check(bounds, chat(100, "a")), Ok(()));
    assert_eq!(check(bounds, chat(2, &"a".repeat(150_000))), too_long);
    assert_eq!(check(bounds, chat(101, "")), too_long);
    assert_eq!(check(bounds, RawPrompt::Tokens(vec![1; 500])), Ok(()), "it is judged later");
}

#[test]
fn long_texts_are_counted_piece_by_piece() {
    // With a longest token of 300 bytes, only the number of tokens exceeds its bound.
    let bounds = PromptBounds { context: 1_000_000, token_bytes: 300 };
    assert_eq!(check(bounds, RawPrompt::Text("é".repeat(450_000))), Ok(()));
    let longer = RawPrompt::Text("é".repeat(600_000));
    assert_eq!(check(bounds, longer), Err(ErrorCode::ContextLengthExceeded));
}
