//! From the bytes of a request to what is asked of the engine.

use std::sync::Arc;
use std::time::{SystemTime, UNIX_EPOCH};

use serde_json::{Map, Value};

use super::admission::Ticket;
use super::answer_memory::{AnswerMemory, AnswerMemoryPermit};
use super::error::ApiError;
use super::facts::ModelCard;
use super::shared::Shared;
use crate::boundary::codec::TextCodec;
use crate::boundary::serving::{Logprob, PreparedGrammar, Submission};
use crate::openai::body::unread::is_without_effect;
use crate::openai::body::{Body, Origin, RawPrompt, Rules, StreamOptions, read_body};
use crate::openai::bounded_json::{JsonBounds, parse_bounded_object};
use crate::openai::echo::{EchoedPrompt, OfPrompt};
use crate::openai::fingerprint::sampling_id;
use crate::openai::item::{Endpoint, ErrorCode, Rejection, Request};
use crate::openai::prompt::Limits;
use crate::openai::request::Building;

/// Bytes of text that a token stands for, about; counted until it is tokenised.
const BYTES_PER_TOKEN: usize = 4;

/// What a client asks for.
#[derive(Debug)]
pub struct Order {
    pub request: Arc<Request>,
    /// `None`: it is told whole.
    pub stream: Option<StreamOptions>,
    /// The prompts, where answers begin with them.
    pub echoed: Vec<EchoedPrompt>,
    /// The request's grammar, once it was checked.
    prepared: Option<Arc<PreparedGrammar>>,
}

/// What some editors begin a text with.
const BOM: &[u8] = b"\xef\xbb\xbf";

/// Values of a body that a server reads at least, whatever prompts it takes.
const MIN_MAX_VALUES: u64 = 1_000_000;

/// The fields of a body.
///
/// # Errors
/// Bytes that are no JSON object.
pub fn fields(bytes: &[u8], shared: &Shared) -> Result<Map<String, Value>, ApiError> {
    let bytes = bytes.strip_prefix(BOM).unwrap_or(bytes);
    let text = std::str::from_utf8(bytes).map_err(|error| {
        let place = error.valid_up_to() + 1;
        let message = format!("The body is not UTF-8 (byte {place}).");
        Rejection::new(ErrorCode::InvalidUtf8, message)
    })?;
    let max_values = shared.options.max_queue_tokens.max(MIN_MAX_VALUES);
    let max_values = usize::try_from(max_values).unwrap_or(usize::MAX);
    let bounds = JsonBounds { max_values, is_skipped: is_without_effect };
    let example = "{\"prompt\": \"...\"} or {\"messages\": [...]}";
    Ok(parse_bounded_object(text, "body", example, bounds)?)
}

/// Refuses a request for another model.
///
/// # Errors
/// The model that is served has other names.
pub fn check_model(fields: &Map<String, Value>, shared: &Shared) -> Result<(), ApiError> {
    match fields.get("model") {
        None | Some(Value::Null) => Ok(()),
        Some(Value::String(name)) if shared.model.names.contains(name) => Ok(()),
        Some(Value::String(name)) => Err(ApiError::no_such_model(name, shared.model.name())),
        Some(_) => {
            let message = "The field \"model\" must be a text.";
            Err(Rejection::new(ErrorCode::InvalidValue, message).into())
        }
    }
}

/// Reads a request; `ticket` counts what it turns out to be.
///
/// # Errors
/// What is wrong with it, or that there is no room for it.
pub fn read(
    bytes: &[u8],
    endpoint: Endpoint,
    shared: &Shared,
    ticket: &mut Ticket,
) -> Result<Order, ApiError> {
    let fields = fields(bytes, shared)?;
    check_model(&fields, shared)?;
    let unread = &shared.unread;
    let rules = Rules { origin: Origin::Client, sampling: shared.model.sampling, unread };
    let body = read_body(&fields, endpoint, &rules)?;
    drop(fields);
    let answers = (body.prompts.len() * body.n) as u64;
    let count = |ticket: &mut Ticket, tokens: u64| {
        ticket.count(answers, tokens).map_err(|full| shared.full(full))
    };
    count(ticket, body.prompts.iter().map(estimated_tokens).sum())?;
    let codec = shared.model.codec.as_deref().map(|codec| codec as &dyn TextCodec);
    shared.prompt_bounds.check(&body.prompts, codec)?;
    let request = build(&body, endpoint, shared)?;
    drop(body.prompts);
    count(ticket, request.prompts.iter().map(|prompt| prompt.tokens.len() as u64).sum())?;
    let echoed = if body.echo { echoed(&request, shared)? } else { Vec::new() };
    let (request, stream) = (Arc::new(request), body.stream);
    Ok(Order { request, stream, echoed, prepared: None })
}

