//! Stored responses and the conversations that they belong to.

use serde::Serialize;
use serde_json::{Map, Value, json};

use super::input::complete_items;
use crate::body::values::invalid_value;
use crate::bounded_json::{JsonBounds, parse_bounded_object};
use crate::input_line::Rejection;

/// A stored response.
#[derive(Debug, Clone, PartialEq)]
pub struct StoredResponse {
    /// The response object.
    pub response: Value,
    /// Items of the conversation before the response, including those of previous responses.
    pub input: Vec<Value>,
}

/// A page of a list of items.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct ItemList {
    object: &'static str,
    data: Vec<Value>,
    first_id: Value,
    last_id: Value,
    has_more: bool,
}

/// Page of a list that a client requests.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct PageRequest {
    /// Maximum number of items, from 1 to 100; 20 if not given.
    pub limit: Option<String>,
    /// `asc`, or `desc` if not given.
    pub order: Option<String>,
    /// Identifier of the item that precedes the page.
    pub after: Option<String>,
}

impl StoredResponse {
    /// Creates the record of a response object, whose input items get ids that end in its own.
    pub fn new(response: Value, items: Vec<Value>) -> StoredResponse {
        let id = response["id"].as_str().unwrap_or_default();
        let suffix = id.strip_prefix("resp_").unwrap_or(id);
        let input = complete_items(items, suffix);
        StoredResponse { response, input }
    }

    /// Returns the record as JSON.
    pub fn to_bytes(&self) -> Vec<u8> {
        let record = json!({"response": self.response, "input": self.input});
        record.to_string().into_bytes()
    }

    /// Parses a record with at most `max_values` values; returns `None` if it is damaged.
    pub fn parse(bytes: &[u8], max_values: usize) -> Option<StoredResponse> {
        let text = std::str::from_utf8(bytes).ok()?;
        let bounds = JsonBounds { max_values, is_skipped: |_| false };
        let mut record: Map<String, Value> =
            parse_bounded_object(text, "record", "{}", bounds).ok()?;
        let response = record.shift_remove("response").filter(Value::is_object)?;
        match record.shift_remove("input") {
            Some(Value::Array(input)) => Some(StoredResponse { response, input }),
            _ => None,
        }
    }

    /// Returns the items of the conversation, including those of the response.
    pub fn into_items(mut self) -> Vec<Value> {
        let mut items = self.input;
        if let Value::Array(output) = self.response["output"].take() {
            items.extend(output);
        }
        items
    }

    /// Returns a page of the input items.
    ///
    /// # Errors
    /// Returns a rejection that states what was expected.
    pub fn input_page(&self, page: &PageRequest) -> Result<ItemList, Rejection> {
        let limit = page.limit.as_deref().map_or(Some(20), |limit| limit.parse().ok());
        let limit = limit.filter(|limit| (1..=100).contains(limit));
        let limit = limit.ok_or_else(|| invalid_value("limit", "an integer between 1 and 100"))?;
        let mut items: Vec<&Value> = match page.order.as_deref() {
            None | Some("desc") => self.input.iter().rev().collect(),
            Some("asc") => self.input.iter().collect(),
            Some(_) => return Err(invalid_value("order", "'asc' or 'desc'")),
        };
        if let Some(after) = &page.after {
            let place = items.iter().position(|item| item["id"] == **after);
            let place = place.ok_or_else(|| invalid_value("after", "the id of an input item"))?;
            items.drain(..=place);
        }
        let has_more = items.len() > limit;
        items.truncate(limit);
        let id = |item: Option<&&Value>| item.map_or(Value::Null, |item| item["id"].clone());
        Ok(ItemList {
            object: "list",
            first_id: id(items.first()),
            last_id: id(items.last()),
            data: items.into_iter().cloned().collect(),
            has_more,
        })
    }
}
