//! Parser of an input line of a job of embeddings, which is in OpenAI's batch format.

use engine_api::codec::TextCodec;
use openai::body::unknown_fields::UnknownFieldPolicy;
use openai::embeddings::model::EmbeddingModel;
use openai::embeddings::request::{EmbeddingBody, EmbeddingRequest};
use openai::input_line::{BatchEndpoint, ErrorCode, Rejection};
use openai::json::parse_object;
use openai::prompt::ModelLimits;

use crate::input::{
    BATCH_LINE_EXAMPLE, BatchLineParts, ParsedLine, decode_utf8, parse_custom_id, read_batch_line,
};
use crate::line_bounds::LineBounds;

/// Options that apply to every line.
#[derive(Debug, Clone, Copy)]
pub struct EmbeddingLineOptions<'a> {
    pub model: &'a EmbeddingModel,
    pub limits: ModelLimits,
    pub unknown_fields: &'a UnknownFieldPolicy,
    /// `None` if the model has no tokenizer.
    pub codec: Option<&'a dyn TextCodec>,
    /// Bounds on every line; `None` for an input of the user.
    pub bounds: Option<&'a LineBounds>,
}

/// Parses one line that is not blank.
pub fn parse_embedding_line(
    raw: &[u8],
    line: usize,
    options: &EmbeddingLineOptions<'_>,
) -> ParsedLine<EmbeddingRequest> {
    let (mut custom_id, mut is_request) = (None, false);
    let result = (|| {
        let text = decode_utf8(raw)?;
        let fields = match options.bounds {
            Some(bounds) => bounds.parse_object(text, BATCH_LINE_EXAMPLE)?,
            None => parse_object(text, "line", BATCH_LINE_EXAMPLE)?,
        };
        custom_id = parse_custom_id(&fields)?;
        is_request = true;
        let BatchLineParts { target, body } = read_batch_line(&fields)?;
        options.bounds.map_or(Ok(()), |bounds| bounds.check_target(target, body))?;
        if target != BatchEndpoint::Embeddings {
            let message = format!(
                "Invalid value for 'url': must be \"/v1/embeddings\" like that of the first line, \
                 got \"{}\".",
                target.url()
            );
            return Err(Rejection::new(ErrorCode::UnsupportedUrl, message));
        }
        let body = EmbeddingBody::read(body, options.unknown_fields)?;
        if let Some(bounds) = options.bounds {
            bounds.prompts.check(&body.inputs, options.codec)?;
        }
        let EmbeddingLineOptions { model, limits, codec, .. } = *options;
        Ok(EmbeddingRequest { line, ..EmbeddingRequest::build(&body, model, codec, limits)? })
    })();
    ParsedLine { custom_id, is_request, result }
}

/// Returns true if the first line of an input that is not blank requests embeddings.
pub(crate) fn requests_embeddings(bytes: &[u8]) -> bool {
    let is_blank = |line: &&[u8]| line.iter().all(u8::is_ascii_whitespace);
    let Some(first) = bytes.split(|byte| *byte == b'\n').find(|line| !is_blank(line)) else {
        return false;
    };
    let first = decode_utf8(first).and_then(|text| parse_object(text, "line", BATCH_LINE_EXAMPLE));
    first.is_ok_and(|fields| {
        fields.get("url").is_some_and(|url| url == BatchEndpoint::Embeddings.url())
    })
}
