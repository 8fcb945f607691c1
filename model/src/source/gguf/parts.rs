//! Files that together contain a model: `NAME-00001-of-00003.gguf` and so on, or a single file.
//!
//! The first part contains the metadata. Each part has its own tensors, and specifies its index and
//! the number of parts. If any part is given, all others in its folder are opened.

use std::collections::HashMap;
use std::fs::File;
use std::io::BufReader;
use std::ops::Range;
use std::os::unix::fs::FileExt;
use std::path::{Path, PathBuf};

use super::metadata::Metadata;
use super::parse::{GgufHeader, ParseError, TensorInfo, parse};
use crate::source::SourceError;

/// Number of digits of the numbers in the name of a part, which are padded to this width.
const DIGITS: usize = 5;

/// Name of a file that is one of several parts.
#[derive(Debug, Clone, PartialEq, Eq)]
struct ShardName {
    /// Common prefix of the paths of all parts.
    stem: String,
    /// Number of the part, starting at 1.
    number: usize,
    count: usize,
}

/// An open file and its path.
#[derive(Debug)]
pub(super) struct GgufShard {
    pub(super) path: PathBuf,
    file: File,
}

/// All files of a model.
#[derive(Debug)]
pub(super) struct GgufShards {
    /// Files in the order of the parts.
    pub(super) files: Vec<GgufShard>,
    pub(super) metadata: Metadata,
    /// Keys of the first file and their positions in it.
    pub(super) entries: Vec<(String, Range<u64>)>,
    /// Tensors by name, each with the index in `files` of the file that contains it.
    pub(super) tensors: HashMap<String, TensorInfo>,
}

impl ShardName {
    fn of(path: &Path) -> Option<ShardName> {
        let stem = path.to_str()?.strip_suffix(".gguf")?;
        let (rest, count) = stem.rsplit_once("-of-")?;
        let (stem, number) = rest.rsplit_once('-')?;
        let number_of = |digits: &str| -> Option<usize> {
            let is_number = digits.len() == DIGITS && digits.bytes().all(|b| b.is_ascii_digit());
            is_number.then(|| digits.parse().ok())?
        };
        let (number, count) = (number_of(number)?, number_of(count)?);
        let is_part = (1..=count).contains(&number);
        is_part.then(|| ShardName { stem: stem.to_owned(), number, count })
    }

    fn path(&self, number: usize) -> PathBuf {
        PathBuf::from(format!("{}-{number:05}-of-{:05}.gguf", self.stem, self.count))
    }
}

/// Returns the path of the first part if `path` has the name of a part, else `path`.
pub fn first_part(path: &Path) -> PathBuf {
    ShardName::of(path).map_or_else(|| path.to_owned(), |name| name.path(1))
}

/// Returns the paths of all parts if `path` has the name of a part, else only `path`. The files may
/// not exist.
pub fn part_paths(path: &Path) -> Vec<PathBuf> {
    match ShardName::of(path) {
        Some(name) => (1..=name.count).map(|number| name.path(number)).collect(),
        None => vec![path.to_owned()],
    }
}

/// Returns the model's name: the file name without extension and without the number of a part.
pub fn model_name(path: &Path) -> String {
    let stem = ShardName::of(path)
        .map_or_else(|| path.with_extension(""), |name| PathBuf::from(name.stem));
    stem.file_name().unwrap_or_default().to_string_lossy().into_owned()
}

impl GgufShards {
    /// Opens a file and, if it declares itself as a part, all others.
    ///
    /// # Errors
    /// A file that cannot be read, is missing or damaged; parts that do not belong together.
    pub(super) fn open(path: &Path) -> Result<GgufShards, SourceError> {
        let (part, parsed) = open(path)?;
        let count = number(&part, &parsed.metadata, "split.count")?.unwrap_or(1);
        if count <= 1 {
            let GgufHeader { metadata, entries, tensors } = parsed;
            return Ok(GgufShards { files: vec![part], metadata, entries, tensors });
        }
        let Some(name) = ShardName::of(path).filter(|name| name.count == count) else {
            let reason = format!(
                "the file is one part of {count}, but is not named as a part; restore its \
                 published name, NAME-00001-of-{count:05}.gguf for the first part"
            );
            return Err(format_error(path, reason));
        };
        let mut given = Some((part, parsed));
        let mut parts = GgufShards {
            files: Vec::new(),
            metadata: Metadata::default(),
            entries: Vec::new(),
            tensors: HashMap::new(),
        };
        for index in 0..count {
            let (part, parsed) = match given.take_if(|_| index + 1 == name.number) {
                Some(opened) => opened,
                None => open_other(&name, index)?,
            };
            parts.add(part, parsed, index, count)?;
        }
        parts.check_count()?;
        Ok(parts)
    }

