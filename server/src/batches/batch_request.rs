//! Fields of a request that creates a batch.

use openai::body::JsonFields;
use openai::body::unknown_fields::UnknownFieldPolicy;
use openai::input_line::{BatchEndpoint, ErrorCode, Rejection};
use serde_json::{Map, Value};

use super::ids::{FILE_PREFIX, is_id};

/// Bounds on metadata, OpenAI's.
const MAX_METADATA_PAIRS: usize = 16;
const MAX_METADATA_KEY: usize = 64;
const MAX_METADATA_VALUE: usize = 512;

/// Longest completion window, in seconds.
const MAX_WINDOW_S: u64 = 30 * 24 * 3600;
/// Lifetimes of output files, OpenAI's, in seconds.
const MIN_LIFETIME_S: u64 = 3600;
const MAX_LIFETIME_S: u64 = 30 * 24 * 3600;

const KNOWN_FIELDS: [&str; 5] =
    ["input_file_id", "endpoint", "completion_window", "metadata", "output_expires_after"];

/// A request that creates a batch.
#[derive(Debug, Clone, PartialEq)]
pub struct BatchRequest {
    pub input_file_id: String,
    pub endpoint: BatchEndpoint,
    /// Time window as the client names it.
    pub completion_window: String,
    pub window_s: u64,
    pub metadata: Option<Map<String, Value>>,
    /// Lifetime of output and error file, in seconds; `None` if they are kept.
    pub output_lifetime_s: Option<u64>,
}

impl BatchRequest {
    /// Reads the fields of a body.
    ///
    /// # Errors
    /// A field is missing, invalid or unknown.
    pub fn read(
        fields: &JsonFields,
        unknown_fields: &UnknownFieldPolicy,
    ) -> Result<BatchRequest, Rejection> {
        for (name, value) in fields {
            let is_known = KNOWN_FIELDS.contains(&name.as_str()) || value.is_null();
            unknown_fields.check_known(name, is_known)?;
        }
        let input_file_id = read_text(fields, "input_file_id")?.to_owned();
        if !is_id(&input_file_id, FILE_PREFIX) {
            return Err(invalid("input_file_id", "the id of an uploaded file"));
        }
        let completion_window = read_text(fields, "completion_window")?.to_owned();
        let window_s = parse_window(&completion_window)
            .ok_or_else(|| invalid("completion_window", "a time such as '24h', at most '30d'"))?;
        Ok(BatchRequest {
            input_file_id,
            endpoint: read_endpoint(fields)?,
            completion_window,
            window_s,
            metadata: read_metadata(fields)?,
            output_lifetime_s: read_lifetime(fields)?,
        })
    }
}

fn invalid(name: &str, expected: &str) -> Rejection {
    let message = format!("Invalid value for '{name}': must be {expected}.");
    Rejection::new(ErrorCode::InvalidValue, message).with_param(name)
}

fn read_text<'f>(fields: &'f JsonFields, name: &str) -> Result<&'f str, Rejection> {
    match fields.get(name) {
        None | Some(Value::Null) => {
            let message = format!("Missing required parameter: '{name}'.");
            Err(Rejection::new(ErrorCode::MissingField, message).with_param(name))
        }
        Some(Value::String(text)) => Ok(text),
        Some(_) => Err(invalid(name, "a string")),
    }
}

fn read_endpoint(fields: &JsonFields) -> Result<BatchEndpoint, Rejection> {
    let url = read_text(fields, "endpoint")?;
    BatchEndpoint::from_url(url).ok_or_else(|| {
        let shown: String = url.chars().take(100).collect();
        let urls = BatchEndpoint::list_urls('\'');
        let message = format!("Invalid value: '{shown}'. Supported values are {urls}.");
        Rejection::new(ErrorCode::InvalidValue, message).with_param("endpoint")
    })
}

/// Parses a number of seconds, minutes, hours or days, such as `24h`.
fn parse_window(text: &str) -> Option<u64> {
    let unit_s = match text.chars().last()? {
        's' => 1,
        'm' => 60,
        'h' => 3600,
        'd' => 24 * 3600,
        _ => return None,
    };
    let digits = &text[..text.len() - 1];
    let is_number = digits.bytes().all(|byte| byte.is_ascii_digit());
    let seconds = digits.parse::<u64>().ok().filter(|_| is_number)?.checked_mul(unit_s)?;
    (1..=MAX_WINDOW_S).contains(&seconds).then_some(seconds)
}

