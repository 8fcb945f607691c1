//! The files of a checkpoint: the names, locations and bytes of their tensors.
//!
//! Headers are read and checked by the `safetensors` crate when a checkpoint is opened. Data is
//! read by position, in pieces, from any thread.

use std::collections::{BTreeSet, HashMap};
use std::ffi::OsStr;
use std::fs::File;
use std::io::Read;
use std::os::unix::fs::FileExt;
use std::path::{Path, PathBuf};

use safetensors::tensor::{Dtype as Stored, Metadata};

use crate::source::SourceError;

/// Upper limit of a header's size, far above that of any real header: a larger number indicates a
/// damaged file, for which nothing should be allocated.
const HEADER_BYTES_MAX: u64 = 256 << 20;

/// An open checkpoint.
#[derive(Debug)]
pub(super) struct Checkpoint {
    pub(super) directory: PathBuf,
    files: Vec<Shard>,
    tensors: HashMap<String, ByteRange>,
    /// File names of tensors according to the index, which takes precedence if several files
    /// contain a tensor.
    assigned: HashMap<String, String>,
    /// True if the files have a model without its head, as models of embeddings are stored: the
    /// names of their tensors then lack the prefix that those of a language model have. The prefix
    /// is added when the files are opened.
    pub(super) is_headless: bool,
}

/// Prefix of a language model's tensors, except those of its head.
const MODEL_PREFIX: &str = "model.";

#[derive(Debug)]
struct Shard {
    path: PathBuf,
    file: File,
}

/// Location of a tensor.
#[derive(Debug, Clone)]
pub(super) struct ByteRange {
    file: usize,
    offset_bytes: u64,
    pub(super) stored: Stored,
    pub(super) shape: Vec<usize>,
}

impl ByteRange {
    /// Returns the number of elements of the tensor. The header was checked for overflow.
    pub(super) fn elements(&self) -> usize {
        self.shape.iter().product()
    }

    /// Returns the number of bytes of an element, which is an integer for every supported type.
    pub(super) fn element_bytes(&self) -> usize {
        self.stored.bitsize() / 8
    }
}

impl Checkpoint {
    /// Opens the checkpoint in a directory.
    ///
    /// # Errors
    /// A file that is missing, truncated or not a safetensors file.
    pub(super) fn open(directory: &Path) -> Result<Checkpoint, SourceError> {
        let mut checkpoint = Checkpoint {
            directory: directory.to_owned(),
            files: Vec::new(),
            tensors: HashMap::new(),
            assigned: HashMap::new(),
            is_headless: false,
        };
        let single = directory.join("model.safetensors");
        if single.is_file() {
            checkpoint.add_file(&single)?;
            checkpoint.add_prefix();
            return Ok(checkpoint);
        }
        checkpoint.assigned = weight_map(&directory.join("model.safetensors.index.json"))?;
        let names: BTreeSet<String> = checkpoint.assigned.values().cloned().collect();
        for name in names {
            checkpoint.add_file(&directory.join(name))?;
        }
        checkpoint.add_prefix();
        Ok(checkpoint)
    }

    /// Adds the prefix of a language model's tensors to those of a model without its head.
    fn add_prefix(&mut self) {
        let has = |name: &str| self.tensors.contains_key(name);
        self.is_headless = has("embed_tokens.weight")
            && has("norm.weight")
            && !has("lm_head.weight")
            && self.tensors.keys().all(|name| !name.starts_with(MODEL_PREFIX));
        if self.is_headless {
            let tensors = std::mem::take(&mut self.tensors).into_iter();
            let named = tensors.map(|(name, stretch)| (format!("{MODEL_PREFIX}{name}"), stretch));
            self.tensors = named.collect();
        }
    }

