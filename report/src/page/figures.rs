//! Numbers of a page, each with its JSON pointer in the report, its exact value, and its text.

use serde::Serialize;

use super::run::PageRun;

/// A number of a report.
#[derive(Debug, Clone, Serialize)]
pub(super) struct FigureCell {
    pub(super) letter: &'static str,
    /// JSON pointer of the number in the report.
    pub(super) pointer: String,
    /// The number as it is written in the report.
    pub(super) value: String,
    pub(super) text: String,
}

/// A number at the top of the page.
#[derive(Debug, Serialize)]
pub(super) struct HeadlineFigure {
    name: &'static str,
    cells: Vec<FigureCell>,
    /// Ratio of the second run's number to the first's.
    ratio: Option<String>,
}

/// A bar with its number.
#[derive(Debug, Clone, Serialize)]
pub(super) struct FigureBar {
    /// Kind of the number: `predicted`, `measured`, ...
    kind: &'static str,
    letter: &'static str,
    /// Percentage of the section's longest bar.
    width: f64,
    cell: FigureCell,
}

#[derive(Debug, Serialize)]
pub(super) struct BarRow {
    name: String,
    bars: Vec<FigureBar>,
}

/// Rows of bars with a common scale.
#[derive(Debug, Serialize)]
pub(super) struct BarSection {
    id: &'static str,
    title: &'static str,
    note: &'static str,
    rows: Vec<BarRow>,
}

/// Name of a kind of bar, and a function that returns the JSON pointer of its number from a row's
/// name.
type BarKind<'k> = (&'static str, &'k dyn Fn(&str) -> String);

/// Returns the number at a pointer; `None` if the report has none.
pub(super) fn cell(
    run: &PageRun<'_>,
    pointer: &str,
    format_value: fn(f64) -> String,
) -> Option<FigureCell> {
    let value = run.value.pointer(pointer)?;
    let text = format_value(value.as_f64()?);
    Some(FigureCell {
        letter: run.letter,
        pointer: pointer.to_owned(),
        value: value.to_string(),
        text,
    })
}

