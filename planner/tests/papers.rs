//! `docs/papers.md` is what `make papers` writes.

#[path = "../examples/papers/answer.rs"]
mod answer;
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

#[test]
fn the_document_is_what_the_planner_says() {
    let path = format!("{}/../docs/papers.md", env!("CARGO_MANIFEST_DIR"));
    let document = std::fs::read_to_string(path).expect("docs/papers.md can be read");
    let serving: Vec<_> = serving::cells::FILES
        .into_iter()
        .map(|file| serving::cells::read(file).expect("a valid file"))
        .collect();
    let serving = serving::markdown::render(&serving).expect("runs that can be");
    let rendered = markdown::render(&papers()) + &serving;
    for (index, (ours, theirs)) in rendered.lines().zip(document.lines()).enumerate() {
        assert_eq!(ours, theirs, "docs/papers.md:{}: run `make papers`", index + 1);
    }
    assert_eq!(rendered.lines().count(), document.lines().count(), "run `make papers`");
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