    fn add_file(&mut self, path: &Path) -> Result<(), SourceError> {
        let file = File::open(path).map_err(|source| io(path, source))?;
        let (data_start, metadata) = read_header(path, &file)?;
        let size_bytes = file.metadata().map_err(|source| io(path, source))?.len();
        let ends = metadata.tensors().into_values().map(|info| info.data_offsets.1 as u64);
        let expected = data_start.saturating_add(ends.max().unwrap_or(0));
        if size_bytes < expected {
            let reason = format!(
                "the file is cut off: its header describes {expected} bytes, it has {size_bytes}; \
                 download it again"
            );
            return Err(format_error(path, reason));
        }
        let index = self.files.len();
        for (name, info) in metadata.tensors() {
            let stretch = ByteRange {
                file: index,
                offset_bytes: data_start + info.data_offsets.0 as u64,
                stored: info.dtype,
                shape: info.shape.clone(),
            };
            if !self.tensors.contains_key(&name) || self.is_assigned(&name, path) {
                self.tensors.insert(name, stretch);
            }
        }
        self.files.push(Shard { path: path.to_owned(), file });
        Ok(())
    }

    /// Returns true if the index assigns the tensor to the file at `path`.
    fn is_assigned(&self, tensor: &str, path: &Path) -> bool {
        let file = self.assigned.get(tensor).map(String::as_str);
        file.is_some() && file == path.file_name().and_then(OsStr::to_str)
    }

    /// Returns the names of all tensors in unspecified order.
    pub(super) fn names(&self) -> impl Iterator<Item = &str> {
        self.tensors.keys().map(String::as_str)
    }

    /// Returns the tensor with the given name.
    pub(super) fn get(&self, name: &str) -> Option<&ByteRange> {
        self.tensors.get(name)
    }

    /// Returns the tensor with the given name, which must exist.
    ///
    /// # Errors
    /// A missing tensor.
    pub(super) fn require(&self, name: &str) -> Result<&ByteRange, SourceError> {
        self.get(name).ok_or_else(|| SourceError::Missing {
            path: self.directory.display().to_string(),
            tensor: name.to_owned(),
        })
    }

    /// Reads the bytes of `count` groups of a matrix, starting at group `first`: a factor of each
    /// from `factors`, and `group_bytes` of each from `values`.
    ///
    /// # Errors
    /// A file that ends early.
    pub(super) fn read_groups(
        &self,
        [factors, values]: [&ByteRange; 2],
        group_bytes: usize,
        first: usize,
        count: usize,
    ) -> Result<(Vec<u8>, Vec<u8>), SourceError> {
        let (mut factor_bytes, mut value_bytes) = (vec![0; count], vec![0; count * group_bytes]);
        self.read(factors, first, &mut factor_bytes)?;
        self.read(values, first * group_bytes, &mut value_bytes)?;
        Ok((factor_bytes, value_bytes))
    }

    /// Refuses a tensor of another shape.
    ///
    /// # Errors
    /// The tensor's shape.
    pub(super) fn require_shape(
        &self,
        stretch: &ByteRange,
        tensor: &str,
        expected: Vec<usize>,
    ) -> Result<(), SourceError> {
        if stretch.shape == expected {
            return Ok(());
        }
        Err(self.shape_error(stretch, tensor, expected))
    }

    /// Returns the error of a tensor whose shape is not `expected`.
    pub(super) fn shape_error(
        &self,
        stretch: &ByteRange,
        tensor: &str,
        expected: Vec<usize>,
    ) -> SourceError {
        SourceError::Shape {
            path: self.path(stretch).display().to_string(),
            tensor: tensor.to_owned(),
            found: stretch.shape.clone(),
            expected,
        }
    }

    /// Refuses a tensor whose elements are of none of `types`, which `supported` names.
    ///
    /// # Errors
    /// The tensor's type.
    pub(super) fn require_type(
        &self,
        stretch: &ByteRange,
        tensor: &str,
        types: &[Stored],
        supported: &'static str,
    ) -> Result<(), SourceError> {
        if types.contains(&stretch.stored) {
            return Ok(());
        }
        Err(SourceError::Type {
            path: self.path(stretch).display().to_string(),
            tensor: tensor.to_owned(),
            found: format!("{:?}", stretch.stored),
            supported,
        })
    }