fn estimated_tokens(prompt: &RawPrompt) -> u64 {
    let tokens = match prompt {
        RawPrompt::Tokens(tokens) => tokens.len(),
        RawPrompt::Text(text) => text.len() / BYTES_PER_TOKEN,
        RawPrompt::Chat(chat) => chat.size_bytes() / BYTES_PER_TOKEN,
    };
    tokens.max(1) as u64
}

fn build(body: &Body, endpoint: Endpoint, shared: &Shared) -> Result<Request, ApiError> {
    let codec = shared.model.codec.as_deref().map(|codec| codec as &dyn TextCodec);
    let now = SystemTime::now().duration_since(UNIX_EPOCH);
    let building = Building {
        max_tokens: shared.options.max_tokens,
        // What the context leaves.
        chat_max_tokens: u32::MAX,
        seed: shared.options.seed,
        now_s: now.map_or(0, |since| since.as_secs()),
        codec,
        chats: &shared.chats,
        limits: Limits { context: shared.context(), vocab_size: shared.model.vocab_size },
    };
    let request = building.build(endpoint, body)?;
    let most = shared.engine.limits().logprobs;
    if request.logprobs_of_token().max(request.logprobs_of_prompt_token()) > most {
        let message = format!(
            "This server tells at most {} of the most likely tokens of a place.",
            most.saturating_sub(1)
        );
        return Err(Rejection::new(ErrorCode::InvalidValue, message).into());
    }
    Ok(Request { custom_id: shared.new_id(), ..request })
}

fn echoed(request: &Request, shared: &Shared) -> Result<Vec<EchoedPrompt>, Rejection> {
    let Some(codec) = shared.model.codec.as_deref() else {
        let message = "This model has no tokenizer, so \"echo\" has no text; leave it out.";
        return Err(Rejection::new(ErrorCode::NoTokenizer, message));
    };
    let echoed = |tokens: &[u32]| {
        EchoedPrompt::new(tokens, codec).map_err(|reason| {
            let message = format!("The prompt cannot be turned into text: {reason}.");
            Rejection::new(ErrorCode::Tokenizer, message)
        })
    };
    request.prompts.iter().map(|prompt| echoed(&prompt.tokens)).collect()
}

impl Order {
    /// Returns the request with its grammar checked, shared with others that ask for the same, and
    /// prepared for the engine.
    ///
    /// # Errors
    /// A grammar that no answer can follow.
    pub fn with_grammar(mut self, shared: &Shared) -> Result<Order, ApiError> {
        let request = Arc::unwrap_or_clone(self.request);
        let request = shared.grammars.check_request(request)?;
        let prepare = |grammar| Arc::new(shared.engine.prepare(grammar));
        self.prepared = request.grammar.clone().map(prepare);
        self.request = Arc::new(request);
        Ok(self)
    }

    /// Takes the memory that the answers may need.
    ///
    /// # Errors
    /// There is not so much.
    pub fn take_memory(&self, shared: &Shared) -> Result<AnswerMemoryPermit, ApiError> {
        let free_bytes = AnswerMemory::plain_bytes(shared.context() as u64);
        let (is_streamed, retry) = (self.stream.is_some(), shared.admission.retry_after_s());
        shared.answer_memory.take(&self.request, is_streamed, free_bytes, retry)
    }

    /// What the engine is asked for one of the answers.
    pub fn submission(&self, choice: usize) -> Submission {
        let request = &*self.request;
        let prompt = request.prompt_of(choice);
        Submission {
            prompt: prompt.tokens.clone(),
            max_new: prompt.drawn(),
            sampling: request.sampling,
            seed: request.seed,
            id_hash: sampling_id(request, choice),
            ignore_eos: request.ignore_eos,
            logprobs: request.logprobs_of_token(),
            prompt_logprobs: request.logprobs_of_prompt_token(),
            prompt_logprobs_from: 1,
            grammar: self.prepared.clone(),
        }
    }

    /// Whether of an answer only its prompt is looked at.
    pub fn is_prompt_alone(&self, choice: usize) -> bool {
        self.request.prompt_of(choice).max_new == 0
    }

    /// What is told of an answer's prompt, of which the engine said so much.
    pub fn of_prompt<'p>(
        &'p self,
        choice: usize,
        found: &'p [Logprob],
        model: &'p ModelCard,
    ) -> OfPrompt<'p> {
        let codec = model.codec.as_deref().map(|codec| codec as &dyn TextCodec);
        OfPrompt { request: &self.request, echoed: self.echo_of(choice), found, codec }
    }

    /// The prompt that an answer begins with.
    pub fn echo_of(&self, choice: usize) -> Option<&EchoedPrompt> {
        self.echoed.get(choice / self.request.n)
    }
}
