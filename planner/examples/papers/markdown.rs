//! The document, with a table for each figure.

use std::fmt::Write as _;

use crate::cells::{Cell, Figure, Goal, Paper, Quantity, Value};
use crate::compare::{Answers, Outcome, TOLERANCE};
use crate::place::TOKENS_MAX;

/// Number of cells, by the result of their comparison.
#[derive(Debug, Clone, Copy, Default)]
struct Count {
    cells: usize,
    within: usize,
    beyond: usize,
    /// Number of cells in `beyond` without a cause.
    without_cause: usize,
}

impl Count {
    fn add(&mut self, cell: &Cell, outcome: &Outcome) {
        self.cells += 1;
        match outcome.is_within() {
            Some(true) => self.within += 1,
            Some(false) => {
                self.beyond += 1;
                self.without_cause += usize::from(cell.cause.is_empty());
            }
            None => {}
        }
    }

    fn row(&self, title: &str) -> String {
        let none = self.cells - self.within - self.beyond;
        let Count { cells, within, beyond, without_cause } = self;
        format!("| {title} | {cells} | {within} | {beyond} | {without_cause} | {none} |\n")
    }
}

/// Number of cells of a goal, and of those that reach it.
#[derive(Debug, Clone, Copy, Default)]
struct Reached {
    lines: usize,
    reached: usize,
}

/// Returns the text on the goals and the number of cells that reach them.
fn goals(figures: &[&Figure], answers: &mut Answers) -> String {
    let mut text = "Goals: ".to_owned();
    for (index, goal) in Goal::ALL.into_iter().enumerate() {
        let mut sum = Reached::default();
        let cells = figures.iter().flat_map(|figure| &figure.cells);
        for cell in cells.filter(|cell| cell.goal == Some(goal)) {
            sum.lines += 1;
            let reached = match answers.compare(cell) {
                Outcome::Number { error, .. } => error.abs() <= goal.tolerance(),
                Outcome::Vector { .. } | Outcome::None(_) => false,
            };
            sum.reached += usize::from(reached);
        }
        let Reached { lines, reached } = sum;
        let percent = goal.tolerance() * 100.0;
        let (title, end) = (goal.title(), if index == 0 { "; " } else { "." });
        let _ = write!(text, "{title}: {reached} of {lines} lines within {percent:.0}%{end}");
    }
    text
}

/// Returns the whole of `docs/papers.md`.
pub fn render(papers: &[Paper]) -> String {
    let figures: Vec<&Figure> = papers.iter().flat_map(|paper| &paper.tables).collect();
    let mut answers = Answers::of_all(figures.iter().flat_map(|figure| &figure.cells));
    let mut body = String::new();
    let mut sums = String::new();
    let mut all = Count::default();
    for paper in papers {
        let _ = write!(body, "\n## {}\n", paper.title);
        for figure in &paper.tables {
            let mut count = Count::default();
            body += &table(figure, &mut answers, |cell, outcome| {
                count.add(cell, outcome);
                all.add(cell, outcome);
            });
            sums += &count.row(&figure.title);
        }
        body += &causes(paper);
        body += "\nLeft out:\n\n";
        for line in &paper.left_out {
            let _ = writeln!(body, "- {}", one_line(line));
        }
    }
    head(&goals(&figures, &mut answers), &sums, &all.row("**all**")) + &body
}

