//! Lengths and arrival times of requests from a recorded table of an actual service.

use std::path::{Path, PathBuf};

/// Row of a table.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct TraceRow {
    /// Time of arrival, in seconds since an arbitrary moment; 0 if the table has no times.
    pub at_s: f64,
    /// Number of prompt tokens, at least 1.
    pub prompt_tokens: u32,
    /// Number of answer tokens, at least 1.
    pub answer_tokens: u32,
}

/// Reason for which a table is invalid.
#[derive(Debug, thiserror::Error)]
pub enum LengthsError {
    #[error("{} cannot be read: {source}", path.display())]
    Read { path: PathBuf, source: std::io::Error },
    #[error(
        "{}, line {line}, column {column}: \"{text}\" is invalid; expected the numbers of tokens \
         of a prompt and of an answer, both at least 1, separated by a comma, optionally after a \
         time in seconds or such as 2023-11-16 18:17:03.98",
        path.display()
    )]
    Line { path: PathBuf, line: usize, column: usize, text: String },
    #[error("{} has no column of times; a trace must have one as its first column", path.display())]
    NoTimes { path: PathBuf },
    #[error("{}, line {line}: the time is before that of the row above", path.display())]
    Order { path: PathBuf, line: usize },
    #[error("{} has no rows", path.display())]
    Empty { path: PathBuf },
}

/// Reads a table of two columns, or of three with times. Its first line may contain column names.
///
/// # Errors
/// The file cannot be read, or a line is not a row; with `has_times`, also if a row has no time or
/// an earlier one than the row above it.
pub fn read_trace(path: &Path, has_times: bool) -> Result<Vec<TraceRow>, LengthsError> {
    let read = |source| LengthsError::Read { path: path.into(), source };
    let text = std::fs::read_to_string(path).map_err(read)?;
    let mut rows: Vec<TraceRow> = Vec::new();
    for (index, text) in text.lines().enumerate() {
        let line = index + 1;
        let (row, timed) = match parse_row(text) {
            Ok(row) => row,
            Err(_) if index == 0 && text.chars().any(char::is_alphabetic) => continue,
            Err(_) if text.trim().is_empty() => continue,
            Err(column) => {
                let (path, text) = (path.into(), text.to_owned());
                return Err(LengthsError::Line { path, line, column, text });
            }
        };
        if has_times && !timed {
            return Err(LengthsError::NoTimes { path: path.into() });
        }
        if has_times && rows.last().is_some_and(|last| last.at_s > row.at_s) {
            return Err(LengthsError::Order { path: path.into(), line });
        }
        rows.push(row);
    }
    if rows.is_empty() {
        return Err(LengthsError::Empty { path: path.into() });
    }
    Ok(rows)
}

/// Parses a row; returns it and whether it has a time.
///
/// # Errors
/// Returns the number of the first column, from 1, that is missing, superfluous or invalid.
fn parse_row(text: &str) -> Result<(TraceRow, bool), usize> {
    let cells: Vec<&str> = text.split(',').map(str::trim).collect();
    let (time, [prompt, answer]) = match cells[..] {
        [prompt, answer] => (None, [prompt, answer]),
        [time, prompt, answer] => (Some(time), [prompt, answer]),
        _ => return Err(if cells.len() < 2 { 2 } else { 4 }),
    };
    let before = usize::from(time.is_some());
    let tokens = |text: &str, column: usize| {
        text.parse().ok().filter(|tokens| *tokens > 0).ok_or(before + column)
    };
    let at_s = time.map_or(Some(0.0), parse_time).ok_or(1_usize)?;
    let row =
        TraceRow { at_s, prompt_tokens: tokens(prompt, 1)?, answer_tokens: tokens(answer, 2)? };
    Ok((row, time.is_some()))
}

