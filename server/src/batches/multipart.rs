//! Incremental parser of multipart bodies (RFC 7578), whose memory is bounded whatever the body's
//! size: what was parsed is passed on at once.

use super::multipart_head::{PartHead, parse_part_head};

/// Maximum size of the headers of a part, in bytes.
const MAX_HEAD_BYTES: usize = 16 << 10;
/// Maximum number of parts.
const MAX_PARTS: usize = 32;

/// Parsed piece of a body.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum MultipartEvent {
    /// A part begins; its data follow.
    Part(PartHead),
    /// Data of the part, not empty.
    Data(Vec<u8>),
    /// The body is complete.
    End,
}

/// Error of a body that is not a valid multipart body.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
pub enum MultipartError {
    #[error("the headers of a part are too long or name no field")]
    Head,
    #[error("a boundary is not followed by the end of a line")]
    Boundary,
    #[error("the body has more than {MAX_PARTS} parts")]
    Parts,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum ParserState {
    /// Before the first boundary.
    Preamble,
    /// After a boundary.
    Delimiter,
    Headers,
    Data,
    /// After the last boundary; what follows is ignored.
    End,
}

/// Parser of a body.
#[derive(Debug)]
pub struct MultipartParser {
    /// Line end, two hyphens and the boundary.
    delimiter: Vec<u8>,
    /// Bytes that are not parsed yet.
    buffer: Vec<u8>,
    state: ParserState,
    parts: usize,
}

impl MultipartParser {
    /// Creates a parser of a body with this boundary.
    pub fn new(boundary: &str) -> MultipartParser {
        let delimiter = format!("\r\n--{boundary}").into_bytes();
        // The first boundary may be the first line.
        let (buffer, state) = (b"\r\n".to_vec(), ParserState::Preamble);
        MultipartParser { delimiter, buffer, state, parts: 0 }
    }

    /// Adds bytes of the body.
    pub fn push(&mut self, bytes: &[u8]) {
        if self.state != ParserState::End {
            self.buffer.extend_from_slice(bytes);
        }
    }

    /// Returns the next event; `None` if more bytes are needed.
    ///
    /// # Errors
    /// The body is invalid, and must not be parsed further.
    pub fn next_event(&mut self) -> Result<Option<MultipartEvent>, MultipartError> {
        loop {
            match self.state {
                ParserState::Preamble => {
                    if self.take_data().is_none() {
                        return Ok(None);
                    }
                }
                ParserState::Delimiter => {
                    if !self.skip_delimiter_line()? {
                        return Ok(None);
                    }
                    if self.state == ParserState::End {
                        return Ok(Some(MultipartEvent::End));
                    }
                }
                ParserState::Headers => return self.take_head(),
                ParserState::Data => match self.take_data() {
                    None => return Ok(None),
                    Some(data) if data.is_empty() => {}
                    Some(data) => return Ok(Some(MultipartEvent::Data(data))),
                },
                ParserState::End => return Ok(None),
            }
        }
    }

    /// Takes the bytes before the next boundary, as far as they are known; after an empty or a last
    /// piece the state is that of a boundary. Returns `None` if more bytes are needed.
    fn take_data(&mut self) -> Option<Vec<u8>> {
        if let Some(end) = find(&self.buffer, &self.delimiter) {
            let data = self.buffer[..end].to_vec();
            self.buffer.drain(..end + self.delimiter.len());
            self.state = ParserState::Delimiter;
            return Some(data);
        }
        // The end of the buffer may be the beginning of a boundary.
        let known = self.buffer.len().saturating_sub(self.delimiter.len() - 1);
        (known > 0).then(|| self.buffer.drain(..known).collect())
    }

    /// Skips the rest of a boundary's line; returns false if more bytes are needed.
    fn skip_delimiter_line(&mut self) -> Result<bool, MultipartError> {
        if self.buffer.len() < 2 {
            return Ok(false);
        }
        if self.buffer.starts_with(b"--") {
            self.buffer = Vec::new();
            self.state = ParserState::End;
            return Ok(true);
        }
        let padding = self.buffer.iter().take_while(|byte| matches!(byte, b' ' | b'\t')).count();
        match self.buffer[padding..] {
            [b'\r', b'\n', ..] => {}
            [] | [b'\r'] if padding <= MAX_HEAD_BYTES => return Ok(false),
            _ => return Err(MultipartError::Boundary),
        }
        self.parts += 1;
        if self.parts > MAX_PARTS {
            return Err(MultipartError::Parts);
        }
        // The line end stays: it ends empty headers, too.
        self.buffer.drain(..padding);
        self.state = ParserState::Headers;
        Ok(true)
    }

