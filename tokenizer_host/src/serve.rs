//! Main loop of a text process: it reads a model's tokenizer and chat template, and answers
//! requests until the coordinator closes the channel.

use std::os::fd::RawFd;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::Arc;
use std::time::Duration;

use rustix::event::{PollFd, PollFlags};
use rustix::process::{Resource, Rlimit, setrlimit};
use shm::Channel;

use super::message::{TextReply, TextRequest, TextSetup};
use super::model::{EncodeOutcome, ModelText};

/// Timeout of the wait for a request, which only a coordinator that hangs can reach.
const REQUEST_TIMEOUT: Duration = Duration::from_hours(365 * 24);

/// Runs a text process over the inherited descriptor `channel_number`. Returns its exit code.
///
/// # Safety
/// `channel_number` must be inherited from the coordinator, and nothing else in this process may
/// own it.
pub unsafe fn serve(channel_number: RawFd) -> u8 {
    // SAFETY: the caller guarantees that the number is ours.
    let Ok(channel) = (unsafe { Channel::from_number(channel_number) }) else { return 1 };
    let channel = Arc::new(channel);
    let watched = exit_on_close(Arc::clone(&channel));
    // A panic of a library is reported in a reply.
    std::panic::set_hook(Box::new(|_| {}));
    let Some(setup) = receive::<TextSetup>(&channel) else { return 1 };
    let limit = Rlimit { current: Some(setup.memory_bytes), maximum: Some(setup.memory_bytes) };
    if setrlimit(Resource::Data, limit).is_err() {
        return 1;
    }
    let opened = match watched {
        Ok(()) => catch_panics(|| ModelText::open(&setup.source)),
        Err(error) => {
            Err(format!("the system cannot start a tokenizer thread ({error}; see `ulimit -u`)"))
        }
    };
    let text = match opened {
        Ok(text) => text,
        Err(reason) => return u8::from(!send(&channel, &TextReply::Refused(reason))),
    };
    if !send(&channel, &TextReply::Ready { has_tokenizer: text.is_some() }) {
        return 1;
    }
    let Some(text) = text else { return 0 };
    while let Some(request) = receive::<TextRequest>(&channel) {
        let reply = catch_panics(|| handle_request(&text, request));
        if !send(&channel, &reply.unwrap_or_else(TextReply::Refused)) {
            return 1;
        }
    }
    0
}

fn handle_request(text: &ModelText, request: TextRequest) -> anyhow::Result<TextReply> {
    Ok(match request {
        TextRequest::Encode { text: prompt, max_tokens } => {
            to_reply(text.encode(&prompt, max_tokens)?)
        }
        TextRequest::EncodePart { text: part } => TextReply::Tokens(text.encode_part(&part)?),
        TextRequest::EncodeChat { chat, now_s, max_tokens } => {
            to_reply(text.encode_chat(chat, now_s, max_tokens)?)
        }
        TextRequest::ToolsTemplate => {
            TextReply::ToolsTemplate(text.tools_template().map(str::to_owned))
        }
        TextRequest::BoundaryTokens => {
            let (bos, eos) = text.boundary_tokens();
            TextReply::BoundaryTokens { bos, eos }
        }
        TextRequest::SpecialToken { text: name } => {
            TextReply::SpecialToken(text.special_token(&name))
        }
        TextRequest::Pieces { context, tokens } => {
            TextReply::Pieces(text.pieces(&context, &tokens)?)
        }
        TextRequest::BeginStream { context } => {
            let (tokens, emitted) = text.begin_stream(&context)?;
            TextReply::StreamState { tokens, emitted }
        }
        TextRequest::NextPiece { tokens, emitted, is_last } => {
            TextReply::NextPiece(text.next_piece(&tokens, emitted, is_last)?)
        }
        TextRequest::Vocabulary { tokens } => TextReply::Vocabulary(text.vocabulary(tokens)),
    })
}

fn to_reply(encoded: EncodeOutcome) -> TextReply {
    match encoded {
        EncodeOutcome::Tokens(tokens) => TextReply::Tokens(tokens),
        EncodeOutcome::TooLong { tokens } => TextReply::TooLong { tokens },
    }
}

/// Runs a function; returns an error, or the panic of a library, as the end of a sentence.
fn catch_panics<T>(run: impl FnOnce() -> anyhow::Result<T>) -> Result<T, String> {
    match catch_unwind(AssertUnwindSafe(run)) {
        Ok(Ok(value)) => Ok(value),
        Ok(Err(error)) => Err(format!("{error:#}").trim_end_matches('.').to_owned()),
        Err(panic) => {
            let message = panic.downcast_ref::<String>().map(String::as_str);
            let message =
                message.or_else(|| panic.downcast_ref::<&str>().copied()).unwrap_or("no message");
            let message: String = message.chars().take(200).collect();
            Err(format!("the tokenizer library failed ({})", message.replace('\n', " ")))
        }
    }
}

/// Starts a thread that ends this process when the coordinator's end of the channel closes,
/// whatever else is running.
///
/// # Errors
/// Returns an error if the system cannot start a thread.
fn exit_on_close(channel: Arc<Channel>) -> std::io::Result<()> {
    let watch = move || {
        loop {
            let mut polled = [PollFd::new(&*channel, PollFlags::RDHUP)];
            let waited = rustix::event::poll(&mut polled, None);
            if waited.is_ok() && !polled[0].revents().is_empty() {
                exit_process();
            }
        }
    };
    std::thread::Builder::new().spawn(watch).map(drop)
}

#[expect(
    clippy::exit,
    clippy::disallowed_methods,
    reason = "the main thread may be within a call that never returns, and nothing is left to reap"
)]
fn exit_process() -> ! {
    std::process::exit(0)
}

fn receive<T: serde::de::DeserializeOwned>(channel: &Channel) -> Option<T> {
    let (bytes, _) = channel.recv(REQUEST_TIMEOUT).ok()?;
    postcard::from_bytes(&bytes).ok()
}

fn send(channel: &Channel, reply: &TextReply) -> bool {
    postcard::to_stdvec(reply).is_ok_and(|bytes| channel.send_any(&bytes).is_ok())
}
