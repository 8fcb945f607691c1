//! Reasons for which a job cannot start or continue. Every message is a sentence that a user can
//! act on.

use std::io;

use crate::boundary::codec::CodecError;
use crate::boundary::engine::EngineError;

/// Reason for which a job ended without finishing.
#[derive(Debug, thiserror::Error)]
pub enum JobError {
    #[error("How the model's chats are written cannot be found out: {0}.")]
    Chats(CodecError),
    #[error("The input {path} cannot be read: {source}.")]
    Input { path: String, source: io::Error },
    #[error(
        "The input {path} is compressed with gzip. Decompress it first, as in: gzip -dc {path} | \
         coordinator --input - ..."
    )]
    CompressedInput { path: String },
    #[error(
        "The input {path} is one JSON array, where a request to a line is wanted. Turn it into \
         lines, as with: jq -c '.[]' {path}"
    )]
    ArrayInput { path: String },
    #[error(
        "The input {path} is in UTF-16, where UTF-8 is wanted. Turn it into that, as with: iconv \
         -f {encoding} -t UTF-8 {path} > {path}.utf8"
    )]
    Utf16Input { path: String, encoding: &'static str },
    #[error(
        "The input {path} is a table, where a JSON object to a line is wanted. Turn its rows into \
         such, as with: python3 -c \"import csv, json, sys; [print(json.dumps(row)) for row in \
         csv.DictReader(sys.stdin, delimiter={separator:?})]\" < {path}; a column named prompt is \
         the prompt, and others go into the output"
    )]
    TableInput { path: String, separator: char },
    #[error(
        "The output {path} exists. Give --resume to go on where it ends, --force to overwrite it, \
         or another --output."
    )]
    OutputExists { path: String },
    #[error(
        "The output {path} cannot be opened for writing: {source}. Choose an --output in a \
         directory where you may write."
    )]
    OutputOpen { path: String, source: io::Error },
    #[error(
        "{path} is a link, belongs to another user or is not a regular file, and the answers are \
         put in order in a file of that name. Remove it, or give another --output."
    )]
    ForeignSettling { path: String },
    #[error("The output {path} is a folder. Give --output a file in it.")]
    OutputFolder { path: String },
    #[error("The input and the output are the same file, {path}. Give another --output.")]
    SameFile { path: String },
    #[error("The output {path} is in use by another run; wait for it, or give another --output.")]
    OutputBusy { path: String },
    #[error(
        "The answers could not be written to {path}: {source}. Those written before are kept; \
         make room and run the same command with --resume."
    )]
    OutputWrite { path: String, source: io::Error },
    #[error(
        "The answers could not be written to {path}: {source}. Give --output a file: one that ends \
         early can be gone on with."
    )]
    StreamWrite { path: String, source: io::Error },
    #[error("The reader of the results has closed its end.")]
    BrokenPipe,
    #[error("{path} cannot be resumed: it is not a regular file.")]
    ResumeStream { path: String },
    #[error(
        "{path} cannot be resumed: its line {line} is not an answer that this program wrote. Give \
         another --output, or --force to overwrite the file."
    )]
    ResumeForeign { path: String, line: usize },
    #[error(
        "{path} cannot be resumed: its line {line} was answered by another model, dtype, \
         compression, seed or version ({found}, this run is {expected}). Run with the same ones, \
         or give --force to overwrite the file."
    )]
    ResumeFingerprint { path: String, line: usize, found: String, expected: String },
    #[error(
        "{path} cannot be resumed: its line {line} was computed with the kernels {found}, and this \
         run's are {expected}, which round differently. Use the same ones (TANDEM_KERNELS and \
         --device choose them, `coordinator doctor` says what this machine has), or give --force \
         to overwrite the file."
    )]
    ResumeKernels { path: String, line: usize, found: String, expected: String },
    #[error(
        "{path} cannot be resumed: of its {} answers the input asks for {kept} only. {changed} \
         answer requests that are now put in another way (another prompt, --chat, --max-tokens or \
         chat template?) and {unasked} answer what it does not ask; the first is \"{custom_id}\" \
         in line {line}. Nothing was changed. Give the input and the options it was made with, \
         another --output, or --resume with --force to keep the {kept} and lose the other {}.",
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
        "The output {path} was moved or replaced while the job ran. Its answers, in order, are in \
         {now}."
    )]
    OutputMoved { path: String, now: String },
    #[error(
        "The model's tokenizer fails: {0} Answers written before are kept; run the same command \
         with --resume once there is memory for it."
    )]
    Tokenizer(String),
    #[error("interrupted while the input was read; nothing was written")]
    Interrupted,
    /// Failure of the engine, in its own words.
    #[error("{0}")]
    Engine(EngineError),
}