fn read_metadata(fields: &JsonFields) -> Result<Option<Map<String, Value>>, Rejection> {
    let Some(value) = fields.get("metadata").filter(|value| !value.is_null()) else {
        return Ok(None);
    };
    let is_pair = |(key, value): (&String, &Value)| {
        let value = value.as_str();
        key.chars().count() <= MAX_METADATA_KEY
            && value.is_some_and(|value| value.chars().count() <= MAX_METADATA_VALUE)
    };
    let pairs = value.as_object().filter(|pairs| pairs.len() <= MAX_METADATA_PAIRS);
    let pairs = pairs.filter(|pairs| pairs.iter().all(is_pair));
    pairs.cloned().map(Some).ok_or_else(|| {
        let expected = format!(
            "an object of at most {MAX_METADATA_PAIRS} strings, with keys of at most \
             {MAX_METADATA_KEY} characters and values of at most {MAX_METADATA_VALUE}"
        );
        invalid("metadata", &expected)
    })
}

fn read_lifetime(fields: &JsonFields) -> Result<Option<u64>, Rejection> {
    let Some(value) = fields.get("output_expires_after").filter(|value| !value.is_null()) else {
        return Ok(None);
    };
    let seconds = value.get("seconds").and_then(Value::as_u64);
    let is_anchor = value.get("anchor").is_some_and(|anchor| anchor == LIFETIME_ANCHOR);
    let seconds = seconds.filter(|seconds| is_anchor && is_lifetime(*seconds));
    seconds.map(Some).ok_or_else(|| invalid("output_expires_after", &lifetime_description()))
}

/// Event from which lifetimes of files are counted.
pub const LIFETIME_ANCHOR: &str = "created_at";

/// Returns true if files may have this lifetime, in seconds.
pub fn is_lifetime(seconds: u64) -> bool {
    (MIN_LIFETIME_S..=MAX_LIFETIME_S).contains(&seconds)
}

/// Returns the description of valid lifetimes, for messages.
pub fn lifetime_description() -> String {
    format!("'{LIFETIME_ANCHOR}' as 'anchor' and {MIN_LIFETIME_S} to {MAX_LIFETIME_S} as 'seconds'")
}

#[cfg(test)]
mod tests {
    use openai::input_line::Endpoint;
    use serde_json::json;

    use super::*;

    fn fields() -> Value {
        json!({"input_file_id": format!("file-{}", "0".repeat(32)),
            "endpoint": "/v1/completions", "completion_window": "24h"})
    }

    fn read(name: &str, value: Value) -> Result<BatchRequest, Rejection> {
        let mut fields = fields();
        fields[name] = value;
        let fields = fields.as_object().expect("an object");
        BatchRequest::read(fields, &UnknownFieldPolicy::default())
    }

    #[test]
    fn valid_fields_are_read() {
        let request = read("metadata", json!({"a": "b"})).expect("valid");
        let endpoint = BatchEndpoint::Answers(Endpoint::Completions);
        assert_eq!((request.endpoint, request.window_s), (endpoint, 24 * 3600));
        assert_eq!(request.metadata.map(|pairs| pairs.len()), Some(1));
        for (window, seconds) in [("5s", 5), ("30d", 30 * 86_400), ("1m", 60)] {
            let request = read("completion_window", json!(window)).expect("valid");
            assert_eq!(request.window_s, seconds, "{window}");
        }
        let lifetime = json!({"anchor": "created_at", "seconds": 3600});
        let request = read("output_expires_after", lifetime).expect("valid");
        assert_eq!(request.output_lifetime_s, Some(3600));
        assert!(read("unknown", Value::Null).is_ok());
    }

    #[test]
    fn invalid_fields_are_named() {
        let many: Map<String, Value> = (0..17).map(|i| (i.to_string(), json!("x"))).collect();
        for (name, value) in [
            ("input_file_id", Value::Null),
            ("input_file_id", json!("file-../../etc")),
            ("input_file_id", json!(1)),
            ("endpoint", json!("/v1/messages")),
            ("endpoint", Value::Null),
            ("completion_window", json!("31d")),
            ("completion_window", json!("0h")),
            ("completion_window", json!("+1h")),
            ("completion_window", json!("h")),
            ("completion_window", json!("")),
            ("completion_window", json!("1\u{e9}")),
            ("completion_window", json!("99999999999999999999h")),
            ("metadata", json!({"a": 1})),
            ("metadata", json!({"a".repeat(65): "x"})),
            ("metadata", json!({"a": "x".repeat(513)})),
            ("metadata", Value::Object(many)),
            ("metadata", json!([])),
            ("output_expires_after", json!({"anchor": "created_at", "seconds": 3599})),
            ("output_expires_after", json!({"anchor": "now", "seconds": 3600})),
            ("output_expires_after", json!(3600)),
            ("priority", json!(1)),
        ] {
            let refused = read(name, value.clone()).expect_err(name);
            assert_eq!(refused.param.as_deref(), Some(name), "{value}");
            assert!(refused.message.contains(name) || name == "endpoint", "{}", refused.message);
        }
    }
}