    fn add(
        &mut self,
        part: GgufShard,
        parsed: GgufHeader,
        index: usize,
        count: usize,
    ) -> Result<(), SourceError> {
        let its_count = number(&part, &parsed.metadata, "split.count")?;
        if its_count != Some(count) {
            let its_count =
                its_count.map_or_else(|| "no part".to_owned(), |n| format!("one part of {n}"));
            let reason = format!(
                "the file is marked as {its_count}, but another as one of {count}; the files are \
                 not from the same model"
            );
            return Err(format_error(&part.path, reason));
        }
        let its_number = number(&part, &parsed.metadata, "split.no")?.unwrap_or(0);
        if its_number != index {
            let reason = format!(
                "the file is named as part {} of {count}, but according to its metadata it is \
                 part {}",
                index + 1,
                its_number + 1
            );
            return Err(format_error(&part.path, reason));
        }
        for (name, mut info) in parsed.tensors {
            info.part = index;
            if let Some(first) = self.tensors.get(&name).map(|known| known.part) {
                let first = self.files[first].path.display();
                let reason = format!("tensor {name:?} is in this file and in {first}");
                return Err(format_error(&part.path, reason));
            }
            self.tensors.insert(name, info);
        }
        if index == 0 {
            self.metadata = parsed.metadata;
            self.entries = parsed.entries;
        }
        self.files.push(part);
        Ok(())
    }

    fn check_count(&self) -> Result<(), SourceError> {
        let first = &self.files[0];
        let expected = number(first, &self.metadata, "split.tensors.count")?;
        match expected.filter(|expected| *expected != self.tensors.len()) {
            None => Ok(()),
            Some(expected) => {
                let reason = format!(
                    "the parts have {} tensors, but the first specifies {expected}; download them \
                     again",
                    self.tensors.len()
                );
                Err(format_error(&first.path, reason))
            }
        }
    }

    /// Fills `out` from byte `at` of the file with index `part`.
    pub(super) fn read(&self, part: usize, at: u64, out: &mut [u8]) -> std::io::Result<()> {
        self.files[part].file.read_exact_at(out, at)
    }
}

fn open_other(name: &ShardName, index: usize) -> Result<(GgufShard, GgufHeader), SourceError> {
    let path = name.path(index + 1);
    match open(&path) {
        Err(SourceError::Io { source, .. }) if source.kind() == std::io::ErrorKind::NotFound => {
            let reason = format!(
                "part {} of {} is missing; all parts must be in one directory",
                index + 1,
                name.count
            );
            Err(format_error(&path, reason))
        }
        opened => opened,
    }
}

fn open(path: &Path) -> Result<(GgufShard, GgufHeader), SourceError> {
    let io = |source| SourceError::Io { path: path.display().to_string(), source };
    let file = File::open(path).map_err(io)?;
    let file_bytes = file.metadata().map_err(io)?.len();
    let parsed = parse(BufReader::new(&file), file_bytes).map_err(|error| match error {
        ParseError::Io(source) => io(source),
        other => format_error(path, other.to_string()),
    })?;
    Ok((GgufShard { path: path.to_owned(), file }, parsed))
}

fn number(part: &GgufShard, metadata: &Metadata, key: &str) -> Result<Option<usize>, SourceError> {
    let number = metadata.integer(key);
    let number = number.map_err(|error| format_error(&part.path, error.to_string()))?;
    Ok(number.map(|number| number as usize))
}

fn format_error(path: &Path, reason: String) -> SourceError {
    SourceError::Format { path: path.display().to_string(), reason }
}
