//! Check that the objects of a schema may have as many keys as they must have.

use llguidance::api::TopLevelGrammar;
use llguidance::{Matcher, ParserFactory};
use serde_json::{Map, Value, json};

use crate::bounds::{MAX_MIN_PROPERTIES, check_limit};
use crate::definition::create_parser;
use crate::error::GrammarError;
use crate::mask::tokens;
use crate::whitespace::ESCAPES;
use crate::{schema, subschemas};

/// Maximum size of the key prefixes examined for one schema, in bytes, including what is copied
/// with each.
const MAX_PREFIX_BYTES: usize = 1 << 19;

/// Checks all objects of a schema with a parser whose tokens are bytes.
///
/// # Errors
/// Returns an error if an object has fewer possible keys than required.
pub(crate) fn check_min_properties(
    factory: &ParserFactory,
    root: &Value,
) -> Result<(), GrammarError> {
    let mut examined_bytes = 0;
    let mut all = subschemas::all(root);
    all.try_for_each(|schema| check_object(factory, root, schema, &mut examined_bytes))
}

/// Checks a schema itself if it describes objects with `patternProperties`. Other objects have
/// declared keys, whose number the parser knows, or unlimited keys.
fn check_object(
    factory: &ParserFactory,
    root: &Value,
    schema: &Map<String, Value>,
    examined_bytes: &mut usize,
) -> Result<(), GrammarError> {
    let parts = schema::parts(root, schema);
    let min_properties = parts.iter().filter_map(|part| part.get("minProperties")?.as_u64()).max();
    let min_properties = usize::try_from(min_properties.unwrap_or(0)).unwrap_or(usize::MAX);
    if min_properties == 0 || !parts.iter().any(|part| part.contains_key("patternProperties")) {
        return Ok(());
    }
    check_limit("`minProperties` with `patternProperties`", min_properties, MAX_MIN_PROPERTIES)?;
    let parts: Vec<Value> = parts.into_iter().map(keys_only_schema).collect();
    let written = json!({"whitespace_flexible": false, "json_allowed_escapes": ESCAPES});
    let probe = json!({"allOf": parts, "x-guidance": written});
    // If the keys alone cannot be compiled, compiling the whole schema reports the error.
    let Ok(parser) = create_parser(factory, TopLevelGrammar::from_json_schema(probe)) else {
        return Ok(());
    };
    let count = count_keys(Matcher::new(Ok(parser)), min_properties, examined_bytes)?;
    if count >= min_properties {
        return Ok(());
    }
    let keys = if count == 1 { "1 key" } else { &format!("{count} keys") };
    Err(GrammarError(format!(
        "an object must have {min_properties} keys (`minProperties`), but it can have only {keys}; \
         lower `minProperties`, or let `patternProperties` or `additionalProperties` have more"
    )))
}

/// Returns a schema with the same keys, whose values are null.
fn keys_only_schema(schema: &Map<String, Value>) -> Value {
    let null = |value: &Value| match value {
        Value::Bool(false) => json!(false),
        _ => json!({"type": "null"}),
    };
    let mut keys = Map::from_iter([("type".to_owned(), json!("object"))]);
    for name in ["properties", "patternProperties"] {
        if let Some(Value::Object(of)) = schema.get(name) {
            let of = of.iter().map(|(name, value)| (name.clone(), null(value)));
            keys.insert(name.to_owned(), Value::Object(of.collect()));
        }
    }
    let others = schema.get("additionalProperties");
    keys.insert(
        "additionalProperties".to_owned(),
        others.map_or_else(|| json!({"type": "null"}), null),
    );
    Value::Object(keys)
}

/// A prefix of a key.
struct KeyPrefix {
    matcher: Matcher,
    is_escaped: bool,
}

/// Counts the keys with which an object can begin, up to `max_count`.
fn count_keys(
    mut matcher: Matcher,
    max_count: usize,
    examined_bytes: &mut usize,
) -> Result<usize, GrammarError> {
    let failed = |error| GrammarError::new(&error);
    let opened = matcher.consume_token(b'{'.into());
    if opened.and_then(|()| matcher.consume_token(b'"'.into())).is_err() {
        return Ok(0);
    }
    let (mut keys, mut length) = (0, 0);
    let mut prefixes = vec![KeyPrefix { matcher, is_escaped: false }];
    // All prefixes have the same length, and at least one key begins with each.
    while !prefixes.is_empty() && keys + prefixes.len() < max_count {
        length += 1;
        let mut longer = Vec::new();
        for KeyPrefix { mut matcher, is_escaped } in prefixes {
            *examined_bytes += 16 + length;
            check_limit("the size of the beginnings of keys", *examined_bytes, MAX_PREFIX_BYTES)?;
            let mask = matcher.compute_mask_or_eos().map_err(failed)?;
            for token in tokens(mask.as_slice()).filter(|token| *token < 256) {
                if token == u32::from(b'"') && !is_escaped {
                    keys += 1;
                } else if keys + longer.len() < max_count {
                    let mut matcher = matcher.clone();
                    matcher.consume_token(token).map_err(failed)?;
                    let is_escaped = token == u32::from(b'\\') && !is_escaped;
                    longer.push(KeyPrefix { matcher, is_escaped });
                }
            }
        }
        prefixes = longer;
    }
    Ok((keys + prefixes.len()).min(max_count))
}