    fn take_head(&mut self) -> Result<Option<MultipartEvent>, MultipartError> {
        const END: &[u8] = b"\r\n\r\n";
        let Some(end) = find(&self.buffer, END) else {
            return if self.buffer.len() > MAX_HEAD_BYTES {
                Err(MultipartError::Head)
            } else {
                Ok(None)
            };
        };
        let headers = String::from_utf8_lossy(&self.buffer[..end.min(MAX_HEAD_BYTES)]);
        let head = parse_part_head(&headers).ok_or(MultipartError::Head)?;
        self.buffer.drain(..end + END.len());
        self.state = ParserState::Data;
        Ok(Some(MultipartEvent::Part(head)))
    }
}

/// Returns the position of `needle` in `bytes`.
fn find(bytes: &[u8], needle: &[u8]) -> Option<usize> {
    let first = *needle.first()?;
    let mut from = 0;
    while let Some(at) = bytes.get(from..)?.iter().position(|byte| *byte == first) {
        if bytes[from + at..].starts_with(needle) {
            return Some(from + at);
        }
        from += at + 1;
    }
    None
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Parts of a body, with their data.
    type Parts = Vec<(PartHead, Vec<u8>)>;

    /// Parses a body whose bytes arrive in pieces of the given sizes; returns the parts with their
    /// data, and true if the body is complete.
    fn parse(
        body: &[u8],
        sizes: impl IntoIterator<Item = usize>,
    ) -> Result<(Parts, bool), MultipartError> {
        let mut parser = MultipartParser::new("b");
        let (mut parts, mut is_complete): (Parts, _) = (Vec::new(), false);
        let (mut rest, mut sizes) = (body, sizes.into_iter());
        while !rest.is_empty() {
            let (piece, after) = rest.split_at(sizes.next().unwrap_or(usize::MAX).min(rest.len()));
            parser.push(piece);
            rest = after;
            while let Some(event) = parser.next_event()? {
                match event {
                    MultipartEvent::Part(head) => parts.push((head, Vec::new())),
                    MultipartEvent::Data(data) => {
                        assert!(!data.is_empty());
                        parts.last_mut().expect("a part").1.extend(data);
                    }
                    MultipartEvent::End => is_complete = true,
                }
            }
        }
        Ok((parts, is_complete))
    }

    fn head(name: &str, filename: Option<&str>) -> PartHead {
        PartHead { name: name.to_owned(), filename: filename.map(str::to_owned) }
    }

    const BODY: &[u8] = b"preamble\r\n--b \r\nContent-Disposition: form-data; name=\"purpose\"\r\n\
        \r\nbatch\r\n--b\r\nContent-Disposition: form-data; name=\"empty\"\r\n\r\n\r\n--b\r\n\
        Content-Disposition: form-data; name=\"file\"; filename=\"a.jsonl\"\r\n\
        Content-Type: x/y\r\n\
        \r\n{}\r\n--\r\n-b\n--b\r\n--c\r\n--b--\r\nepilogue";

    #[test]
    fn parts_are_found_wherever_a_body_is_cut() {
        let expected = vec![
            (head("purpose", None), b"batch".to_vec()),
            (head("empty", None), Vec::new()),
            (head("file", Some("a.jsonl")), b"{}\r\n--\r\n-b\n--b\r\n--c".to_vec()),
        ];
        for size in 1..BODY.len() {
            assert_eq!(parse(BODY, [size]), Ok((expected.clone(), true)), "cut at {size}");
            let pieces = std::iter::repeat(size);
            assert_eq!(parse(BODY, pieces), Ok((expected.clone(), true)), "pieces of {size}");
        }
    }

    #[test]
    fn a_torn_body_is_not_complete() {
        let end = BODY.len() - "\r\nepilogue".len();
        for length in 0..end {
            let (_, is_complete) = parse(&BODY[..length], []).expect("valid as far as it goes");
            assert!(!is_complete, "{length}");
        }
        assert!(parse(&BODY[..end], []).expect("valid").1);
    }

    #[test]
    fn heads_and_the_number_of_parts_are_bounded() {
        let long = [b"--b\r\nX: ".as_slice(), &vec![b'x'; MAX_HEAD_BYTES + 1]].concat();
        assert_eq!(parse(&long, []), Err(MultipartError::Head));
        assert_eq!(parse(b"--b\r\nX: y\r\n\r\n", []), Err(MultipartError::Head));
        assert_eq!(parse(b"--b\r\n\r\nx", []), Err(MultipartError::Head));
        assert_eq!(parse(b"--bx\r\n", []), Err(MultipartError::Boundary));
        let part = b"--b\r\nContent-Disposition: form-data; name=\"a\"\r\n\r\n\r\n";
        assert_eq!(parse(&part.repeat(MAX_PARTS + 1), []), Err(MultipartError::Parts));
        assert_eq!(parse(&part.repeat(MAX_PARTS), []).map(|(parts, _)| parts.len()), Ok(MAX_PARTS));
    }

    #[test]
    fn no_more_than_a_boundary_is_kept() {
        let mut parser = MultipartParser::new("b");
        parser.push(b"--b\r\nContent-Disposition: form-data; name=\"file\"\r\n\r\n");
        for _ in 0..100 {
            parser.push(&[b'\r'; 1000]);
            while parser.next_event().expect("valid").is_some() {}
            assert!(parser.buffer.len() < parser.delimiter.len());
        }
    }
}
