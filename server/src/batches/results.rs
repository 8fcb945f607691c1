//! Division of the output of a job into the output file and the error file of a batch.

use std::collections::HashMap;
use std::fs::File;
use std::io::{self, BufRead, BufReader, BufWriter, Seek, Write};

use openai::output::UNFINISHED;
use serde::Deserialize;

use super::batch_record::{BatchRequestCounts, BatchUsage};

/// Files of the results of a batch.
#[derive(Debug)]
pub struct ResultFiles<'f> {
    pub output: &'f File,
    pub errors: &'f File,
}

/// Numbers of what was written.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct ResultSummary {
    pub output_bytes: u64,
    pub error_bytes: u64,
    /// Lines of both files.
    pub counts: BatchRequestCounts,
    pub usage: BatchUsage,
}

/// Parts of an output line that decide where it belongs; the others are skipped.
#[derive(Deserialize)]
struct ResultLine {
    custom_id: String,
    response: Option<ResultResponse>,
    error: Option<ResultError>,
}

#[derive(Deserialize)]
struct ResultResponse {
    body: ResultBody,
}

#[derive(Deserialize)]
struct ResultBody {
    usage: ResultUsage,
}

#[derive(Deserialize)]
struct ResultUsage {
    #[serde(alias = "input_tokens")]
    prompt_tokens: u64,
    /// Missing for embeddings.
    #[serde(default, alias = "output_tokens")]
    completion_tokens: u64,
}

#[derive(Deserialize)]
struct ResultError {
    code: String,
    line: u64,
}

/// Identity of a line: later lines replace earlier ones with the same identity.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
enum LineKey {
    /// Answer to the request with this `custom_id`.
    Answer(String),
    /// Error of the line of the input with this number.
    Error(u64),
}

/// A line of the working file that is a result.
struct ResultEntry {
    key: LineKey,
    usage: Option<ResultUsage>,
}

impl ResultEntry {
    /// Parses a line; `None` for a torn line, and for answers that are not complete.
    fn parse(line: &[u8]) -> Option<ResultEntry> {
        let line: ResultLine = serde_json::from_slice(line.strip_suffix(b"\n")?).ok()?;
        match (line.response, line.error) {
            (Some(response), _) => {
                let usage = Some(response.body.usage);
                Some(ResultEntry { key: LineKey::Answer(line.custom_id), usage })
            }
            (None, Some(error)) if error.code != UNFINISHED => {
                Some(ResultEntry { key: LineKey::Error(error.line), usage: None })
            }
            _ => None,
        }
    }
}

/// Copies every answer in `work` to the output file and every error to the error file, in their
/// order, and appends `more_errors` to the latter.
///
/// # Errors
/// A file cannot be read or written.
pub fn split_results(
    mut work: &File,
    files: &ResultFiles<'_>,
    more_errors: &[Vec<u8>],
) -> io::Result<ResultSummary> {
    let mut last_lines: HashMap<LineKey, u64> = HashMap::new();
    work.rewind()?;
    for_each_line(work, |number, line| {
        if let Some(entry) = ResultEntry::parse(line) {
            last_lines.insert(entry.key, number);
        }
        Ok(())
    })?;
    work.rewind()?;
    let (mut output, mut errors) = (BufWriter::new(files.output), BufWriter::new(files.errors));
    let mut summary = ResultSummary::default();
    for_each_line(work, |number, line| {
        let Some(entry) = ResultEntry::parse(line) else { return Ok(()) };
        if last_lines.get(&entry.key) != Some(&number) {
            return Ok(());
        }
        match entry.usage {
            Some(usage) => {
                summary.usage.input_tokens += usage.prompt_tokens;
                summary.usage.output_tokens += usage.completion_tokens;
                summary.counts.completed += 1;
                summary.output_bytes += line.len() as u64;
                output.write_all(line)
            }
            None => {
                summary.counts.failed += 1;
                summary.error_bytes += line.len() as u64;
                errors.write_all(line)
            }
        }
    })?;
    for line in more_errors {
        summary.counts.failed += 1;
        summary.error_bytes += line.len() as u64;
        errors.write_all(line)?;
    }
    output.flush()?;
    errors.flush()?;
    summary.counts.total = summary.counts.completed + summary.counts.failed;
    Ok(summary)
}

/// Calls `visit` with the number and the bytes of each line, its newline included.
fn for_each_line(
    file: &File,
    mut visit: impl FnMut(u64, &[u8]) -> io::Result<()>,
) -> io::Result<()> {
    let (mut reader, mut line) = (BufReader::new(file), Vec::new());
    for number in 0.. {
        line.clear();
        if reader.read_until(b'\n', &mut line)? == 0 {
            break;
        }
        visit(number, &line)?;
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    fn answer(id: &str, text: &str) -> String {
        let usage = json!({"prompt_tokens": 2, "completion_tokens": 3, "total_tokens": 5});
        let body = json!({"choices": [text], "usage": usage});
        let response = json!({"status_code": 200, "request_id": "r", "body": body});
        format!("{}\n", json!({"id": "x", "custom_id": id, "response": response, "error": null}))
    }

    fn error(id: &str, code: &str, line: u64) -> String {
        let error = json!({"code": code, "message": "m", "line": line});
        format!("{}\n", json!({"id": "x", "custom_id": id, "response": null, "error": error}))
    }

    fn split(work: &str, more: &[Vec<u8>]) -> (String, String, ResultSummary) {
        let [mut file, output, errors] = [0; 3].map(|_| tempfile::tempfile().expect("a file"));
        file.write_all(work.as_bytes()).expect("written");
        let files = ResultFiles { output: &output, errors: &errors };
        let summary = split_results(&file, &files, more).expect("divided");
        let read = |mut file: &File| {
            file.rewind().expect("a file");
            io::read_to_string(file).expect("text")
        };
        (read(&output), read(&errors), summary)
    }

    #[test]
    fn answers_and_errors_are_divided_in_their_order() {
        let [a, b] = [answer("a", "1"), answer("b", "2")];
        let [c, d] = [error("a", "duplicate_custom_id", 2), error("c", "invalid_json", 4)];
        let more = b"more\n".to_vec();
        let (output, errors, summary) = split(&[&*a, &c, &b, &d].concat(), &[more]);
        assert_eq!((output, errors), (a.clone() + &b, c.clone() + &d + "more\n"));
        assert_eq!(summary.counts, BatchRequestCounts { total: 5, completed: 2, failed: 3 });
        assert_eq!(summary.usage, BatchUsage { input_tokens: 4, output_tokens: 6 });
        assert_eq!(summary.output_bytes as usize, a.len() + b.len());
        assert_eq!(summary.error_bytes as usize, c.len() + d.len() + 5);
    }

    #[test]
    fn a_log_that_was_cut_off_gives_each_result_once() {
        let [old, new, b] = [answer("a", "old"), answer("a", "new"), answer("b", "2")];
        let partial = error("p", UNFINISHED, 7);
        let torn = answer("t", "torn");
        let work = [&*old, &partial, &new, &b, &torn[..torn.len() - 1]].concat();
        let (output, errors, summary) = split(&work, &[]);
        assert_eq!((output, errors), (new + &b, String::new()));
        assert_eq!(summary.counts, BatchRequestCounts { total: 2, completed: 2, failed: 0 });
        assert_eq!(split("", &[]).2, ResultSummary::default());
    }
}
