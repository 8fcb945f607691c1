//! Bodies of `/v1/embeddings`, and the requests that result from them.

use std::sync::Arc;

use engine_api::codec::TextCodec;
use engine_api::request::{GenerationRequest, Pooling};
use serde_json::Value;

use super::model::EmbeddingModel;
use crate::body::unknown_fields::UnknownFieldPolicy;
use crate::body::values::{get_non_null, invalid_value, missing_field, read_count};
use crate::body::{JsonFields, RawPrompt};
use crate::fingerprint::fields_id;
use crate::input_line::{ErrorCode, Rejection};
use crate::prompt::{ModelLimits, tokenize_prompt};

/// Maximum number of inputs of a request, OpenAI's limit.
pub const MAX_INPUTS: usize = 2048;
/// Upper bound of `dimensions`, far above the hidden size of any model.
const MAX_DIMENSIONS: usize = 1 << 20;

/// Fields that are read, or that identify the sender.
const KNOWN_FIELDS: [&str; 5] = ["input", "model", "encoding_format", "dimensions", "user"];

/// Format of vectors in an answer.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum VectorEncoding {
    /// List of numbers.
    #[default]
    Float,
    /// Base64 of little-endian f32.
    Base64,
}

/// A well-formed body, not yet checked against the model's limits.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct EmbeddingBody {
    /// Texts or token ids, at least one and at most [`MAX_INPUTS`].
    pub inputs: Vec<RawPrompt>,
    pub encoding: VectorEncoding,
    /// Number of elements of a vector; `None` for all.
    pub dimensions: Option<usize>,
}

impl EmbeddingBody {
    /// Reads the fields of a body.
    ///
    /// # Errors
    /// Returns a rejection that names the first field that is invalid, missing or unknown.
    pub fn read(
        fields: &JsonFields,
        unknown_fields: &UnknownFieldPolicy,
    ) -> Result<EmbeddingBody, Rejection> {
        for (name, value) in fields {
            let is_known = KNOWN_FIELDS.contains(&name.as_str()) || value.is_null();
            unknown_fields.check_known(name, is_known)?;
        }
        let encoding = match get_non_null(fields, "encoding_format") {
            None => VectorEncoding::Float,
            Some(format) if format == "float" => VectorEncoding::Float,
            Some(format) if format == "base64" => VectorEncoding::Base64,
            Some(_) => return Err(invalid_value("encoding_format", "'float' or 'base64'")),
        };
        let dimensions = read_count(fields, "dimensions", 1..=MAX_DIMENSIONS)?;
        let input = get_non_null(fields, "input").ok_or_else(|| missing_field("input"))?;
        Ok(EmbeddingBody { inputs: read_inputs(input)?, encoding, dimensions })
    }
}

fn invalid_input() -> Rejection {
    let wanted = format!(
        "a string, an array of token ids, or an array of 1 to {MAX_INPUTS} strings or arrays of \
         token ids, none of them empty"
    );
    invalid_value("input", &wanted)
}

fn read_inputs(input: &Value) -> Result<Vec<RawPrompt>, Rejection> {
    let text = |text: &str| match text {
        "" => Err(invalid_input()),
        text => Ok(RawPrompt::Text(text.to_owned())),
    };
    let list = match input {
        Value::String(input) => return Ok(vec![text(input)?]),
        Value::Array(list) if !list.is_empty() => list,
        _ => return Err(invalid_input()),
    };
    if list[0].is_number() {
        return Ok(vec![read_tokens(list)?]);
    }
    if list.len() > MAX_INPUTS {
        return Err(invalid_input());
    }
    list.iter()
        .map(|input| match input {
            Value::String(input) if list[0].is_string() => text(input),
            Value::Array(tokens) if list[0].is_array() => read_tokens(tokens),
            _ => Err(invalid_input()),
        })
        .collect()
}

fn read_tokens(list: &[Value]) -> Result<RawPrompt, Rejection> {
    // An id too large for u32 is outside the vocabulary, which is checked later.
    let id = |entry: &Value| entry.as_u64().map(|id| u32::try_from(id).unwrap_or(u32::MAX));
    let tokens = list.iter().map(id).collect::<Option<Vec<u32>>>();
    let tokens = tokens.filter(|tokens| !tokens.is_empty());
    tokens.map(RawPrompt::Tokens).ok_or_else(invalid_input)
}