/// Parses a time: a number of seconds as it is, a date as seconds since the year 0.
fn parse_time(text: &str) -> Option<f64> {
    if let Ok(seconds) = text.parse::<f64>() {
        return seconds.is_finite().then_some(seconds);
    }
    let (date, time) = text.split_once([' ', 'T'])?;
    let time = time.strip_suffix('Z').unwrap_or(time);
    let time = time.strip_suffix("+00:00").unwrap_or(time);
    let date: Vec<i64> = date.split('-').map(str::parse).collect::<Result<_, _>>().ok()?;
    let time: Vec<f64> = time.split(':').map(str::parse).collect::<Result<_, _>>().ok()?;
    let (&[year, month @ 1..=12, day @ 1..=31], &[hours, minutes, seconds]) =
        (&date[..], &time[..])
    else {
        return None;
    };
    // Years begin in March, so that a leap day is the last day of a year.
    let (year, month) = if month > 2 { (year, month - 3) } else { (year - 1, month + 9) };
    let leaps = year.div_euclid(4) - year.div_euclid(100) + year.div_euclid(400);
    let days = 365 * year + leaps + (153 * month + 2) / 5 + day;
    Some(days as f64 * 86_400.0 + hours * 3600.0 + minutes * 60.0 + seconds)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn read(text: &str, has_times: bool) -> Result<Vec<TraceRow>, LengthsError> {
        let file = tempfile::NamedTempFile::new().expect("a file");
        std::fs::write(file.path(), text).expect("written");
        read_trace(file.path(), has_times)
    }

    #[test]
    fn tables_have_two_columns_or_three() {
        let expected = [(64, 256), (512, 128)];
        for text in
            ["64,256\n512,128\n", "input,output\n64, 256\n\n512 ,128", "9,64,256\n9,512,128"]
        {
            let rows = read(text, false).expect("a table");
            let lengths: Vec<_> =
                rows.iter().map(|row| (row.prompt_tokens, row.answer_tokens)).collect();
            assert_eq!(lengths, expected, "{text}");
        }
    }

    #[test]
    fn times_are_seconds_or_dates() {
        let text = "TIMESTAMP,ContextTokens,GeneratedTokens\r\n\
                    2024-02-28 23:59:59.5000000,1,1\r\n2024-03-01 00:00:01,2,2\r\n";
        let rows = read(text, true).expect("a trace");
        // February 29 is between the two dates.
        assert_eq!(rows[1].at_s - rows[0].at_s, 86_401.5);
        let day = |text| parse_time(text).expect("a time") / 86_400.0;
        assert_eq!(day("1970-01-01 00:00:00") - day("1900-01-01T00:00:00Z"), 25_567.0);
        assert_eq!(day("2000-03-01 00:00:00+00:00") - day("1999-12-31 12:00:00"), 60.5);
        assert_eq!(read("0.25,1,1\n3,2,2", true).expect("a trace")[1].at_s, 3.0);
    }

    #[test]
    fn what_is_no_table_is_said() {
        let error = |text, has_times| read(text, has_times).expect_err("no table").to_string();
        assert!(error("1,2\n3,0\n", false).contains("line 2, column 2: \"3,0\""));
        assert!(error("9,1,2\n9,0,2\n", true).contains("line 2, column 2: "));
        assert!(error("9,1,2\n9,1,x\n", true).contains("line 2, column 3: "));
        assert!(error("9,1,2\nsoon,1,2\n", true).contains("line 2, column 1: "));
        assert!(error("9,1,2\n9,1,2,3\n", true).contains("line 2, column 4: "));
        assert!(error("1,2\nin,out\n", false).contains("line 2"));
        assert!(error("1\n", false).contains("line 1, column 2"));
        assert!(error("in,out\n", false).contains("no rows"));
        assert!(error("1,2\n", true).contains("no column of times"));
        assert!(error("5,1,2\n4,1,2\n", true).contains("line 2"));
        assert!(error("2023-13-01 00:00:00,1,2", true).contains("line 1"));
    }
}
