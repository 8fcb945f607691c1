//! Reasons for which a job cannot start or continue. Every message is a sentence that a user can
//! act on.

use std::io;

use engine_api::batch::EngineError;
use engine_api::codec::CodecError;

/// Reason for which a job ended without finishing.
#[derive(Debug, thiserror::Error)]
pub enum JobError {
    #[error("cannot determine the chat format of the model: {0}")]
    Chats(CodecError),
    #[error("the input {path} cannot be read: {source}")]
    Input { path: String, source: io::Error },
    #[error(
        "the input {path} is compressed with gzip. Decompress it first: gzip -dc {path} | \
         coordinator --input - ..."
    )]
    CompressedInput { path: String },
    #[error(
        "the input {path} is a JSON array, but must have one request per line. Convert it: \
         jq -c '.[]' {path}"
    )]
    ArrayInput { path: String },
    #[error(
        "the input {path} is in UTF-16, but must be in UTF-8. Convert it: iconv -f {encoding} \
         -t UTF-8 {path} > {path}.utf8"
    )]
    Utf16Input { path: String, encoding: &'static str },
    #[error(
        "the input {path} is a table, but must have one JSON object per line. Convert its rows: \
         python3 -c \"import csv, json, sys; [print(json.dumps(row)) for row in \
         csv.DictReader(sys.stdin, delimiter={separator:?})]\" < {path}; the column named prompt \
         becomes the prompt, and other columns are copied to the output"
    )]
    TableInput { path: String, separator: char },
    #[error(
        "the output {path} already exists. Pass --resume to continue it, --force to overwrite \
         it, or another --output."
    )]
    OutputExists { path: String },
    #[error(
        "the output {path} cannot be opened for writing: {source}. Specify an --output in a \
         directory with write permission."
    )]
    OutputOpen { path: String, source: io::Error },
    #[error(
        "{path} is a link, belongs to another user or is not a regular file, but the answers are \
         sorted in a file of that name. Remove it, or specify another --output."
    )]
    ForeignTempFile { path: String },
    #[error("the output {path} is a directory. Specify a file in it as --output.")]
    OutputDirectory { path: String },
    #[error("the input and the output are the same file, {path}. Specify another --output.")]
    SameFile { path: String },
    #[error(
        "the output {path} is in use by another run. Wait for that run to end, or specify another \
         --output."
    )]
    OutputBusy { path: String },
    #[error(
        "the answers could not be written to {path}: {source}. Answers written before are kept. \
         Free disk space and run the same command with --resume."
    )]
    OutputWrite { path: String, source: io::Error },
    #[error(
        "the answers could not be written to {path}: {source}. Specify a file as --output: an \
         incomplete file can be continued with --resume."
    )]
    StreamWrite { path: String, source: io::Error },
    #[error("the reader of the results closed the pipe")]
    BrokenPipe,
    #[error("{path} cannot be resumed: it is not a regular file")]
    ResumeStream { path: String },
    #[error(
        "{path} cannot be resumed: line {line} is not an answer written by this program. Specify \
         another --output, or pass --force to overwrite the file."
    )]
    ResumeForeign { path: String, line: usize },
    #[error(
        "{path} cannot be resumed: line {line} was answered with another model, dtype, \
         compression, seed or version ({found}, but this run has {expected}). Use the same ones, \
         or pass --force to overwrite the file."
    )]
    ResumeFingerprint { path: String, line: usize, found: String, expected: String },
    #[error(
        "{path} cannot be resumed: line {line} was computed with the kernels {found}, but those \
         of this run are {expected}, which round differently. Use the same kernels \
         (TANDEM_KERNELS and --device select them, `coordinator doctor` lists those of this \
         machine), or pass --force to overwrite the file."
    )]
    ResumeKernels { path: String, line: usize, found: String, expected: String },
    #[error(
        "{path} cannot be resumed: only {kept} of its {} answers match the input. {changed} \
         answer requests that have changed (another prompt, --chat, --max-tokens or chat \
         template?) and {unasked} answer requests that the input does not contain; the first is \
         \"{custom_id}\" in line {line}. The file is unchanged. Use the original input and \
         options, another --output, or --resume with --force to keep the {kept} and lose the \
         other {}.",
        kept + changed + unasked, changed + unasked
    )]
    ResumeOther {
        path: String,
        kept: usize,
        changed: usize,
        unasked: usize,
        /// Line of the first answer that would be lost, and the ID of its request.
        line: usize,
        custom_id: String,
    },
    #[error(
        "the output {path} was moved or replaced while the job was running. Its answers, in \
         order, are in {now}."
    )]
    OutputMoved { path: String, now: String },
    #[error(
        "the model's tokenizer failed: {0} Answers written before are kept. Run the same command \
         with --resume once enough memory is available."
    )]
    Tokenizer(String),
    #[error("interrupted while reading the input; nothing was written")]
    Interrupted,
    /// Failure of the engine, in its own words.
    #[error("{0}")]
    Engine(EngineError),
}
