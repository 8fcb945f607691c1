//! Heads of multipart bodies: the boundary in the request's `Content-Type`, and the names in the
//! `Content-Disposition` of each part.

use axum::http::{HeaderMap, header};

/// Maximum length of a boundary by RFC 2046.
const MAX_BOUNDARY_BYTES: usize = 70;

/// Name of a part, and the name of the file in it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct PartHead {
    pub name: String,
    pub filename: Option<String>,
}

/// Returns the boundary of a multipart body; `None` if the body is of another type.
pub fn find_boundary(headers: &HeaderMap) -> Option<String> {
    let value = headers.get(header::CONTENT_TYPE)?.to_str().ok()?;
    let (kind, parameters) = value.split_once(';')?;
    if !kind.trim().eq_ignore_ascii_case("multipart/form-data") {
        return None;
    }
    let boundary = find_parameter(parameters, "boundary")?;
    (1..=MAX_BOUNDARY_BYTES).contains(&boundary.len()).then_some(boundary)
}

/// Parses the headers of a part; `None` if they name no field.
pub fn parse_part_head(headers: &str) -> Option<PartHead> {
    let disposition = headers.split("\r\n").find_map(|line| {
        let (name, value) = line.split_once(':')?;
        name.trim().eq_ignore_ascii_case("content-disposition").then_some(value)
    })?;
    let (kind, parameters) = disposition.split_once(';')?;
    if !kind.trim().eq_ignore_ascii_case("form-data") {
        return None;
    }
    let name = find_parameter(parameters, "name")?;
    Some(PartHead { name, filename: find_parameter(parameters, "filename") })
}

/// Returns the value of a parameter, a token or a quoted string.
fn find_parameter(parameters: &str, wanted: &str) -> Option<String> {
    let mut rest = parameters;
    loop {
        let (name, after) = rest.trim_start_matches([' ', '\t', ';']).split_once('=')?;
        let (value, end) = match after.strip_prefix('"') {
            Some(quoted) => parse_quoted(quoted)?,
            None => {
                let (token, end) = after.split_once(';').unwrap_or((after, ""));
                (token.trim().to_owned(), end)
            }
        };
        if name.trim().eq_ignore_ascii_case(wanted) {
            return Some(value);
        }
        rest = end;
    }
}

/// Parses a quoted string after its opening quote; returns it and what follows it. Browsers escape
/// quotes as `%22`, other clients with a backslash.
fn parse_quoted(text: &str) -> Option<(String, &str)> {
    let mut value = String::new();
    let mut characters = text.char_indices();
    while let Some((at, character)) = characters.next() {
        match character {
            '"' => return Some((value.replace("%22", "\""), &text[at + 1..])),
            // A path of Windows has backslashes that escape nothing.
            '\\' if text[at + 1..].starts_with(['"', '\\']) => {
                value.extend(characters.next().map(|(_, escaped)| escaped));
            }
            _ => value.push(character),
        }
    }
    None
}

#[cfg(test)]
mod tests {
    use super::*;

    fn boundary(value: &str) -> Option<String> {
        let mut headers = HeaderMap::new();
        headers.insert(header::CONTENT_TYPE, value.parse().expect("a header"));
        find_boundary(&headers)
    }

    #[test]
    fn boundaries_are_tokens_or_quoted() {
        for value in [
            "multipart/form-data; boundary=a-b",
            "Multipart/Form-Data; charset=utf-8; boundary=\"a-b\"",
            "multipart/form-data;boundary=a-b ; x=y",
        ] {
            assert_eq!(boundary(value).as_deref(), Some("a-b"), "{value}");
        }
        let long = format!("multipart/form-data; boundary={}", "a".repeat(71));
        for value in
            ["application/json", "multipart/form-data", "multipart/mixed; boundary=a", &long]
        {
            assert_eq!(boundary(value), None, "{value}");
        }
    }

    #[test]
    fn names_of_parts_are_read_with_their_escapes() {
        let head = |headers: &str| parse_part_head(headers);
        let found = head(
            "Content-Type: a/b\r\ncontent-disposition: form-data; name=\"file\"; \
                          filename=\"a \\\"b\\\"; %22c%22.jsonl\"",
        );
        let filename = Some("a \"b\"; \"c\".jsonl".to_owned());
        assert_eq!(found, Some(PartHead { name: "file".to_owned(), filename }));
        let found = head("Content-Disposition: form-data; filename=x.jsonl; name=purpose");
        let filename = Some("x.jsonl".to_owned());
        assert_eq!(found, Some(PartHead { name: "purpose".to_owned(), filename }));
        for headers in [
            "",
            "Content-Disposition: attachment; name=\"a\"",
            "Content-Disposition: form-data; name=\"a",
            "Content-Disposition: form-data",
        ] {
            assert_eq!(head(headers), None, "{headers}");
        }
    }
}
