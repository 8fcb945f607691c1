//! Parser of server-sent events from bytes that may be split anywhere.

/// Buffer for an incomplete line.
#[derive(Debug, Default)]
pub(super) struct SseParser {
    line: Vec<u8>,
}

impl SseParser {
    /// Calls `on_data` with the data of every line that `bytes` complete. Comments and other fields
    /// are skipped. Events with several lines of data are not supported, since no measured server
    /// sends them.
    ///
    /// # Errors
    /// Returns the error of `on_data`; the lines after it are lost.
    pub(super) fn push<E>(
        &mut self,
        mut bytes: &[u8],
        mut on_data: impl FnMut(&[u8]) -> Result<(), E>,
    ) -> Result<(), E> {
        while let Some(end) = bytes.iter().position(|byte| *byte == b'\n') {
            let (head, rest) = bytes.split_at(end);
            bytes = &rest[1..];
            if self.line.is_empty() {
                parse_line(head, &mut on_data)?;
            } else {
                self.line.extend_from_slice(head);
                let line = std::mem::take(&mut self.line);
                parse_line(&line, &mut on_data)?;
            }
        }
        self.line.extend_from_slice(bytes);
        Ok(())
    }
}

fn parse_line<E>(line: &[u8], on_data: &mut impl FnMut(&[u8]) -> Result<(), E>) -> Result<(), E> {
    match line.strip_prefix(b"data:") {
        Some(data) => on_data(data.trim_ascii()),
        None => Ok(()),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn events_are_whole_wherever_bytes_are_cut() {
        let stream = b": ping\n\ndata: {\"a\": 1}\r\n\r\nid: 4\ndata:b\n\ndata: [DONE]\n\n";
        for cut in 0..stream.len() {
            let mut events = SseParser::default();
            let mut seen: Vec<String> = Vec::new();
            for part in [&stream[..cut], &stream[cut..]] {
                let each = |data: &[u8]| {
                    seen.push(String::from_utf8_lossy(data).into_owned());
                    Ok::<(), ()>(())
                };
                events.push(part, each).expect("all are taken");
            }
            assert_eq!(seen, ["{\"a\": 1}", "b", "[DONE]"], "cut at {cut}");
        }
    }
}
