//! Checks of a whole input file before its lines are parsed: their number is bounded.

use std::fs::File;
use std::io::{self, Read};

use super::batch_record::BatchError;

/// Maximum number of requests of a batch, OpenAI's limit.
pub const MAX_REQUESTS: u64 = 50_000;

/// Bytes read at a time.
const CHUNK_BYTES: usize = 1 << 20;

/// Counts the lines of a file that are not blank.
///
/// # Errors
/// The file cannot be read.
pub fn count_lines(mut file: File) -> io::Result<u64> {
    let mut chunk = vec![0; CHUNK_BYTES];
    let (mut lines, mut is_blank) = (0, true);
    loop {
        let read = match file.read(&mut chunk) {
            Err(error) if error.kind() == io::ErrorKind::Interrupted => continue,
            read => read?,
        };
        if read == 0 {
            return Ok(lines + u64::from(!is_blank));
        }
        for byte in &chunk[..read] {
            if *byte == b'\n' {
                lines += u64::from(!is_blank);
                is_blank = true;
            } else {
                is_blank &= byte.is_ascii_whitespace();
            }
        }
    }
}

/// Checks the number of requests of a batch.
///
/// # Errors
/// Returns the error with which the batch fails.
pub fn check_line_count(lines: u64) -> Result<(), BatchError> {
    match lines {
        0 => Err(BatchError::new("empty_file", "The input file contains no requests.")),
        1..=MAX_REQUESTS => Ok(()),
        _ => {
            let message = format!(
                "The input file contains {lines} requests, but a batch may have at most \
                 {MAX_REQUESTS}. Split it into several batches."
            );
            Err(BatchError::new("too_many_requests", message))
        }
    }
}

#[cfg(test)]
mod tests {
    use std::io::{Seek, Write};

    use super::*;

    fn count(content: &[u8]) -> u64 {
        let mut file = tempfile::tempfile().expect("a file");
        file.write_all(content).and_then(|()| file.rewind()).expect("written");
        count_lines(file).expect("read")
    }

    #[test]
    fn blank_lines_do_not_count_and_a_last_line_needs_no_end() {
        for (content, lines) in
            [("", 0), ("\n \r\n\t", 0), ("a", 1), ("a\n", 1), ("a\n\n b\r\nc", 3)]
        {
            assert_eq!(count(content.as_bytes()), lines, "{content:?}");
        }
        let across = [vec![b' '; CHUNK_BYTES], b"x\n".to_vec()].concat();
        assert_eq!(count(&across), 1);
        assert!(check_line_count(0).is_err() && check_line_count(1).is_ok());
        assert!(check_line_count(MAX_REQUESTS + 1).is_err());
    }
}
