//! Writing of a quantised file: all tensors in pieces of a few megabytes, each read, encoded and
//! written by one of several threads. No more than a piece per thread is in memory.

use std::fs::File;
use std::os::fd::AsRawFd;
use std::os::unix::fs::FileExt;
use std::path::{Path, PathBuf};
use std::sync::{Mutex, PoisonError};

use atomic_fs::{Directory, PUBLIC_MODE};
use model::source::StoredType;
use model::source::gguf::GgufSource;
use model::source::gguf::export::ROPE_FACTORS;

use crate::checkpoint::QUANTIZATION_VERSION;
use crate::config_check::difference;
use crate::encode::encode_rows;
use crate::error::QuantizeError;
use crate::file_type::FileType;
use crate::header::{FileHeader, HeaderTensor, HeaderValue};
use crate::importance::Importance;
use crate::input::{InputTensor, ModelInput};
use crate::tensor_types::{ModelSizes, is_quantised, tensor_type};

/// Number of elements of a piece: large enough that reads are sequential, small enough that many
/// threads need little memory.
const PIECE_ELEMENTS: usize = 1 << 20;

/// Options of a job.
#[derive(Debug)]
pub struct QuantizeOptions<'a> {
    pub file_type: FileType,
    pub importance: &'a Importance,
    pub threads: usize,
    /// An existing output is replaced.
    pub overwrites: bool,
}

/// Description of a file that was written.
#[derive(Debug, Clone, PartialEq)]
pub struct QuantizedFile {
    pub size_bytes: u64,
    /// Number of tensors and their bytes by type, in the order of [`StoredType::ALL`].
    pub types: Vec<TypeTotal>,
}

/// Tensors of a type.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct TypeTotal {
    pub stored: StoredType,
    pub tensors: usize,
    pub size_bytes: u64,
    pub elements: u64,
}

/// Consecutive rows of a tensor, none of two experts.
#[derive(Debug, Clone, Copy)]
struct RowPiece {
    tensor: usize,
    expert: usize,
    first_row: usize,
    rows: usize,
}

/// Observer of a job, which may end it.
pub trait QuantizeProgress: Sync {
    /// Receives the number of bytes written and their total.
    fn update(&self, done_bytes: u64, total_bytes: u64);

    /// Returns true if the job has to end.
    fn is_interrupted(&self) -> bool;
}

/// Writes `input` to the file `output`, which appears once it is complete.
///
/// # Errors
/// An existing output, a model that files cannot express, or a file that cannot be read or
/// written. No file is left.
pub fn quantize(
    input: &dyn ModelInput,
    output: &Path,
    options: &QuantizeOptions<'_>,
    progress: &dyn QuantizeProgress,
) -> Result<QuantizedFile, QuantizeError> {
    let path = output.display().to_string();
    let io = |source| QuantizeError::Io { path: path.clone(), source };
    let (directory, name) = Directory::open_parent(output).map_err(io)?;
    let check_absent = || -> Result<(), QuantizeError> {
        let exists = !options.overwrites && directory.entry(name).map_err(io)?.is_some();
        if exists { Err(QuantizeError::Exists { path: path.clone() }) } else { Ok(()) }
    };
    check_absent()?;
    let header = header(input, options.file_type);
    let (head, offsets) = header.bytes(input.alignment());
    let total_bytes = offsets[offsets.len() - 1];
    let available_bytes = directory.available_bytes().map_err(io)?;
    if total_bytes > available_bytes {
        return Err(QuantizeError::Space { path, needed_bytes: total_bytes, available_bytes });
    }
    let temporary = directory.temporary_file(".tmp-", ".gguf", PUBLIC_MODE).map_err(io)?;
    let file = temporary.file();
    file.write_all_at(&head, 0).map_err(io)?;
    file.set_len(total_bytes).map_err(io)?;
    let writer =
        TensorWriter { input, header: &header, offsets: &offsets, file, path: &path, options };
    // Tables of the rope are part of the configuration.
    let (tables, pieces): (Vec<RowPiece>, Vec<RowPiece>) =
        writer.pieces().into_iter().partition(|piece| writer.is_table(piece.tensor));
    for piece in tables {
        writer.write(piece)?;
    }
    writer.check_config()?;
    writer.write_all(&pieces, progress)?;
    file.sync_data().map_err(io)?;
    check_absent()?;
    temporary.persist(name).map_err(io)?;
    directory.sync().map_err(io)?;
    Ok(QuantizedFile { size_bytes: total_bytes, types: totals(&header) })
}

/// Returns the head of the output.
fn header(input: &dyn ModelInput, file_type: FileType) -> FileHeader {
    let config = input.config();
    let sizes = ModelSizes {
        layers: config.num_layers,
        experts: config.experts.map_or(0, |experts| experts.count),
        group_size: config.group_size(),
        tied_embeddings: config.tied_embeddings,
    };
    let mut header = input.header().clone();
    header.set("general.file_type", &HeaderValue::U32(file_type.code));
    header.set("general.quantization_version", &HeaderValue::U32(QUANTIZATION_VERSION));
    for InputTensor { name, shape, stored } in input.tensors() {
        let stored = if is_quantised(name, shape) {
            tensor_type(file_type, sizes, name, shape)
        } else {
            stored.unwrap_or(StoredType::F32)
        };
        header.add_tensor(HeaderTensor { name: name.clone(), shape: shape.clone(), stored });
    }
    header
}

