//! Sampling parameters recommended by a model's publisher: `generation_config.json`, or the
//! metadata of a GGUF file.

use std::path::Path;

use serde_json::{Map, Value};

use crate::source::gguf::metadata::{Metadata, MetadataError};

/// Recommended sampling parameters; `None` if not specified.
#[derive(Debug, Clone, Copy, Default, PartialEq)]
pub struct GenerationDefaults {
    /// At least 0.
    pub temperature: Option<f32>,
    /// Above 0, at most 1.
    pub top_p: Option<f32>,
    /// Number of most likely tokens that may be sampled; 0 for all.
    pub top_k: Option<u32>,
    /// From 0 to 1.
    pub min_p: Option<f32>,
    /// Above 0; 1 has no effect.
    pub repetition_penalty: Option<f32>,
}

/// Reason for which the parameters cannot be read.
#[derive(Debug, thiserror::Error)]
pub enum GenerationError {
    #[error("{path}: {source}")]
    Io { path: String, source: std::io::Error },
    #[error("{path} is not a JSON object: {reason}")]
    Json { path: String, reason: String },
    #[error("generation_config.json has {field} = {value}, but {expected} is required")]
    Value { field: &'static str, value: String, expected: &'static str },
    #[error(transparent)]
    Metadata(#[from] MetadataError),
}

impl GenerationDefaults {
    /// Reads the file of a model's directory; returns no parameters if there is no such file.
    ///
    /// # Errors
    /// A file that cannot be read or contains impossible values.
    pub fn from_directory(directory: &Path) -> Result<GenerationDefaults, GenerationError> {
        let path = directory.join("generation_config.json");
        let shown = || path.display().to_string();
        let text = match std::fs::read_to_string(&path) {
            Ok(text) => text,
            Err(error) if error.kind() == std::io::ErrorKind::NotFound => {
                return Ok(GenerationDefaults::default());
            }
            Err(source) => return Err(GenerationError::Io { path: shown(), source }),
        };
        let fields = serde_json::from_str(&text)
            .map_err(|error| GenerationError::Json { path: shown(), reason: error.to_string() })?;
        GenerationDefaults::parse(&fields)
    }

    /// Parses the fields of the file. Whether tokens are sampled at all (`do_sample`) is decided by
    /// the caller.
    ///
    /// # Errors
    /// An impossible value.
    pub fn parse(fields: &Map<String, Value>) -> Result<GenerationDefaults, GenerationError> {
        let number = |field: &'static str, expected, accepts: fn(f64) -> bool| {
            let Some(value) = fields.get(field).filter(|value| !value.is_null()) else {
                return Ok(None);
            };
            let number = value.as_f64().filter(|number| accepts(*number));
            let refused = || GenerationError::Value { field, value: value.to_string(), expected };
            number.map(|number| Some(number as f32)).ok_or_else(refused)
        };
        let whole = |number: f64| number >= -1.0 && number.fract() == 0.0 && number < 1e9;
        let top_k = number("top_k", "a whole number", whole)?;
        Ok(GenerationDefaults {
            temperature: number("temperature", "a number from 0 to 2", |number| {
                (0.0..=2.0).contains(&number)
            })?,
            top_p: number("top_p", "a number above 0, at most 1", |number| {
                number > 0.0 && number <= 1.0
            })?,
            // -1 means all tokens, as 0 does.
            top_k: top_k.map(|most| most.max(0.0) as u32),
            min_p: number("min_p", "a number from 0 to 1", |number| (0.0..=1.0).contains(&number))?,
            repetition_penalty: number("repetition_penalty", "a number above 0", |number| {
                number > 0.0
            })?,
        })
    }

    /// Reads the parameters from the metadata of a GGUF file.
    ///
    /// # Errors
    /// A value of another type.
    pub fn from_metadata(metadata: &Metadata) -> Result<GenerationDefaults, GenerationError> {
        let number = |key: &str, accepts: fn(f64) -> bool| {
            let number = metadata.number(key)?.filter(|number| accepts(*number));
            Ok::<_, MetadataError>(number.map(|number| number as f32))
        };
        Ok(GenerationDefaults {
            temperature: number("general.sampling.temp", |number| (0.0..=2.0).contains(&number))?,
            top_p: number("general.sampling.top_p", |number| number > 0.0 && number <= 1.0)?,
            top_k: metadata.integer("general.sampling.top_k")?,
            min_p: number("general.sampling.min_p", |number| (0.0..=1.0).contains(&number))?,
            repetition_penalty: number("general.sampling.penalty_repeat", |number| number > 0.0)?,
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn parse(text: &str) -> Result<GenerationDefaults, String> {
        let fields = serde_json::from_str(text).expect("JSON");
        GenerationDefaults::parse(&fields).map_err(|error| error.to_string())
    }

    #[test]
    fn what_is_said_is_read_and_the_rest_is_left_open() {
        let read = parse(
            r#"{"temperature": 0.6, "top_p": 0.95, "top_k": 20, "min_p": null, "do_sample": true,
                "repetition_penalty": 1.05, "eos_token_id": [1, 2]}"#,
        );
        let expected = GenerationDefaults {
            temperature: Some(0.6),
            top_p: Some(0.95),
            top_k: Some(20),
            min_p: None,
            repetition_penalty: Some(1.05),
        };
        assert_eq!(read, Ok(expected));
        assert_eq!(parse(r#"{"top_k": -1}"#).map(|read| read.top_k), Ok(Some(0)));
        assert_eq!(parse("{}"), Ok(GenerationDefaults::default()));
    }

    #[test]
    fn what_is_impossible_is_refused_by_name() {
        for (field, value) in
            [("temperature", "-1"), ("top_p", "0"), ("top_k", "1.5"), ("min_p", "\"a\"")]
        {
            let error = parse(&format!("{{\"{field}\": {value}}}")).expect_err(field);
            assert!(error.contains(field) && error.contains(value), "{error}");
        }
    }

    #[test]
    fn a_directory_without_the_file_says_nothing() {
        let folder = tempfile::tempdir().expect("a folder");
        let read = GenerationDefaults::from_directory(folder.path()).expect("nothing");
        assert_eq!(read, GenerationDefaults::default());
        std::fs::write(folder.path().join("generation_config.json"), "[]").expect("writable");
        assert!(GenerationDefaults::from_directory(folder.path()).is_err());
    }
}
