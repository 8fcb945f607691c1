//! The parts of PTX that a driver needs to launch its kernels: their names, and the sizes of
//! parameters.

/// Maximum PTX version that a driver of CUDA 12.0 accepts.
const VERSION_MAX: (u32, u32) = (8, 0);

#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Entry {
    pub(crate) name: String,
    /// Size of each parameter in bytes, in order.
    pub(crate) parameters: Vec<usize>,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum PtxError {
    /// Not PTX, or not in the format in which compilers write it.
    Invalid,
    /// Written for a later driver.
    Version,
}

/// Returns the kernels of a module.
pub(crate) fn entries(text: &str) -> Result<Vec<Entry>, PtxError> {
    let version = text.lines().find_map(|line| line.trim().strip_prefix(".version"));
    let (major, minor) =
        version.and_then(|version| version.trim().split_once('.')).ok_or(PtxError::Invalid)?;
    let number = |text: &str| text.trim().parse::<u32>().map_err(|_| PtxError::Invalid);
    if (number(major)?, number(minor)?) > VERSION_MAX {
        return Err(PtxError::Version);
    }
    text.split(".entry").skip(1).map(entry).collect()
}

/// Parses an entry from the text after `.entry`: `name( .param .u64 a, .param .align 8 .b8 b[16] )
/// {`.
fn entry(text: &str) -> Result<Entry, PtxError> {
    let end = text.find(['(', '{']).ok_or(PtxError::Invalid)?;
    let name = text[..end].trim().to_owned();
    let mut parameters = Vec::new();
    if text[end..].starts_with('(') {
        let close = text[end..].find(')').ok_or(PtxError::Invalid)?;
        let list = text[end + 1..end + close].split(',');
        for parameter in list.filter(|parameter| !parameter.trim().is_empty()) {
            parameters.push(size_bytes(parameter)?);
        }
    }
    Ok(Entry { name, parameters })
}

fn size_bytes(parameter: &str) -> Result<usize, PtxError> {
    let mut size = None;
    for word in parameter.split_whitespace() {
        let of_type = match word {
            ".u64" | ".s64" | ".b64" | ".f64" => Some(8),
            ".u32" | ".s32" | ".b32" | ".f32" => Some(4),
            ".u16" | ".s16" | ".b16" | ".f16" => Some(2),
            ".u8" | ".s8" | ".b8" => Some(1),
            _ => None,
        };
        size = of_type.or(size);
    }
    let element = size.ok_or(PtxError::Invalid)?;
    let Some((_, rest)) = parameter.split_once('[') else { return Ok(element) };
    let count = rest.split(']').next().and_then(|count| count.trim().parse::<usize>().ok());
    count.map(|count| count * element).ok_or(PtxError::Invalid)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_and_sizes_are_found() {
        let text = "//\n.version 8.0\n.target sm_80\n.visible .entry first(\n\t.param .u64 \
         first_0,\n\
                    \t.param .f32 first_1,\n\t.param .align 4 .b8 first_2[12]\n)\n{ ret; }\n\
                    .visible .entry second()\n{ ret; }\n";
        assert_eq!(
            entries(text),
            Ok(vec![
                Entry { name: "first".to_owned(), parameters: vec![8, 4, 12] },
                Entry { name: "second".to_owned(), parameters: vec![] },
            ])
        );
    }

    #[test]
    fn a_later_version_and_other_text_are_refused() {
        assert_eq!(entries(".version 8.8\n"), Err(PtxError::Version));
        assert_eq!(entries("ELF"), Err(PtxError::Invalid));
        assert_eq!(entries(".version 8.0\n.entry a(.param .q9 b)"), Err(PtxError::Invalid));
    }
}
