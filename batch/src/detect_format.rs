//! Detection of input files in unsupported formats, from their first bytes.

use super::error::JobError;
use super::input::InputFormat;

/// Magic number of gzip.
const GZIP: &[u8] = &[0x1f, 0x8b];
/// Byte order marks of UTF-16.
const UTF16_MARKS: [&[u8]; 2] = [&[0xff, 0xfe], &[0xfe, 0xff]];
/// Separators of a table's columns.
const SEPARATORS: [char; 3] = [',', '\t', ';'];
/// Maximum number of bytes examined to detect a table, or UTF-16 without a byte order mark.
const MAX_PROBED_BYTES: usize = 1 << 16;

/// Refuses an input that cannot be read line by line.
///
/// # Errors
/// Returns an error for a compressed file, UTF-16, a JSON array or a table, with a command that
/// converts it to lines.
pub(super) fn check_format(
    path: String,
    bytes: &[u8],
    format: InputFormat,
) -> Result<(), JobError> {
    if bytes.starts_with(GZIP) {
        return Err(JobError::CompressedInput { path });
    }
    if let Some(encoding) = detect_utf16(bytes) {
        return Err(JobError::Utf16Input { path, encoding });
    }
    if format == InputFormat::Text {
        return Ok(());
    }
    if is_array(bytes) {
        return Err(JobError::ArrayInput { path });
    }
    match detect_separator(&path, bytes) {
        Some(separator) => Err(JobError::TableInput { path, separator }),
        None => Ok(()),
    }
}

/// Returns true if the whole input is an array of objects, as other tools write them.
fn is_array(bytes: &[u8]) -> bool {
    bytes.trim_ascii_start().starts_with(b"[")
        && serde_json::from_slice::<Vec<serde_json::Map<String, serde_json::Value>>>(bytes).is_ok()
}

/// Returns the UTF-16 encoding, recognized by its byte order mark or by zeros in every other byte
/// of the beginning.
fn detect_utf16(bytes: &[u8]) -> Option<&'static str> {
    if UTF16_MARKS.iter().any(|mark| bytes.starts_with(mark)) {
        return Some("UTF-16");
    }
    let start = &bytes[..bytes.len().min(MAX_PROBED_BYTES) / 2 * 2];
    let zeros = |first: usize| start.iter().skip(first).step_by(2).filter(|b| **b == 0).count();
    let (even, odd, pairs) = (zeros(0), zeros(1), start.len() / 2);
    match pairs {
        0 => None,
        // Text in other scripts has few zeros, but a JSON line has ASCII braces and field names.
        _ if odd * 2 > pairs && even == 0 => Some("UTF-16LE"),
        _ if even * 2 > pairs && odd == 0 => Some("UTF-16BE"),
        _ => None,
    }
}

/// Returns the column separator of a table: no line is an object, and the first two have equally
/// many columns, or the file name ends in `.csv` or `.tsv`.
fn detect_separator(path: &str, bytes: &[u8]) -> Option<char> {
    let text = String::from_utf8_lossy(&bytes[..bytes.len().min(MAX_PROBED_BYTES)]);
    let lines: Vec<&str> = text.lines().filter(|line| !line.trim().is_empty()).collect();
    if lines.iter().any(|line| line.trim_start().trim_start_matches('\u{feff}').starts_with('{')) {
        return None;
    }
    let lower = path.to_ascii_lowercase();
    let count = |line: &str, separator: char| line.matches(separator).count();
    if lower.ends_with(".csv") || lower.ends_with(".tsv") {
        let head = lines.first()?;
        return SEPARATORS.into_iter().max_by_key(|separator| count(head, *separator));
    }
    let [head, row, ..] = lines[..] else { return None };
    SEPARATORS.into_iter().find(|separator| {
        count(head, *separator) > 0 && count(head, *separator) == count(row, *separator)
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    fn refused(name: &str, bytes: &[u8], format: InputFormat) -> Option<String> {
        check_format(name.to_owned(), bytes, format).err().map(|error| error.to_string())
    }

    #[test]
    fn other_encodings_and_tables_are_told_with_what_turns_them_into_lines() {
        let encoded = |text: &str, order: fn(u16) -> [u8; 2]| -> Vec<u8> {
            text.encode_utf16().flat_map(order).collect()
        };
        let line = "{\"prompt\": \"a\"}\n";
        for format in [InputFormat::JsonLines, InputFormat::Text] {
            for marked in [false, true] {
                let text = if marked { format!("\u{feff}{line}") } else { line.to_owned() };
                for order in [u16::to_le_bytes, u16::to_be_bytes] {
                    let message = refused("in", &encoded(&text, order), format).expect("UTF-16");
                    assert!(message.contains("iconv -f UTF-16"), "{message}");
                }
            }
        }
        for (name, table) in [
            ("a.csv", "prompt\nhello\n"),
            ("in", "id,prompt\n1,hello\n"),
            ("in", "id\tprompt\n1\thello\n"),
            ("-", "id;prompt\n1;hello\n"),
        ] {
            let message = refused(name, table.as_bytes(), InputFormat::JsonLines).expect(table);
            assert!(message.contains("csv.DictReader"), "{message}");
            assert_eq!(refused(name, table.as_bytes(), InputFormat::Text), None);
        }
        for fine in ["", line, "not json\n", "a, b\n{\"prompt\": \"x, y\"}\n", "one, two\nthree\n"]
        {
            assert_eq!(refused("in", fine.as_bytes(), InputFormat::JsonLines), None, "{fine}");
        }
        let names = "{\"prompt\": \"\u{4e00}\u{4e8c}\"}".as_bytes();
        assert_eq!(refused("in.csv", names, InputFormat::JsonLines), None);
    }
}
