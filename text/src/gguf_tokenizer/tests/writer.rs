//! Metadata of small files, whose keys tests set and remove.

use model::source::gguf::metadata::{Metadata, MetadataArray, MetadataValue};

/// Keys and values of a file.
#[derive(Debug, Clone)]
pub(super) struct Writer {
    pub(super) values: Vec<(String, MetadataValue)>,
}

impl Writer {
    pub(super) fn new() -> Self {
        Self { values: Vec::new() }
    }

    /// Sets a key, replacing its previous value.
    pub(super) fn set(&mut self, key: &str, value: MetadataValue) {
        self.remove(key);
        self.values.push((key.to_owned(), value));
    }

    pub(super) fn remove(&mut self, key: &str) {
        self.values.retain(|(known, _)| known != key);
    }

    pub(super) fn text(&mut self, key: &str, text: &str) {
        self.set(key, MetadataValue::Text(text.to_owned()));
    }

    pub(super) fn integer(&mut self, key: &str, number: u64) {
        self.set(key, MetadataValue::Unsigned(number));
    }

    pub(super) fn texts(&mut self, key: &str, texts: &[&str]) {
        let texts = texts.iter().map(|text| (*text).to_owned()).collect();
        self.set(key, MetadataValue::Array(MetadataArray::Texts(texts)));
    }

    /// Returns the metadata as a file's parser does.
    pub(super) fn metadata(&self) -> Metadata {
        let mut metadata = Metadata::default();
        for (key, value) in &self.values {
            metadata.insert(key.clone(), value.clone());
        }
        metadata
    }
}