/// Returns the text that precedes the tables.
fn head(goals: &str, sums: &str, all: &str) -> String {
    let percent = TOLERANCE * 100.0;
    format!(
        "# The papers' numbers and the planner's\n\n\
         Written by `make papers` from `planner/papers/*.toml`, which have for each cell its \
         place in the paper, the run, and what the paper leaves open. Times are predictions for \
         described machines (`planner/machines`), no measurements. Only numbers that the \
         papers' texts and tables name are here; what stands in pictures alone is not.\n\n\
         An answer is the time of the compiled programs of the placement that the policy's own \
         search finds, simulated for the described machine: a prefill, and a decode step in the \
         middle of the output. FlexGen's prompts are computed on the GPU. Where a cell has \
         residency off nothing stays in device memory and the best of what is left is taken; \
         of more than {TOKENS_MAX} prompt tokens a search looks at so many, and prefill is \
         extended along a straight line. LIA's offload vectors are those of its equations, which \
         define them. Without overlap, times are the sum of what each lane does.\n\n\
         {goals}\n\n\
         The error is the planner's value over the paper's, less 1; of a ratio (a multiple, or \
         a change in percent) the error of the ratio, so -16% beside -30% is 0.84 over 0.70. \
         Cells beyond {percent:.0}% have their cause, or are open. Where a cell is the least or \
         most of several runs, the one that it is follows the answer.\n\n\
         | | cells | within {percent:.0}% | beyond | of these without a cause | no answer |\n\
         |---|---|---|---|---|---|\n{sums}{all}"
    )
}

/// Returns the table of a figure; `on_outcome` is called with the outcome of each cell.
pub fn table(
    figure: &Figure,
    answers: &mut Answers,
    mut on_outcome: impl FnMut(&Cell, &Outcome),
) -> String {
    let mut text = format!("\n### {}\n\n", figure.title);
    if let Some(note) = &figure.note {
        let _ = writeln!(text, "{}\n", one_line(note));
    }
    text += "| cell | paper | Tandem's planner | error | cause |\n|---|---|---|---|---|\n";
    for cell in &figure.cells {
        let outcome = answers.compare(cell);
        on_outcome(cell, &outcome);
        let note = cell.note.as_ref().map(|note| format!(" ({})", one_line(note)));
        let (answer, error) = match &outcome {
            Outcome::Number { value, error, detail } => {
                let detail = if detail.is_empty() { String::new() } else { format!(" ({detail})") };
                let answer = format!("{}{detail}", number(cell, *value));
                (answer, format!("{:+.0}%", error * 100.0))
            }
            Outcome::Vector { value, same } => {
                (value.clone(), if *same { "same" } else { "differs" }.to_owned())
            }
            Outcome::None(reason) => (format!("none: {reason}"), String::new()),
        };
        let cause = match outcome.is_within() {
            Some(false) if cell.cause.is_empty() => "open".to_owned(),
            Some(false) => cell.cause.join(", "),
            _ => String::new(),
        };
        let _ = writeln!(
            text,
            "| {}{} | {} | {answer} | {error} | {cause} |",
            cell.id,
            note.unwrap_or_default(),
            printed(cell),
        );
    }
    text
}

fn causes(paper: &Paper) -> String {
    if paper.causes.is_empty() {
        return String::new();
    }
    let mut text = "\n### Causes\n\n".to_owned();
    for (name, cause) in &paper.causes {
        let _ = writeln!(text, "- **{name}**: {}", one_line(cause));
    }
    text
}

fn printed(cell: &Cell) -> String {
    match (&cell.printed, &cell.value) {
        (Some(printed), _) => printed.clone(),
        (None, Value::Number(value)) => format!("{value}x"),
        (None, Value::Vector(vector)) => vector.clone(),
    }
}

/// Formats an answer like the paper's value of the cell.
fn number(cell: &Cell, value: f64) -> String {
    let printed = printed(cell);
    if printed.contains('%') {
        let is_change = printed.contains(['+', '-']);
        return if is_change {
            format!("{:+.0}%", (value - 1.0) * 100.0)
        } else {
            format!("{:.1}%", value * 100.0)
        };
    }
    let is_count = matches!(
        cell.quantity,
        Quantity::LargestBatch | Quantity::PrefillTurn | Quantity::DecodeTurn
    );
    match cell.versus {
        Some(_) => format!("{value:.2}x"),
        None if is_count => format!("{value:.0}"),
        None if cell.quantity == Quantity::Memory => format!("{value:.0} GB"),
        None if matches!(cell.quantity, Quantity::Weights | Quantity::Kv) => {
            format!("{value:.1} GB")
        }
        None => format!("{value:.2}"),
    }
}

fn one_line(text: &str) -> String {
    text.split_whitespace().collect::<Vec<_>>().join(" ")
}
