//! The list of cases in `kernels/cases.txt`, which are measured here and checked in
//! `tests/cases.rs`.

/// Text of the list.
pub const LIST: &str = include_str!("../../cases.txt");

/// Format of weights or caches in memory.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Format {
    Bf16,
    F32,
    /// Weights of 4 bits in groups of 64; activations are bf16.
    W4,
    /// Caches of 4 bits; activations are bf16.
    Kv4,
}

impl Format {
    pub const fn name(self) -> &'static str {
        match self {
            Format::Bf16 => "bf16",
            Format::F32 => "f32",
            Format::W4 => "w4",
            Format::Kv4 => "kv4",
        }
    }
}

/// An operation to measure.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Work {
    Linear {
        n: usize,
        k: usize,
        rows: usize,
    },
    /// One new row for each of `sequences` after `first..=last` cached positions, evenly spaced.
    Decode {
        heads: usize,
        kv_heads: usize,
        head_dim: usize,
        sequences: usize,
        first: usize,
        last: usize,
    },
    /// `rows` rows of one prompt after `past` cached positions.
    Prefill {
        heads: usize,
        kv_heads: usize,
        head_dim: usize,
        rows: usize,
        past: usize,
    },
}

#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Case {
    pub model: String,
    pub format: Format,
    pub work: Work,
}

impl Case {
    /// Returns the unique name of the case, e.g. `linear bf16 opt-30b 7168x7168 rows 25`.
    pub fn name(&self) -> String {
        let (model, format) = (&self.model, self.format.name());
        match self.work {
            Work::Linear { n, k, rows } => format!("linear {format} {model} {n}x{k} rows {rows}"),
            Work::Decode { heads, kv_heads, head_dim, sequences, first, last } => {
                let cached =
                    if first == last { format!("{last}") } else { format!("{first}..{last}") };
                format!(
                    "decode {format} {model} {heads}/{kv_heads} heads of {head_dim}, {sequences} after {cached}"
                )
            }
            Work::Prefill { heads, kv_heads, head_dim, rows, past } => format!(
                "prefill {format} {model} {heads}/{kv_heads} x {head_dim}, {rows} after {past}"
            ),
        }
    }

    /// Returns the cached positions of every sequence; empty for a linear.
    pub fn cached(&self) -> Vec<usize> {
        let (sequences, first, last) = match self.work {
            Work::Linear { .. } => return Vec::new(),
            Work::Decode { sequences, first, last, .. } => (sequences, first, last),
            Work::Prefill { past, .. } => (1, past, past),
        };
        let steps = (sequences - 1).max(1);
        (0..sequences).map(|index| first + (last - first) * index / steps).collect()
    }
}

/// Returns the cases of one line; none for a comment.
///
/// # Errors
/// If the line has none of the formats above; the text names the line.
pub fn parse_line(line: &str) -> Result<Vec<Case>, String> {
    let line = line.split('#').next().unwrap_or_default();
    let words: Vec<&str> = line.split_whitespace().collect();
    let wrong = || format!("`{line}` is not a case; kernels/cases.txt shows the forms.");
    let [kind, format, model, numbers @ ..] = &words[..] else {
        return if words.is_empty() { Ok(Vec::new()) } else { Err(wrong()) };
    };
    let format = match (*kind, *format) {
        (_, "bf16") => Format::Bf16,
        (_, "f32") => Format::F32,
        ("linear", "w4") => Format::W4,
        ("decode" | "prefill", "kv4") => Format::Kv4,
        _ => return Err(wrong()),
    };
    let number = |text: &str| text.parse::<usize>().ok().filter(|&n| n > 0).ok_or_else(wrong);
    let works = match (*kind, numbers) {
        ("linear", [n, k, rows]) => rows
            .split(',')
            .map(|rows| Ok(Work::Linear { n: number(n)?, k: number(k)?, rows: number(rows)? }))
            .collect::<Result<Vec<_>, String>>()?,
        ("decode", [heads, kv_heads, head_dim, sequences, cached]) => {
            let (first, last) = cached.split_once("..").unwrap_or((cached, cached));
            let (first, last) = (number(first)?, number(last)?);
            if last < first {
                return Err(wrong());
            }
            vec![Work::Decode {
                heads: number(heads)?,
                kv_heads: number(kv_heads)?,
                head_dim: number(head_dim)?,
                sequences: number(sequences)?,
                first,
                last,
            }]
        }
        ("prefill", [heads, kv_heads, head_dim, rows, pasts]) => pasts
            .split(',')
            .map(|past| {
                Ok(Work::Prefill {
                    heads: number(heads)?,
                    kv_heads: number(kv_heads)?,
                    head_dim: number(head_dim)?,
                    rows: number(rows)?,
                    past: number(past)?,
                })
            })
            .collect::<Result<Vec<_>, String>>()?,
        _ => return Err(wrong()),
    };
    Ok(works.into_iter().map(|work| Case { model: (*model).to_owned(), format, work }).collect())
}

/// Returns all cases of a list, in its order.
///
/// # Errors
/// The error of the first line that is not a case.
pub fn parse(list: &str) -> Result<Vec<Case>, String> {
    let lines: Result<Vec<_>, _> = list.lines().map(parse_line).collect();
    Ok(lines?.into_iter().flatten().collect())
}
