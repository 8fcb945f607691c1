//! `docs/papers.md` equals the output of `make papers`.

#[path = "../examples/papers/answer.rs"]
mod answer;
#[path = "../examples/papers/asc.rs"]
mod asc;
#[path = "../examples/papers/cells.rs"]
mod cells;
#[path = "../examples/papers/compare.rs"]
mod compare;
#[path = "../examples/papers/markdown.rs"]
mod markdown;
#[path = "../examples/papers/place.rs"]
mod place;
#[path = "../examples/papers/serving/mod.rs"]
mod serving;

use std::collections::BTreeSet;

fn papers() -> Vec<cells::Paper> {
    cells::FILES.into_iter().map(|file| cells::read(file).expect("a valid file")).collect()
}

/// The document has every run of serving, so the figures' values and shapes are checked with the
/// same runs. All of it takes minutes, so `make test` computes some tables and leaves the others to
/// `make fuzz`.
#[test]
fn the_document_is_what_the_planner_says() {
    let path = format!("{}/../docs/papers.md", env!("CARGO_MANIFEST_DIR"));
    let document = std::fs::read_to_string(path).expect("docs/papers.md can be read");
    if std::env::var_os("TANDEM_FUZZ_CASES").is_none() {
        return assert_some_tables(&document);
    }
    let mut runs = serving::runs::Runs::default();
    let mut rendered = markdown::render(&papers());
    rendered += &serving::markdown::render(&of_serving(), &mut runs).expect("possible runs");
    check_serving_goals(&mut runs);
    check_serving_shapes(&mut runs);
    for (index, (ours, theirs)) in rendered.lines().zip(document.lines()).enumerate() {
        assert_eq!(ours, theirs, "docs/papers.md:{}: run `make papers`", index + 1);
    }
    assert_eq!(rendered.lines().count(), document.lines().count(), "run `make papers`");
}

/// Checks every fifth table, which takes in each paper.
fn assert_some_tables(document: &str) {
    for paper in papers() {
        for figure in paper.tables.iter().step_by(5) {
            let mut answers = compare::Answers::of_all(figure.cells.iter());
            let table = markdown::table(figure, &mut answers, |_, _| {});
            assert!(document.contains(&table), "run `make papers`: docs/papers.md lacks\n{table}");
        }
    }
}

#[test]
fn every_cell_has_a_name_of_its_own_and_every_cause_a_cell() {
    for paper in papers() {
        let mut causes = BTreeSet::new();
        for figure in &paper.tables {
            let names: BTreeSet<&str> = figure.cells.iter().map(|cell| cell.id.as_str()).collect();
            assert_eq!(names.len(), figure.cells.len(), "{}", figure.id);
            causes.extend(figure.cells.iter().flat_map(|cell| &cell.cause));
        }
        let idle: Vec<&String> =
            paper.causes.keys().filter(|cause| !causes.contains(cause)).collect();
        assert!(idle.is_empty(), "{idle:?}");
    }
}

#[test]
fn a_file_with_a_mistake_is_refused_with_its_place() {
    let (name, text) = cells::FILES[1];
    let refusal = |text: &str| cells::read((name, text)).expect_err("a mistake");
    let misspelt = text.replacen("policy = \"lia\"", "polizy = \"lia\"", 1);
    assert!(refusal(&misspelt).contains("polizy"));
    let unknown = text.replacen("unbounded = true", "unbounded = true\ncause = [\"luck\"]", 1);
    assert!(refusal(&unknown).contains("luck"));
    let shapeless = text.replacen("place = \"section 7.1, fig. 9\"\n", "", 1);
    assert!(refusal(&shapeless).starts_with("lia.toml: lia fig. 9: "));
}

/// Cells of serving that miss their goal; all of them have a cause.
const BEYOND: &[(&str, &str, &[u32])] = &[
    ("fig. 10a", "g5-16xlarge", &[200, 300, 400]),
    ("fig. 7", "xeon6342x2-a10", &[500, 600, 800]),
];

fn of_serving() -> Vec<serving::cells::Paper> {
    let read = |file| serving::cells::read(file).expect("a valid file");
    serving::cells::FILES.into_iter().map(read).collect()
}

/// Checks that all cells are within their goals, except for [`BEYOND`].
fn check_serving_goals(runs: &mut serving::runs::Runs) {
    for figure in of_serving().iter().flat_map(|paper| &paper.figure) {
        for series in &figure.series {
            let mut beyond = Vec::new();
            for (output, printed) in series.cells() {
                let ratio = runs.ratio(figure, series, output).expect("a run that can be");
                if printed.compare(ratio.of(figure.by), figure.goal).1 == Some(false) {
                    beyond.push(output);
                }
            }
            let known = BEYOND.iter().find(|one| (one.0, one.1) == (&figure.id, &series.machine));
            assert_eq!(
                beyond,
                known.map_or(&[][..], |one| one.2),
                "{} {}",
                figure.id,
                series.machine
            );
            assert!(beyond.is_empty() || !series.cause.is_empty(), "{}: no cause", figure.id);
        }
    }
}

/// Checks the shapes of the figures, regardless of their values.
fn check_serving_shapes(runs: &mut serving::runs::Runs) {
    let papers = of_serving();
    let mut line = |id: &str, machine: &str| -> Vec<(u32, f64)> {
        let figure = papers.iter().flat_map(|paper| &paper.figure).find(|figure| figure.id == id);
        let figure = figure.expect("a figure");
        let series = figure.series.iter().find(|series| series.machine == machine);
        let series = series.expect("a machine");
        let of = |output: &u32| {
            let ratio = runs.ratio(figure, series, *output).expect("a run that can be");
            (*output, ratio.of(figure.by))
        };
        series.output.iter().map(of).collect()
    };
    let neo = line("fig. 10a", "g5-16xlarge");
    let peak = neo.iter().max_by(|a, b| a.1.total_cmp(&b.1)).expect("cells");
    assert!((200..=300).contains(&peak.0), "the peak of the fastest host: {neo:?}");
    let apex = line("fig. 7", "xeon6342x2-a10");
    let from_100: Vec<f64> = apex.iter().filter(|one| one.0 >= 100).map(|one| one.1).collect();
    assert!(from_100.is_sorted(), "APEX gains with the answers' length: {apex:?}");
    let [.., before, last] = from_100[..] else { panic!("{apex:?}") };
    assert!(last - before < 0.03, "and no more behind 600: {apex:?}");
}

#[test]
fn a_figure_of_serving_with_a_mistake_is_refused_with_its_place() {
    let (name, text) = serving::cells::FILES[0];
    let refusal = |text: &str| serving::cells::read((name, text)).expect_err("a mistake");
    assert!(refusal(&text.replacen("policy", "polizy", 1)).contains("polizy"));
    assert!(refusal(&text.replacen("1.04, 1.12", "1.12", 1)).contains("an output without a value"));
    let unknown = text.replacen("host_gb = 15", "host_gb = 15\ncause = [\"luck\"]", 1);
    assert!(refusal(&unknown).contains("luck"));
}
