//! Rows of the table, JSON lines, and the goals for the means.

use crate::cases::{Case, Work};
use crate::peaks::{Peaks, median};

/// Shares of the roofline that a bf16 linear of OPT-30B must and should reach: rows, must, goal.
const LINEAR_GOALS: [(usize, f64, f64); 8] = [
    (1, 0.88, 0.93),
    (4, 0.78, 0.90),
    (16, 0.72, 0.85),
    (25, 0.70, 0.80),
    (50, 0.78, 0.87),
    (60, 0.78, 0.87),
    (100, 0.80, 0.90),
    (240, 0.80, 0.90),
];
/// Speed-ups of the 4-bit linear over the bf16 linear that it must and should reach: rows, must,
/// goal.
const COMPRESSED_GOALS: [(usize, f64, f64); 8] = [
    (1, 2.6, 3.2),
    (4, 2.0, 2.0),
    (16, 0.9, 1.1),
    (25, 0.9, 1.1),
    (50, 0.9, 1.1),
    (60, 0.9, 1.1),
    (100, 0.9, 1.1),
    (240, 0.9, 1.1),
];
/// Share of DRAM read speed that decode attention must reach.
const DECODE_GOAL: f64 = 0.90;
/// Shares of the peak of bf16 products that prefill attention over bf16 caches must and should
/// reach.
const PREFILL_GOALS: (f64, f64) = (0.50, 0.65);
/// Fraction of the speed at equal lengths that must be reached with different lengths.
const RAGGED_GOAL: f64 = 0.95;
/// Minimum speed-up of decode attention over 4-bit caches relative to bf16 at 8192 positions.
const CACHE_GOAL: f64 = 2.5;

/// The kept samples of one case.
#[derive(Debug)]
pub struct Row {
    pub case: Case,
    pub bytes: f64,
    pub flops: f64,
    /// Seconds of one call, and the peaks of the machine at that moment.
    pub samples: Vec<(f64, Peaks)>,
    /// Time of bf16 over that of this case, one for each sample; empty for bf16 cases.
    pub ratios: Vec<f64>,
    /// Reasons why samples were discarded.
    pub discarded: Vec<&'static str>,
}

impl Row {
    pub fn new(case: Case, bytes: f64, flops: f64) -> Row {
        Row { case, bytes, flops, samples: Vec::new(), ratios: Vec::new(), discarded: Vec::new() }
    }

    /// Returns the speed-up over bf16; NaN for bf16 cases.
    pub fn over_plain(&self) -> f64 {
        median(self.ratios.iter().copied())
    }

    pub fn seconds(&self) -> f64 {
        median(self.samples.iter().map(|sample| sample.0))
    }

    /// Returns the minimum time that memory and arithmetic allow, over the time taken.
    pub fn share(&self) -> f64 {
        median(self.shares())
    }

    fn shares(&self) -> impl Iterator<Item = f64> {
        self.samples.iter().map(|(seconds, peaks)| {
            (self.bytes / peaks.dram_bytes_per_s).max(self.flops / peaks.flops_per_s) / seconds
        })
    }

    pub fn dram_gb_per_s(&self) -> f64 {
        median(self.samples.iter().map(|sample| sample.1.dram_bytes_per_s)) / 1e9
    }

    pub fn peak_gflop_per_s(&self) -> f64 {
        median(self.samples.iter().map(|sample| sample.1.flops_per_s)) / 1e9
    }

    pub fn spin_ns(&self) -> Option<f64> {
        let spins: Option<Vec<f64>> = self.samples.iter().map(|sample| sample.1.spin_ns).collect();
        spins.map(|spins| median(spins.into_iter()))
    }

    fn share_range(&self) -> (f64, f64) {
        self.shares().fold((f64::INFINITY, 0.0), |(low, high), x| (low.min(x), high.max(x)))
    }

    pub fn print_header() {
        println!(
            "{:52} {:>10} {:>9} {:>7} {:>6} {:>13} {:>6} {:>6} {:>5} {:>4} {:>6}",
            "",
            "us",
            "GFLOP/s",
            "GB/s",
            "share",
            "min..max",
            "DRAM",
            "peak",
            "spin",
            "bad",
            "/bf16"
        );
    }

    pub fn print(&self) {
        if self.samples.is_empty() {
            let last = self.discarded.last().copied().unwrap_or_default();
            let count = self.discarded.len();
            println!(
                "{:52} all {count} samples were discarded; of the last: {last}",
                self.case.name()
            );
            return;
        }
        let seconds = self.seconds();
        let (low, high) = self.share_range();
        let spin = self.spin_ns().map_or_else(|| "-".to_owned(), |ns| format!("{ns:.0}"));
        println!(
            "{:52} {:>10.1} {:>9.1} {:>7.2} {:>6.3} {:>6.2}..{:<5.2} {:>6.1} {:>6.0} {:>5} {:>4} {:>6}",
            self.case.name(),
            seconds * 1e6,
            self.flops / seconds / 1e9,
            self.bytes / seconds / 1e9,
            self.share(),
            low,
            high,
            self.dram_gb_per_s(),
            self.peak_gflop_per_s(),
            spin,
            self.discarded.len(),
            if self.ratios.is_empty() {
                "-".to_owned()
            } else {
                format!("{:.2}", self.over_plain())
            }
        );
    }