/// A request that can be run.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct EmbeddingRequest {
    /// Line of the input, from 1; 0 if there is no file.
    pub line: usize,
    /// Identifier that is unique among the requests of a job.
    pub custom_id: String,
    /// Token ids of each input, none of which is empty.
    pub inputs: Vec<Arc<[u32]>>,
    pub pooling: Pooling,
    pub encoding: VectorEncoding,
    /// Number of elements of a vector; `None` for all.
    pub dimensions: Option<usize>,
}

impl EmbeddingRequest {
    /// Tokenises the inputs of a body.
    ///
    /// # Errors
    /// Returns a rejection of an input that cannot be tokenised, is not in the vocabulary or
    /// exceeds the context, or if the model does not support what is requested.
    pub fn build(
        body: &EmbeddingBody,
        model: &EmbeddingModel,
        codec: Option<&dyn TextCodec>,
        limits: ModelLimits,
    ) -> Result<EmbeddingRequest, Rejection> {
        let EmbeddingBody { inputs, encoding, dimensions } = body;
        let pooling = model.require_pooling()?;
        model.check_dimensions(*dimensions)?;
        let tokenize = |input| tokenize_input(input, codec, limits);
        Ok(EmbeddingRequest {
            line: 0,
            custom_id: String::new(),
            inputs: inputs.iter().map(tokenize).collect::<Result<_, _>>()?,
            pooling,
            encoding: *encoding,
            dimensions: *dimensions,
        })
    }

    /// Returns what an engine has to compute for an input.
    pub fn generation_request(&self, input: usize) -> GenerationRequest {
        GenerationRequest {
            prompt: Arc::clone(&self.inputs[input]),
            any_logits: false,
            pooling: Some(self.pooling),
            ..GenerationRequest::greedy(Vec::new(), 1)
        }
    }

    /// Returns the number of tokens of all inputs.
    pub fn prompt_tokens(&self) -> u64 {
        self.inputs.iter().map(|input| input.len() as u64).sum()
    }

    /// Returns the identity of the request, a hash of its contents and parameters as the model sees
    /// them; see [`crate::fingerprint::request_id`].
    pub fn request_id(&self) -> String {
        let pooling = match self.pooling {
            Pooling::LastToken => 0,
            Pooling::Mean => 1,
        };
        let encoding = u8::from(self.encoding == VectorEncoding::Base64);
        let dimensions = self.dimensions.unwrap_or(0) as u64;
        let head: [&[u8]; 4] = [
            b"embedding",
            self.custom_id.as_bytes(),
            &[pooling, encoding],
            &dimensions.to_le_bytes(),
        ];
        let bytes = |tokens: &Arc<[u32]>| -> Vec<u8> {
            tokens.iter().flat_map(|token| token.to_le_bytes()).collect()
        };
        let inputs: Vec<Vec<u8>> = self.inputs.iter().map(bytes).collect();
        fields_id(head.into_iter().chain(inputs.iter().map(Vec::as_slice)))
    }
}

/// Returns the token ids of an input. A token follows every input in the engine, so that the last
/// one is computed; the context has a position for it.
fn tokenize_input(
    input: &RawPrompt,
    codec: Option<&dyn TextCodec>,
    limits: ModelLimits,
) -> Result<Arc<[u32]>, Rejection> {
    let max_tokens = limits.context.saturating_sub(1);
    let whole = ModelLimits { context: max_tokens, ..limits };
    let of_input = |rejection: Rejection| rejection.with_param("input");
    let tokens = tokenize_prompt(input, codec, 0, whole).map_err(of_input)?;
    if tokens.is_empty() {
        let message = "The input must not be empty.";
        return Err(Rejection::new(ErrorCode::EmptyPrompt, message).with_param("input"));
    }
    limits.check_tokens(tokens.iter().copied()).map_err(of_input)?;
    if tokens.len() > max_tokens {
        let message = format!(
            "This model's maximum context length is {max_tokens} tokens. However, your input \
             resulted in {} tokens. Please reduce the length of the input.",
            tokens.len()
        );
        let rejection = Rejection::new(ErrorCode::ContextLengthExceeded, message);
        return Err(rejection.with_param("input"));
    }
    Ok(tokens.into())
}
