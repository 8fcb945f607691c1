//! Measures the kernels over `kernels/cases.txt`, and compares each case with the limits of memory
//! and arithmetic in the same process at the same moment (`peaks.rs`). A sample during which the
//! machine changed is discarded and taken again.
//!
//!     cargo run --release -p kernels --example roofline -- [options] [part of a name]...
//!     (all parts must be in a case's name; "rows 1 " is not in "rows 16")
//!       --threads N    default 2
//!       --samples N    of each case, default 9
//!       --json FILE    appends a line for each case
//!       --check        only the machine's peaks, as JSON; then exits
//!       --serve        cases on stdin, one sample of each as JSON on stdout: for paired runs

mod cases;
mod peaks;
mod report;
mod subject;

use std::io::{BufRead, Write};
use std::process::ExitCode;

use kernels::Variant;

use cases::{Case, Format};
use peaks::{Meter, Peaks};
use report::{Row, print_goals};
use subject::{Memory, Subject};

struct Options {
    threads: usize,
    samples: usize,
    json: Option<String>,
    check: bool,
    serve: bool,
    parts: Vec<String>,
}

fn main() -> ExitCode {
    match options().and_then(|options| run(&options)) {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            eprintln!("roofline: {error}");
            ExitCode::FAILURE
        }
    }
}

fn options() -> Result<Options, String> {
    let mut options = Options {
        threads: 2,
        samples: 9,
        json: None,
        check: false,
        serve: false,
        parts: Vec::new(),
    };
    let mut arguments = std::env::args().skip(1);
    while let Some(argument) = arguments.next() {
        let mut value = || arguments.next().ok_or_else(|| format!("{argument} needs a value."));
        let number = |text: String| {
            let number = text.parse().ok().filter(|&number| number > 0);
            number.ok_or_else(|| format!("{text} is not a positive number."))
        };
        match argument.as_str() {
            "--threads" => options.threads = number(value()?)?,
            "--samples" => options.samples = number(value()?)?,
            "--json" => options.json = Some(value()?),
            "--check" => options.check = true,
            "--serve" => options.serve = true,
            _ if argument.starts_with("--") => return Err(format!("{argument} is no option.")),
            _ => options.parts.push(argument),
        }
    }
    Ok(options)
}

fn run(options: &Options) -> Result<(), String> {
    let variant = Variant::from_env().map_err(|error| error.to_string())?;
    let memory = Memory::new();
    let mut meter = Meter::new(options.threads, variant);
    // The first measurement warms up pages and clocks.
    meter.measure(memory.words());
    if options.check {
        let several = [(); 5].map(|()| meter.measure(memory.words()));
        println!("{}", peaks_json(&Peaks::median(&several)));
        return Ok(());
    }
    if options.serve {
        return serve(options, variant, &memory, &mut meter);
    }
    let mut json = match &options.json {
        Some(path) => Some(
            std::fs::File::options()
                .create(true)
                .append(true)
                .open(path)
                .map_err(|error| format!("{path} cannot be written: {error}."))?,
        ),
        None => None,
    };
    let cases = cases::parse(cases::LIST)?;
    let chosen = |case: &&Case| options.parts.iter().all(|part| (case.name() + " ").contains(part));
    println!("{} on {} threads", variant.name(), options.threads);
    Row::print_header();
    let mut rows = Vec::new();
    for case in cases.iter().filter(chosen) {
        let row = measure(case, options, variant, &memory, &mut meter)?;
        row.print();
        if row.samples.is_empty() {
            continue;
        }
        if let Some(file) = &mut json {
            writeln!(file, "{}", row.json(variant.name(), options.threads))
                .map_err(|error| format!("The JSON line could not be written: {error}."))?;
        }
        rows.push(row);
    }
    print_goals(&rows);
    Ok(())
}

/// Maximum number of discarded samples for each requested one.
const MOST_DISCARDED: usize = 10;

fn measure(
    case: &Case,
    options: &Options,
    variant: Variant,
    memory: &Memory,
    meter: &mut Meter,
) -> Result<Row, String> {
    let mut subject = Subject::new(case, variant, options.threads, memory)
        .map_err(|error| format!("The kernels' threads did not start: {error}."))?;
    let mut plain = match plain_twin(case) {
        Some(twin) => Some(
            Subject::new(&twin, variant, options.threads, memory)
                .map_err(|error| format!("The kernels' threads did not start: {error}."))?,
        ),
        None => None,
    };
    let mut row = Row::new(case.clone(), subject.bytes, subject.flops);
    let mut before = meter.measure(memory.words());
    // A machine that never becomes idle must not prevent this from ending.
    while row.samples.len() < options.samples
        && row.discarded.len() < MOST_DISCARDED * options.samples
    {
        let sample = subject.sample();
        let plain = plain.as_mut().map(Subject::sample);
        let after = meter.measure(memory.words());
        if let Some(reason) = before.contention(&after).or_else(|| before.sharing(&after)) {
            row.discarded.push(reason);
        } else {
            row.samples.push((sample.seconds, before.mean(&after)));
            row.ratios.extend(plain.map(|plain| plain.seconds / sample.seconds));
        }
        before = after;
    }
    Ok(row)
}

/// Returns the bf16 case that a compressed one is compared with, sample by sample.
fn plain_twin(case: &Case) -> Option<Case> {
    let compressed = matches!(case.format, Format::W4 | Format::Kv4);
    compressed.then(|| Case { format: Format::Bf16, ..case.clone() })
}

/// Answers each line of stdin, a case in the format of `cases.txt`, with a sample.
fn serve(
    options: &Options,
    variant: Variant,
    memory: &Memory,
    meter: &mut Meter,
) -> Result<(), String> {
    let mut current: Option<(Case, Subject<'_>)> = None;
    for line in std::io::stdin().lock().lines() {
        let line = line.map_err(|error| format!("stdin cannot be read: {error}."))?;
        for case in cases::parse_line(&line)? {
            if current.as_ref().is_none_or(|(held, _)| *held != case) {
                let subject = Subject::new(&case, variant, options.threads, memory)
                    .map_err(|error| format!("The kernels' threads did not start: {error}."))?;
                current = Some((case, subject));
            }
            let Some((_, subject)) = &mut current else { continue };
            let before = meter.measure(memory.words());
            let sample = subject.sample();
            let after = meter.measure(memory.words());
            let contention = before
                .contention(&after)
                .map_or_else(|| "null".to_owned(), |reason| format!("\"{reason}\""));
            println!(
                r#"{{"time_us":{:.3},"bytes":{:.0},"flops":{:.0},"contention":{contention},"peaks":{}}}"#,
                sample.seconds * 1e6,
                subject.bytes,
                subject.flops,
                peaks_json(&before.mean(&after))
            );
        }
    }
    Ok(())
}

fn peaks_json(peaks: &Peaks) -> String {
    let spin = peaks.spin_ns.map_or_else(|| "null".to_owned(), |ns| format!("{ns:.1}"));
    format!(
        r#"{{"dram_gb_per_s":{:.2},"peak_gflop_per_s":{:.1},"spin_ns":{spin},"alone":{:.3},"scaling":{:.3}}}"#,
        peaks.dram_bytes_per_s / 1e9,
        peaks.flops_per_s / 1e9,
        peaks.alone,
        peaks.scaling
    )
}
