//! Tests of a run's report as an HTML page, as a browser shows it.

use std::path::Path;
use std::process::{Command, Stdio};

use serde_json::Value;

use crate::command::{Place, coordinator, finish, text};

/// Browsers that can take a screenshot in headless mode.
const BROWSERS: [&str; 4] = ["chromium", "chromium-browser", "google-chrome", "chrome"];

/// Runs on the emulated device, split, with enough steps to be simulated again; returns the report.
fn reported(place: &Place, name: &str, batches: &str) -> std::path::PathBuf {
    let report = place.path(name);
    let mut command = coordinator();
    command.args(["--model", "smollm2-135m", "--dummy-weights", "--layers", "3"]);
    command.args(["--device", "emulated", "--split", "scores:norm1", "--quiet"]);
    command.args(["--batches", batches, "--prompt-len", "16", "--gen-len", "24"]);
    let done = finish(
        command.arg("--report").arg(&report).stderr(Stdio::piped()).spawn().expect("starts"),
    );
    assert!(done.status.success(), "{}", text(&done.stderr));
    report
}

fn page(place: &Place, arguments: &[&Path]) -> std::process::Output {
    let mut command = coordinator();
    command.arg("report").arg(arguments[0]);
    if let Some(beside) = arguments.get(1) {
        command.arg("--compare").arg(beside);
    }
    command.arg("--html").arg(place.path("page.html")).stderr(Stdio::piped());
    finish(command.spawn().expect("starts"))
}

fn browser() -> Option<&'static str> {
    BROWSERS.into_iter().find(|name| {
        let mut command = Command::new(name);
        command.arg("--version").stdout(Stdio::null()).stderr(Stdio::null());
        command.status().is_ok_and(|status| status.success())
    })
}

/// Returns the DOM of the page in a browser, and a screenshot.
fn shown(place: &Place, browser: &str) -> (String, Vec<u8>) {
    let (profile, picture) = (place.path("profile"), place.path("page.png"));
    let run = |what: &str| {
        let mut command = Command::new(browser);
        command.args(["--headless", "--no-sandbox", "--disable-gpu", "--hide-scrollbars"]);
        command.args(["--disable-dev-shm-usage", "--window-size=1100,2400"]);
        command.arg(format!("--user-data-dir={}", profile.display())).arg(what);
        command.arg(format!("file://{}", place.path("page.html").display()));
        let child =
            command.stdin(Stdio::null()).stdout(Stdio::piped()).stderr(Stdio::piped()).spawn();
        let done = finish(child.expect("it starts"));
        assert!(done.status.success(), "{what}: {}", text(&done.stderr));
        text(&done.stdout)
    };
    let dom = run("--dump-dom");
    run(&format!("--screenshot={}", picture.display()));
    (dom, std::fs::read(picture).expect("a picture"))
}

#[test]
fn a_browser_shows_the_page() {
    let place = Place::new();
    let (first, second) = (reported(&place, "a.json", "1x4"), reported(&place, "b.json", "2x2"));
    let done = page(&place, &[&first, &second]);
    assert!(done.status.success(), "{}", text(&done.stderr));
    let written = std::fs::read_to_string(place.path("page.html")).expect("a page");
    for section in ["plan", "phases", "replay", "lanes", "memory", "timeline", "tokens"] {
        // Predictions are in a report only if the machine was measured.
        let has = written.contains(&format!("<h2 id=\"{section}\">"));
        assert!(has, "{section}");
    }
    let Some(browser) = browser() else {
        println!("SKIP a_browser_shows_the_page: none of {} is there", BROWSERS.join(", "));
        return;
    };
    let (dom, picture) = shown(&place, browser);
    let count = |page: &str, part: &str| page.matches(part).count();
    for part in ["<data ", "<rect ", "<polyline ", "<h2 "] {
        assert_eq!(count(&dom, part), count(&written, part), "{part}");
    }
    let report: Value =
        serde_json::from_slice(&std::fs::read(&first).expect("a report")).expect("JSON");
    let rate = format!("value=\"{}\"", report["decode_tokens_per_s"]);
    assert!(dom.contains(&rate), "{rate} is not in the page");
    // An empty page takes a few thousand bytes.
    assert!(picture.starts_with(b"\x89PNG") && picture.len() > 20_000, "{} bytes", picture.len());
}

#[test]
fn what_is_no_report_is_refused() {
    let place = Place::new();
    std::fs::write(place.path("other.json"), "{\"a\": 1}").expect("writable");
    for (name, sentence) in [("other.json", "not a report of a run"), ("none.json", "none.json")] {
        let path = place.path(name);
        let done = page(&place, &[&path]);
        let said = text(&done.stderr);
        assert_eq!(done.status.code(), Some(1), "{said}");
        assert!(said.contains(sentence), "{said}");
    }
    assert!(!place.path("page.html").exists());
}
