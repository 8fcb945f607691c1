//! Pages of lists, as OpenAI's clients iterate over them.

use serde::Serialize;

use super::storage_index::StoredRecord;
use crate::error::ApiError;
use crate::query::parameter;

/// Request for a page of a list.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ListQuery {
    limit: usize,
    /// Id of the object after which the page begins; `None` for the first page.
    after: Option<String>,
    /// True if the oldest objects come first.
    is_ascending: bool,
}

/// A page of a list in OpenAI's format.
#[derive(Debug, Serialize)]
pub struct ListObject<'a, T> {
    object: &'static str,
    data: Vec<T>,
    first_id: Option<&'a str>,
    last_id: Option<&'a str>,
    has_more: bool,
}

impl ListQuery {
    /// Parses the query of a URL. Without `limit` a page has at most `default_limit` objects.
    ///
    /// # Errors
    /// A parameter has an invalid value.
    pub fn parse(
        query: Option<&str>,
        default_limit: usize,
        max_limit: usize,
    ) -> Result<ListQuery, ApiError> {
        let limit = match parameter(query, "limit") {
            None => default_limit,
            Some(text) => {
                let limit = text.parse().ok().filter(|limit| (1..=max_limit).contains(limit));
                limit.ok_or_else(|| {
                    let expected = format!("an integer from 1 to {max_limit}");
                    invalid_parameter("limit", &expected)
                })?
            }
        };
        let is_ascending = match parameter(query, "order").as_deref() {
            None | Some("desc") => false,
            Some("asc") => true,
            Some(_) => return Err(invalid_parameter("order", "'asc' or 'desc'")),
        };
        let after = parameter(query, "after").filter(|after| !after.is_empty());
        Ok(ListQuery { limit, after, is_ascending })
    }

    /// Returns the page of `records`, which are in the order of their creation; `show` returns the
    /// object of a record.
    ///
    /// # Errors
    /// There is no object with the id after which the page begins.
    pub fn page<'a, R: StoredRecord, T>(
        &self,
        mut records: Vec<&'a R>,
        show: impl Fn(&'a R) -> T,
    ) -> Result<ListObject<'a, T>, ApiError> {
        if !self.is_ascending {
            records.reverse();
        }
        let start = match &self.after {
            None => 0,
            Some(after) => {
                let place = records.iter().position(|record| record.id() == after);
                place
                    .map(|place| place + 1)
                    .ok_or_else(|| invalid_parameter("after", "the id of an object of the list"))?
            }
        };
        let rest = &records[start..];
        let page = &rest[..self.limit.min(rest.len())];
        Ok(ListObject {
            object: "list",
            data: page.iter().copied().map(show).collect(),
            first_id: page.first().map(|record| record.id()),
            last_id: page.last().map(|record| record.id()),
            has_more: page.len() < rest.len(),
        })
    }
}

fn invalid_parameter(name: &str, expected: &str) -> ApiError {
    let message = format!("Invalid value for '{name}': must be {expected}.");
    ApiError::invalid("invalid_value", message).with_param(name)
}