    /// Returns, for a case with different lengths, that of equal ones with the same heads and the
    /// nearest bytes.
    fn uniform_twin<'a>(&self, rows: &'a [Row]) -> Option<&'a Row> {
        let heads_of = |row: &Row| match row.case.work {
            Work::Decode { heads, kv_heads, head_dim, first, last, .. } => {
                Some(((heads, kv_heads, head_dim), first == last))
            }
            Work::Linear { .. } | Work::Prefill { .. } => None,
        };
        let (heads, is_uniform) = heads_of(self)?;
        let distance = |row: &&Row| (row.bytes - self.bytes).abs();
        let twins = rows.iter().filter(|row| {
            row.ratios.is_empty() && !row.samples.is_empty() && heads_of(row) == Some((heads, true))
        });
        if is_uniform { None } else { twins.min_by(|a, b| distance(a).total_cmp(&distance(b))) }
    }

    /// Returns one line, in which every value is a number, a string or null.
    pub fn json(&self, variant: &str, threads: usize) -> String {
        let (low, high) = self.share_range();
        let seconds = self.seconds();
        let work = match self.case.work {
            Work::Linear { n, k, rows } => {
                format!(r#""kind":"linear","n":{n},"k":{k},"rows":{rows}"#)
            }
            Work::Decode { heads, kv_heads, head_dim, sequences, first, last } => format!(
                r#""kind":"decode","heads":{heads},"kv_heads":{kv_heads},"head_dim":{head_dim},"rows":{sequences},"cached_min":{first},"cached_max":{last}"#
            ),
            Work::Prefill { heads, kv_heads, head_dim, rows, past } => {
                let heads =
                    format!(r#""heads":{heads},"kv_heads":{kv_heads},"head_dim":{head_dim}"#);
                let cached = format!(r#""cached_min":{past},"cached_max":{past}"#);
                format!(r#""kind":"prefill",{heads},"rows":{rows},{cached}"#)
            }
        };
        let spin = self.spin_ns().map_or_else(|| "null".to_owned(), |ns| format!("{ns:.1}"));
        let over = self.over_plain();
        let over = if over.is_nan() { "null".to_owned() } else { format!("{over:.3}") };
        format!(
            r#"{{"case":"{}",{work},"model":"{}","format":"{}","variant":"{variant}","threads":{threads},"time_us":{:.3},"gflop_per_s":{:.2},"gb_per_s":{:.3},"share":{:.4},"share_min":{low:.4},"share_max":{high:.4},"dram_gb_per_s":{:.2},"peak_gflop_per_s":{:.1},"spin_ns":{spin},"samples":{},"discarded":{},"over_bf16":{over}}}"#,
            self.case.name(),
            self.case.model,
            self.case.format.name(),
            seconds * 1e6,
            self.flops / seconds / 1e9,
            self.bytes / seconds / 1e9,
            self.share(),
            self.dram_gb_per_s(),
            self.peak_gflop_per_s(),
            self.samples.len(),
            self.discarded.len()
        )
    }
}

/// Prints the results of the rows next to their goals.
pub fn print_goals(rows: &[Row]) {
    println!("\n{:52} {:>6} {:>6} {:>6}", "share of the roofline", "", "least", "goal");
    for (batch, must, goal) in LINEAR_GOALS {
        let shares: Vec<f64> = rows
            .iter()
            .filter(|row| row.case.model == "opt-30b" && row.case.format.name() == "bf16")
            .filter(|row| matches!(row.case.work, Work::Linear { rows, .. } if rows == batch))
            .map(Row::share)
            .collect();
        if !shares.is_empty() {
            let mean = shares.iter().sum::<f64>() / shares.len() as f64;
            let name = format!("bf16 linear, {batch} rows, mean of {} shapes", shares.len());
            println!("{name:52} {mean:>6.3} {must:>6.2} {goal:>6.2} {}", verdict(mean, must, goal));
        }
    }
    for (batch, must, goal) in COMPRESSED_GOALS {
        let ratios: Vec<f64> = rows
            .iter()
            .filter(|row| !row.ratios.is_empty())
            .filter(|row| matches!(row.case.work, Work::Linear { rows, .. } if rows == batch))
            .map(Row::over_plain)
            .collect();
        if !ratios.is_empty() {
            let mean = ratios.iter().sum::<f64>() / ratios.len() as f64;
            let name = format!("w4 linear over bf16, {batch} rows, mean of {}", ratios.len());
            println!("{name:52} {mean:>6.2} {must:>6.2} {goal:>6.2} {}", verdict(mean, must, goal));
        }
    }
    for row in rows {
        // A case that fits in the processor's cache does not measure memory.
        let of_memory = row.case.model != "smollm2" && row.ratios.is_empty();
        if matches!(row.case.work, Work::Decode { .. }) && of_memory {
            let (name, value, must) = match row.uniform_twin(rows) {
                None => (row.case.name(), row.share(), DECODE_GOAL),
                Some(twin) => {
                    let name = format!("{}, over uniform", row.case.name());
                    (name, row.share() / twin.share(), RAGGED_GOAL)
                }
            };
            println!("{name:52} {value:>6.3} {must:>6.2} {:>6} {}", "", verdict(value, must, must));
        }
        if let (Work::Prefill { .. }, true) = (row.case.work, row.ratios.is_empty()) {
            let (share, (must, goal)) = (row.share(), PREFILL_GOALS);
            let name = row.case.name();
            println!(
                "{name:52} {share:>6.3} {must:>6.2} {goal:>6.2} {}",
                verdict(share, must, goal)
            );
        }
        if let (Work::Decode { last: 8192, .. }, false) = (row.case.work, row.ratios.is_empty()) {
            let (over, must) = (row.over_plain(), CACHE_GOAL);
            let name = format!("{}, over bf16", row.case.name());
            println!("{name:52} {over:>6.2} {must:>6.2} {:>6} {}", "", verdict(over, must, must));
        }
    }
}

fn verdict(value: f64, must: f64, goal: f64) -> &'static str {
    if value >= goal {
        "met"
    } else if value >= must {
        "met, goal missed"
    } else {
        "MISSED"
    }
}