/// Returns the numbers at the top of the page. Those that no report has are left out.
pub(super) fn headline(runs: &[PageRun<'_>]) -> Vec<HeadlineFigure> {
    let figure = |(name, pointer, shown): (&'static str, &str, fn(f64) -> String)| {
        let number =
            |run: &PageRun<'_>| run.value.pointer(pointer).and_then(serde_json::Value::as_f64);
        let numbers: Vec<f64> = runs.iter().filter_map(number).collect();
        let ratio = match numbers[..] {
            [first, second] if first > 0.0 => Some(format!("{:.2}", second / first)),
            _ => None,
        };
        let cells: Vec<FigureCell> =
            runs.iter().filter_map(|run| cell(run, pointer, shown)).collect();
        (!cells.is_empty()).then_some(HeadlineFigure { name, cells, ratio })
    };
    type Shown = fn(f64) -> String;
    let all: [(&'static str, &str, Shown); 6] = [
        ("decode, tokens/s", "/decode_tokens_per_s", format_number),
        ("prefill, tokens/s", "/prefill_tokens_per_s", format_number),
        ("median time between tokens", "/decode_step/median_s", format_seconds),
        ("total time", "/total_s", format_seconds),
        ("load time", "/load_s", format_seconds),
        ("peak memory", "/peak_pss_bytes/sum", format_bytes),
    ];
    all.into_iter().filter_map(figure).collect()
}

/// Returns the sections with bars. Those for which the reports have no numbers are left out.
pub(super) fn sections(runs: &[PageRun<'_>]) -> Vec<BarSection> {
    let all = times(runs).into_iter().chain(memory(runs));
    all.filter(|section| !section.rows.is_empty()).collect()
}

/// Returns the names of the fields at a pointer, in the order of the first report that has them.
fn keys(runs: &[PageRun<'_>], pointer: &str) -> Vec<String> {
    let mut keys: Vec<String> = Vec::new();
    let objects = runs.iter().filter_map(|run| run.value.pointer(pointer)?.as_object());
    for key in objects.flat_map(|object| object.keys()) {
        if !keys.contains(key) {
            keys.push(key.clone());
        }
    }
    keys
}

/// Returns the sections about phases and lanes.
fn times(runs: &[PageRun<'_>]) -> [BarSection; 3] {
    let phases = ["prefill", "decode"].map(str::to_owned);
    let predicted: &[BarKind<'_>] = &[
        ("predicted", &|name| format!("/predicted/{name}_s")),
        ("measured", &|name| format!("/{name}_s")),
    ];
    let simulated: &[BarKind<'_>] = &[
        ("simulated", &|lane| format!("/replayed/lanes/{lane}/simulated_busy_s")),
        ("measured", &|lane| format!("/replayed/lanes/{lane}/measured_busy_s")),
    ];
    let busy: &[BarKind<'_>] = &[("measured", &|lane| format!("/lanes/{lane}/busy_s"))];
    [
        BarSection {
            id: "phases",
            title: "Predicted and measured",
            note: "Prediction of the simulator before the workers started, if this machine was \
                   measured. It assumes the maximum number of steps, and prompts that start \
                   together.",
            rows: rows(runs, &phases, format_seconds, predicted),
        },
        BarSection {
            id: "replay",
            title: "Lanes: simulated and measured",
            note: "Busy time in the second half of the last decode steps, as measured, and as \
                   simulated with each instruction's median cost in the first half.",
            rows: rows(runs, &keys(runs, "/replayed/lanes"), format_seconds, simulated),
        },
        BarSection {
            id: "lanes",
            title: "Lanes: the whole run",
            note: "Busy time of each lane.",
            rows: rows(runs, &keys(runs, "/lanes"), format_seconds, busy),
        },
    ]
}

/// Returns the sections about planned and used memory.
fn memory(runs: &[PageRun<'_>]) -> [BarSection; 2] {
    let planned: &[BarKind<'_>] = &[("planned", &|name| format!("/budget_bytes/{name}"))];
    let used: &[BarKind<'_>] = &[
        ("loading", &|name| format!("/load_peak_pss_bytes/{name}")),
        ("running", &|name| format!("/peak_pss_bytes/{name}")),
    ];
    [
        BarSection {
            id: "budget",
            title: "Memory: planned",
            note: "Memory that the plan reserved before anything was loaded.",
            rows: rows(runs, &keys(runs, "/budget_bytes"), format_bytes, planned),
        },
        BarSection {
            id: "memory",
            title: "Memory: used",
            note: "Peak proportional set size (PSS) of each process and of all together, while \
                   loading and while running.",
            rows: rows(runs, &keys(runs, "/peak_pss_bytes"), format_bytes, used),
        },
    ]
}

/// Returns a row for each name, with a bar for each kind and run. Rows without bars are left out.
fn rows(
    runs: &[PageRun<'_>],
    names: &[String],
    format_value: fn(f64) -> String,
    kinds: &[BarKind<'_>],
) -> Vec<BarRow> {
    let row = |name: &String| {
        let key = name.replace('~', "~0").replace('/', "~1");
        let bars = kinds.iter().flat_map(|(kind, pointer)| {
            let pointer = pointer(&key);
            runs.iter().filter_map(move |run| {
                let cell = cell(run, &pointer, format_value)?;
                Some(FigureBar { kind, letter: run.letter, width: 0.0, cell })
            })
        });
        BarRow { name: name.clone(), bars: bars.collect() }
    };
    let mut rows: Vec<BarRow> = names.iter().map(row).filter(|row| !row.bars.is_empty()).collect();
    let number = |bar: &FigureBar| bar.cell.value.parse::<f64>().unwrap_or(0.0);
    let longest = rows.iter().flat_map(|row| &row.bars).map(number).fold(0.0, f64::max);
    for bar in rows.iter_mut().flat_map(|row| &mut row.bars) {
        bar.width = if longest > 0.0 { 100.0 * number(bar) / longest } else { 0.0 };
    }
    rows
}

/// Formats a number with three digits, or more if its integer part has more.
pub(super) fn format_number(value: f64) -> String {
    let decimals = match value.abs() {
        large if large >= 100.0 => 0,
        middle if middle >= 10.0 => 1,
        _ => 2,
    };
    format!("{value:.decimals$}")
}

/// Formats seconds in a suitable unit.
pub(super) fn format_seconds(value: f64) -> String {
    match value.abs() {
        0.0 => "0 s".to_owned(),
        long if long >= 1.0 => format!("{} s", format_number(value)),
        middle if middle >= 1e-3 => format!("{} ms", format_number(value * 1e3)),
        _ => format!("{} µs", format_number(value * 1e6)),
    }
}

/// Formats bytes in a suitable unit.
pub(super) fn format_bytes(value: f64) -> String {
    let units = [(f64::from(1 << 30), "GiB"), (f64::from(1 << 20), "MiB"), (1024.0, "KiB")];
    match units.into_iter().find(|(size, _)| value >= *size) {
        Some((size, unit)) => format!("{} {unit}", format_number(value / size)),
        None => format!("{value:.0} bytes"),
    }
}
