//! A page has the figures of its report, and loads nothing from any host.

use serde_json::Value;

use super::figures::{format_bytes, format_number, format_seconds};
use super::render;
use crate::file::{
    LayerSpan, LayerTimes, ReplayLaneReport, ReplayLayersReport, ReplayReport, Report,
};

const FORMATS: &str = include_str!("../../../docs/formats.md");

/// Returns the report of the documentation, with the parts that only runs of some length have.
fn report() -> Report {
    let example =
        FORMATS.split("```json report\n").nth(1).and_then(|rest| rest.split("```").next());
    let mut report: Report = serde_json::from_str(example.expect("an example")).expect("a report");
    let steps = report.decode_step.as_mut().expect("steps");
    steps.quantiles_s = (0..21).map(|place| 0.14 + f64::from(place) * 0.002).collect();
    let span = |lane: &str, layer, start_s, end_s| LayerSpan {
        lane: lane.to_owned(),
        op: "fc0".to_owned(),
        layer: Some(layer),
        batch: 0,
        start_s,
        end_s,
    };
    let times = |length_s: f64| LayerTimes {
        length_s,
        spans: vec![
            span("cpu.compute", 4, 0.0, 0.6 * length_s),
            span("h2d.weights", 5, 0.1, length_s),
        ],
    };
    let lane = ReplayLaneReport { simulated_busy_s: 0.61, measured_busy_s: 0.66 };
    let replayed = report.replayed.take().expect("replayed");
    report.replayed = Some(ReplayReport {
        lanes: [("cpu.compute".to_owned(), lane)].into(),
        layers: Some(ReplayLayersReport { simulated: times(0.2), measured: times(0.25) }),
        ..replayed
    });
    report.note = Some("A note with <angles> & more.".to_owned());
    report
}

/// Returns report, pointer, exact value and text of each figure of a page.
fn figures(page: &str) -> Vec<[&str; 4]> {
    page.split("<data ")
        .skip(1)
        .map(|rest| {
            let attribute = |name: &str| {
                let from = rest.split(&format!("{name}=\"")).nth(1).expect("an attribute");
                from.split('"').next().expect("its end")
            };
            let text = rest.split('>').nth(1).and_then(|rest| rest.split('<').next());
            [
                attribute("data-report"),
                attribute("data-of"),
                attribute("value"),
                text.expect("text"),
            ]
        })
        .collect()
}

/// Parses a text with a unit.
fn parse_text(text: &str) -> f64 {
    let (number, unit) = text.split_once(' ').unwrap_or((text, ""));
    let scale = match unit {
        "ms" => 1e-3,
        "µs" => 1e-6,
        "KiB" => 1024.0,
        "MiB" => f64::from(1 << 20),
        "GiB" => f64::from(1 << 30),
        _ => 1.0,
    };
    number.parse::<f64>().expect("a number") * scale
}

#[test]
fn figures_are_the_reports() {
    let (first, mut second) = (report(), report());
    second.decode_s *= 2.0;
    second.decode_tokens_per_s = second.decode_tokens_per_s.map(|rate| rate / 2.0);
    let page = render(&first, Some(&second)).expect("a page");
    let values = [&first, &second].map(|report| serde_json::to_value(report).expect("JSON"));
    let found = figures(&page);
    for [letter, pointer, value, text] in &found {
        let report = &values[usize::from(*letter == "b")];
        // Of the characters in these values, attributes only escape slashes.
        let pointer = pointer.replace("&#x2f;", "/");
        let number = report.pointer(&pointer).unwrap_or_else(|| panic!("{pointer} is nowhere"));
        assert_eq!(number.to_string(), *value, "{letter} {pointer}");
        let exact = number.as_f64().expect("a number");
        let shown = parse_text(text);
        assert!(
            (shown - exact).abs() <= 0.006 * exact.abs() + 1e-12,
            "{pointer}: {text} of {exact}"
        );
    }
    let has = |letter: &str, wanted: &str| {
        found
            .iter()
            .any(|[at, pointer, ..]| *at == letter && pointer.replace("&#x2f;", "/") == wanted)
    };
    for letter in ["a", "b"] {
        for pointer in [
            "/decode_tokens_per_s",
            "/prefill_s",
            "/predicted/prefill_s",
            "/predicted/decode_s",
            "/decode_step/p95_s",
            "/replayed/lanes/cpu.compute/simulated_busy_s",
            "/replayed/layers/measured/length_s",
            "/budget_bytes/weights",
        ] {
            assert!(has(letter, pointer), "{letter} {pointer}");
        }
        for (name, keys) in
            [("lanes", "busy_s"), ("peak_pss_bytes", ""), ("load_peak_pss_bytes", "")]
        {
            for key in values[0][name].as_object().expect("an object").keys() {
                let pointer = format!("/{name}/{key}");
                let pointer = if keys.is_empty() { pointer } else { format!("{pointer}/{keys}") };
                assert!(has(letter, &pointer), "{letter} {pointer}");
            }
        }
    }
    assert!(page.contains("B/A 0.50"), "twice as long");
}

#[test]
fn a_page_is_whole_by_itself() {
    for page in [render(&report(), None), render(&report(), Some(&report()))] {
        let page = page.expect("a page");
        assert!(page.len() < 1 << 20, "{} bytes", page.len());
        for part in ["http:", "https:", "src=", "@import", "url(", "<script", "<link rel=\"style"] {
            assert!(!page.contains(part), "{part}");
        }
        assert!(page.contains("A note with &lt;angles&gt; &amp; more."));
        for section in
            ["plan", "phases", "replay", "lanes", "budget", "memory", "timeline", "tokens"]
        {
            assert!(page.contains(&format!("<h2 id=\"{section}\">")), "{section}");
        }
    }
}

#[test]
fn what_a_report_has_not_is_left_out() {
    let mut bare = report();
    (bare.predicted, bare.replayed, bare.decode_step) = (None, None, None);
    let page = render(&bare, None).expect("a page");
    for section in ["replay", "timeline", "tokens"] {
        assert!(!page.contains(&format!("<h2 id=\"{section}\">")), "{section}");
    }
    let value = serde_json::to_value(&bare).expect("JSON");
    assert!(figures(&page).iter().all(|[_, pointer, ..]| {
        value.pointer(&pointer.replace("&#x2f;", "/")).is_some_and(Value::is_number)
    }));
}

#[test]
fn numbers_have_three_digits_and_a_unit() {
    assert_eq!([0.0, 1.234, 12.34, 1234.5].map(format_number), ["0.00", "1.23", "12.3", "1234"]);
    assert_eq!(
        [0.0, 2.5, 0.0123, 4.2e-5].map(format_seconds),
        ["0 s", "2.50 s", "12.3 ms", "42.0 µs"]
    );
    let shown = [0.0, 512.0, 4096.0, 3.5e6, 5e9].map(format_bytes);
    assert_eq!(shown, ["0 bytes", "512 bytes", "4.00 KiB", "3.34 MiB", "4.66 GiB"]);
}
