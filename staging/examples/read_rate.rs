//! How fast a staging is read: stages made-up bytes where they are missing, and reads all of them
//! in rounds, as a storage worker does in every step.
//!
//! ```text
//! cargo run --release -p staging --example read_rate -- --dir DIR --size 4G --rounds 8
//! ```

use std::path::PathBuf;
use std::time::{Duration, Instant};

use staging::{
    AlignedBuffer, BlobSize, Identity, IoKind, Lookup, Reader, ReaderOptions, Registered, Staged,
    Writer,
};

type Failure = Box<dyn std::error::Error>;

const USAGE: &str = "--dir DIR [--size 4G] [--blob 256M] [--rounds 8] [--seconds 60] [--depth N] \
                     [--request 1M] [--io auto|uring|threads] [--cached] [--unregistered] \
                     [--faults rate=100M]";

struct Arguments {
    dir: PathBuf,
    size_bytes: u64,
    blob_bytes: u64,
    rounds: usize,
    /// No round begins later.
    seconds: u64,
    options: ReaderOptions,
    is_registered: bool,
}

/// A number of bytes, with K, M or G for powers of 1024.
fn bytes(text: &str) -> Result<u64, Failure> {
    let units = [('K', 1 << 10), ('M', 1 << 20), ('G', 1_u64 << 30)];
    let unit = units.iter().find_map(|(unit, factor)| Some((text.strip_suffix(*unit)?, factor)));
    let (digits, factor) = unit.unwrap_or((text, &1));
    Ok(digits.parse::<u64>()? * factor)
}

fn arguments() -> Result<Arguments, Failure> {
    let mut parsed = Arguments {
        dir: PathBuf::new(),
        size_bytes: 4 << 30,
        blob_bytes: 256 << 20,
        rounds: 8,
        seconds: 60,
        options: ReaderOptions::default(),
        is_registered: true,
    };
    let mut words = std::env::args().skip(1);
    while let Some(word) = words.next() {
        let mut value = || words.next().ok_or_else(|| format!("{word} needs a value; {USAGE}"));
        match word.as_str() {
            "--dir" => parsed.dir = value()?.into(),
            "--size" => parsed.size_bytes = bytes(&value()?)?,
            "--blob" => parsed.blob_bytes = bytes(&value()?)?.max(1),
            "--rounds" => parsed.rounds = value()?.parse()?,
            "--seconds" => parsed.seconds = value()?.parse()?,
            "--depth" => parsed.options.queue_depth = value()?.parse()?,
            "--request" => parsed.options.request_bytes = bytes(&value()?)?,
            "--faults" => parsed.options.faults = value()?.parse()?,
            "--cached" => parsed.options.direct = false,
            "--unregistered" => parsed.is_registered = false,
            "--io" => {
                parsed.options.io = match value()?.as_str() {
                    "auto" => IoKind::Auto,
                    "uring" => IoKind::Uring,
                    "threads" => IoKind::Threads,
                    other => return Err(format!("no way of reading is called {other}").into()),
                }
            }
            other => return Err(format!("{other} is no option; {USAGE}").into()),
        }
    }
    if parsed.dir.as_os_str().is_empty() {
        return Err(USAGE.into());
    }
    Ok(parsed)
}

/// Bytes that no drive can compress.
fn made_up(seed: u64, out: &mut [u8]) {
    let mut state = seed.wrapping_mul(0x9e37_79b9_7f4a_7c15) | 1;
    for word in out.chunks_mut(8) {
        state ^= state << 13;
        state ^= state >> 7;
        state ^= state << 17;
        word.copy_from_slice(&state.to_le_bytes()[..word.len()]);
    }
}

fn staged(arguments: &Arguments) -> Result<Staged, Failure> {
    let (size_bytes, blob_bytes) = (arguments.size_bytes, arguments.blob_bytes);
    let identity = Identity {
        name: format!("made-up-{size_bytes}-{blob_bytes}"),
        model: "made up".to_owned(),
        weights: String::new(),
        form: "bytes".to_owned(),
        description: Vec::new(),
    };
    if let Lookup::Whole(staged) = Staged::lookup(&arguments.dir, &identity)? {
        return Ok(staged);
    }
    let blobs: Vec<BlobSize> = (0..size_bytes.div_ceil(blob_bytes))
        .map(|index| BlobSize {
            name: index.to_string(),
            size_bytes: blob_bytes.min(size_bytes - index * blob_bytes),
        })
        .collect();
    let mut writer = Writer::begin(&arguments.dir, &identity, &blobs)?;
    let (mut written_bytes, mut writing) = (0, Duration::ZERO);
    for index in writer.missing() {
        let mut blob = vec![0; blobs[index].size_bytes as usize];
        made_up(index as u64 + 1, &mut blob);
        let begin = Instant::now();
        writer.write(index, &blob)?;
        writing += begin.elapsed();
        written_bytes += blobs[index].size_bytes;
    }
    println!("staged {:.2} GB/s", written_bytes as f64 / writing.as_secs_f64() / 1e9);
    Ok(writer.finish()?)
}

fn main() -> Result<(), Failure> {
    let arguments = arguments()?;
    let staged = staged(&arguments)?;
    let size_bytes = staged.blobs().map(|blob| staged.size_bytes(blob)).max().unwrap_or(0);
    let mut buffer = AlignedBuffer::new(size_bytes as usize);
    let mut reader = Reader::open(&staged, arguments.options.clone())?;
    if arguments.is_registered {
        // SAFETY: needed because pages are pinned; the buffer is dropped after the reader.
        let registered = unsafe { reader.register(&[(buffer.start(), buffer.len())]) };
        if let Registered::No { why } = registered {
            println!("buffers are not registered: {why}");
        }
    }
    println!("{}", reader.describe());
    let start = Instant::now();
    let mut rates = Vec::new();
    for round in 0..arguments.rounds {
        if start.elapsed() > Duration::from_secs(arguments.seconds) {
            break;
        }
        let begin = Instant::now();
        for blob in staged.blobs() {
            // SAFETY: needed because the device writes through a pointer; the buffer holds every
            // blob, and is not used here meanwhile.
            unsafe { reader.read(blob, 0..staged.blocks(blob), buffer.start())? };
        }
        let rate = staged.total_bytes() as f64 / begin.elapsed().as_secs_f64() / 1e9;
        println!("round {round}: {rate:.3} GB/s");
        rates.push(rate);
    }
    rates.sort_by(f64::total_cmp);
    let median = rates.get(rates.len() / 2).copied().unwrap_or(0.0);
    println!("median {median:.3} GB/s of {} rounds", rates.len());
    Ok(())
}
