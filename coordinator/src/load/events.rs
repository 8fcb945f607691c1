//! Parser of server-sent events from bytes that may be split anywhere.

/// Buffer for an incomplete line.
#[derive(Debug, Default)]
pub(super) struct Events {
    line: Vec<u8>,
}

impl Events {
    /// Calls `each` with the data of every line that `bytes` complete. Comments and other fields
    /// are skipped. Events with several lines of data are not supported, since no measured server
    /// sends them.
    ///
    /// # Errors
    /// Returns the error of `each`; the lines after it are lost.
    pub(super) fn push<E>(
        &mut self,
        mut bytes: &[u8],
        mut each: impl FnMut(&[u8]) -> Result<(), E>,
    ) -> Result<(), E> {
        while let Some(end) = bytes.iter().position(|byte| *byte == b'\n') {
            let (head, rest) = bytes.split_at(end);
            bytes = &rest[1..];
            if self.line.is_empty() {
                take(head, &mut each)?;
            } else {
                self.line.extend_from_slice(head);
                let line = std::mem::take(&mut self.line);
                take(&line, &mut each)?;
            }
        }
        self.line.extend_from_slice(bytes);
        Ok(())
    }
}

fn take<E>(line: &[u8], each: &mut impl FnMut(&[u8]) -> Result<(), E>) -> Result<(), E> {
    match line.strip_prefix(b"data:") {
        Some(data) => each(data.trim_ascii()),
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
            let mut events = Events::default();
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