fn totals(header: &FileHeader) -> Vec<TypeTotal> {
    let of_type = |stored: StoredType| {
        let tensors = || header.tensors().iter().filter(move |tensor| tensor.stored == stored);
        let elements = tensors().map(|tensor| tensor.shape.iter().product::<usize>() as u64);
        TypeTotal {
            stored,
            tensors: tensors().count(),
            size_bytes: tensors().map(HeaderTensor::size_bytes).sum(),
            elements: elements.sum(),
        }
    };
    StoredType::ALL.into_iter().map(of_type).filter(|total| total.tensors > 0).collect()
}

/// Everything that writing a piece requires.
struct TensorWriter<'a> {
    input: &'a dyn ModelInput,
    header: &'a FileHeader,
    /// Position of each tensor in the file.
    offsets: &'a [u64],
    file: &'a File,
    path: &'a str,
    options: &'a QuantizeOptions<'a>,
}

impl TensorWriter<'_> {
    /// Returns the pieces of all tensors. A tensor that keeps its precision is one piece.
    fn pieces(&self) -> Vec<RowPiece> {
        let mut pieces = Vec::new();
        for (tensor, info) in self.header.tensors().iter().enumerate() {
            let all = info.rows();
            let of_expert = match info.shape.as_slice() {
                [_, rows, _] if is_quantised(&info.name, &info.shape) => *rows,
                _ => all,
            };
            let step = match is_quantised(&info.name, &info.shape) {
                true => (PIECE_ELEMENTS / info.columns().max(1)).max(1),
                false => all.max(1),
            };
            for expert in 0..all / of_expert.max(1) {
                for first in (0..of_expert).step_by(step) {
                    let rows = step.min(of_expert - first);
                    pieces.push(RowPiece {
                        tensor,
                        expert,
                        first_row: expert * of_expert + first,
                        rows,
                    });
                }
            }
        }
        pieces
    }

    /// Returns true for tensors that a reader's configuration is read from.
    fn is_table(&self, tensor: usize) -> bool {
        let name = self.header.tensors()[tensor].name.as_str();
        ROPE_FACTORS.contains(&name)
    }

    /// Reads, encodes and writes a piece, and returns its bytes.
    fn write(&self, piece: RowPiece) -> Result<u64, QuantizeError> {
        let RowPiece { tensor, expert, first_row, rows } = piece;
        let info = &self.header.tensors()[tensor];
        let row_bytes = info.stored.row_bytes(info.columns());
        let mut out = vec![0; rows * row_bytes];
        let first_byte = (first_row * row_bytes) as u64;
        if self.input.tensors()[tensor].stored == Some(info.stored) {
            self.input.read_stored(tensor, first_byte, &mut out)?;
        } else {
            let mut values = vec![0.0; rows * info.columns()];
            self.input.read_rows(tensor, first_row, &mut values)?;
            if values.iter().any(|value| !value.is_finite()) {
                return Err(QuantizeError::NotFinite { tensor: info.name.clone() });
            }
            let columns = info.columns();
            let weights = self.options.importance.weights(&info.name, expert, columns);
            encode_rows(info.stored, columns, &values, weights, &mut out);
        }
        self.file
            .write_all_at(&out, self.offsets[tensor] + first_byte)
            .map_err(|source| QuantizeError::Io { path: self.path.to_owned(), source })?;
        Ok(out.len() as u64)
    }

    /// Writes pieces on all threads.
    fn write_all(
        &self,
        pieces: &[RowPiece],
        progress: &dyn QuantizeProgress,
    ) -> Result<(), QuantizeError> {
        let total: u64 = self.header.tensors().iter().map(HeaderTensor::size_bytes).sum();
        let state = Mutex::new(JobState { next: 0, done_bytes: 0, failed: None });
        let run = || {
            let mut written = 0;
            loop {
                let piece = {
                    let mut state = state.lock().unwrap_or_else(PoisonError::into_inner);
                    state.done_bytes += written;
                    progress.update(state.done_bytes.min(total), total);
                    if progress.is_interrupted() {
                        state.failed.get_or_insert(QuantizeError::Interrupted);
                    }
                    if state.failed.is_some() || state.next == pieces.len() {
                        return;
                    }
                    state.next += 1;
                    pieces[state.next - 1]
                };
                match self.write(piece) {
                    Ok(bytes) => written = bytes,
                    Err(error) => {
                        let mut state = state.lock().unwrap_or_else(PoisonError::into_inner);
                        state.failed.get_or_insert(error);
                        return;
                    }
                }
            }
        };
        std::thread::scope(|scope| {
            let threads = (1..self.options.threads.max(1))
                .map(|_| std::thread::Builder::new().spawn_scoped(scope, run));
            let started: Result<Vec<_>, _> = threads.collect();
            run();
            started.map(drop).map_err(QuantizeError::Thread)
        })?;
        let state = state.into_inner().unwrap_or_else(PoisonError::into_inner);
        state.failed.map_or(Ok(()), Err)
    }

    /// Checks that a reader of the file finds the model's configuration, before the tensors are
    /// written.
    fn check_config(&self) -> Result<(), QuantizeError> {
        // The temporary file may be renamed or replaced by others; its descriptor may not.
        let written = PathBuf::from(format!("/proc/self/fd/{}", self.file.as_raw_fd()));
        let expected = self.input.config();
        let refused = |reason: String| QuantizeError::Family {
            family: format!("{:?}", expected.family),
            reason,
        };
        let found = GgufSource::open(&written).map_err(|error| {
            let prefix = format!("{}: ", written.display());
            refused(error.to_string().replacen(&prefix, "", 1))
        })?;
        match difference(expected, found.config()) {
            None => Ok(()),
            Some(difference) => Err(refused(format!("a file of it would have {difference}"))),
        }
    }
}

/// State that threads share.
struct JobState {
    /// Index of the next piece.
    next: usize,
    done_bytes: u64,
    failed: Option<QuantizeError>,
}