    /// Returns the path of the file that contains a tensor.
    pub(super) fn path(&self, stretch: &ByteRange) -> &Path {
        &self.files[stretch.file].path
    }

    /// Fills `out` with a tensor's elements, starting at element `first`.
    ///
    /// # Errors
    /// A file that ends early or cannot be read.
    ///
    /// # Panics
    /// If the tensor does not have that many elements.
    pub(super) fn read(
        &self,
        stretch: &ByteRange,
        first: usize,
        out: &mut [u8],
    ) -> Result<(), SourceError> {
        let element_bytes = stretch.element_bytes();
        let end = first * element_bytes + out.len();
        assert!(end <= stretch.elements() * element_bytes, "elements behind a tensor's end");
        let shard = &self.files[stretch.file];
        let offset = stretch.offset_bytes + (first * element_bytes) as u64;
        shard.file.read_exact_at(out, offset).map_err(|source| io(&shard.path, source))
    }
}

fn io(path: &Path, source: std::io::Error) -> SourceError {
    SourceError::Io { path: path.display().to_string(), source }
}

pub(super) fn format_error(path: &Path, reason: String) -> SourceError {
    SourceError::Format { path: path.display().to_string(), reason }
}

/// Returns the offset of the data, and the header.
fn read_header(path: &Path, mut file: &File) -> Result<(u64, Metadata), SourceError> {
    let mut length = [0u8; 8];
    let cut_off =
        |_| format_error(path, "the file ends inside its header; download it again".into());
    file.read_exact(&mut length).map_err(cut_off)?;
    let header_bytes = u64::from_le_bytes(length);
    let size_bytes = file.metadata().map_err(|source| io(path, source))?.len();
    if header_bytes > HEADER_BYTES_MAX || 8 + header_bytes > size_bytes {
        let reason = format!(
            "this is not a safetensors file, or it is cut off: its header claims {header_bytes} \
             bytes"
        );
        return Err(format_error(path, reason));
    }
    let mut bytes = length.to_vec();
    bytes.resize(8 + header_bytes as usize, 0);
    file.read_exact(&mut bytes[8..]).map_err(cut_off)?;
    // `SafeTensors::read_metadata` is not used, since it requires the whole file in memory.
    let metadata: Metadata = serde_json::from_slice(&bytes[8..])
        .map_err(|error| format_error(path, format!("the header cannot be read: {error}")))?;
    for (name, info) in metadata.tensors() {
        let (start, end) = info.data_offsets;
        let elements = info.shape.iter().try_fold(1usize, |product, n| product.checked_mul(*n));
        let bits = elements.and_then(|elements| elements.checked_mul(info.dtype.bitsize()));
        if end < start || bits.is_none_or(|bits| bits.div_ceil(8) != end - start) {
            let reason = format!("the header contradicts itself about tensor {name}");
            return Err(format_error(path, reason));
        }
    }
    Ok((8 + header_bytes, metadata))
}

/// Returns the file names that an index assigns to tensors.
fn weight_map(index: &Path) -> Result<HashMap<String, String>, SourceError> {
    let text = std::fs::read_to_string(index).map_err(|source| io(index, source))?;
    let bad = |reason: String| format_error(index, reason);
    let json: serde_json::Value = serde_json::from_str(&text).map_err(|e| bad(e.to_string()))?;
    let map = json["weight_map"].as_object().ok_or_else(|| bad("it has no weight_map".into()))?;
    let named = map.iter().filter_map(|(name, file)| Some((name, file.as_str()?)));
    let assigned: HashMap<String, String> =
        named.map(|(name, file)| (name.clone(), file.to_owned())).collect();
    if let Some(name) = assigned.values().find(|name| name.contains('/')) {
        return Err(bad(format!("it names {name}, which is outside the directory")));
    }
    Ok(assigned)
}
