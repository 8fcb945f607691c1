//! `coordinator device-rates --small-copies`: times of small copies while a device computes, in one
//! process and in two.

use std::io::{BufRead, BufReader, Read, Write};
use std::process::Stdio;

use anyhow::Context;
use protocol::child_process::this_program;
use serde_json::{Value, json};
use workers::device::{BusyDevice, SmallCopy, measure_small_copies};

/// Line that the second process prints once the device is busy.
const BUSY_LINE: &str = "busy";

/// Measures each size and direction on an idle device, concurrently with matrix products of this
/// process, and concurrently with those of another process.
///
/// # Errors
/// A device that this process or the second one cannot use.
pub(crate) fn measure(device: u32, matrix: u32) -> anyhow::Result<Value> {
    let idle = measure_small_copies(device)?;
    let busy = BusyDevice::start(device, matrix)?;
    let one_process = measure_small_copies(device)?;
    busy.stop()?;
    let two_processes = measure_with_second_process(device, matrix)?;
    let times =
        |copy: &SmallCopy| json!({"median_us": copy.median_s * 1e6, "slow_us": copy.p90_s * 1e6});
    let all = idle.iter().zip(&one_process).zip(&two_processes);
    let rows = all.map(|((idle, with_one), with_two)| {
        json!({
            "bytes": idle.bytes,
            "direction": if idle.to_device { "h2d" } else { "d2h" },
            "alone": times(idle),
            "one_process": times(with_one),
            "two_processes": times(with_two),
        })
    });
    Ok(json!({"small_copies": rows.collect::<Vec<Value>>()}))
}

/// Measures copies concurrently with matrix products of another process.
fn measure_with_second_process(device: u32, matrix: u32) -> anyhow::Result<Vec<SmallCopy>> {
    let mut child = this_program()
        .args(["device-rates", &device.to_string(), "--keep-busy", "--matrix", &matrix.to_string()])
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .spawn()
        .context("a second process cannot be started")?;
    let first_line = child.stdout.take().map(|output| {
        let mut line = String::new();
        // If there is no line, the process has ended, which is reported below.
        let _ = BufReader::new(output).read_line(&mut line);
        line
    });
    let is_busy = first_line.is_some_and(|line| line.trim() == BUSY_LINE);
    let measured = is_busy.then(|| measure_small_copies(device));
    // The process ends at the end of its input.
    drop(child.stdin.take());
    let status = child.wait()?;
    anyhow::ensure!(status.success(), "a second process cannot use the device");
    Ok(measured.context("a second process cannot use the device")??)
}

/// Keeps the device busy until the input ends.
///
/// # Errors
/// A device that cannot be used.
pub(crate) fn keep_busy(device: u32, matrix: u32) -> anyhow::Result<()> {
    let busy = BusyDevice::start(device, matrix)?;
    writeln!(std::io::stdout(), "{BUSY_LINE}")?;
    std::io::stdin().read_to_end(&mut Vec::new())?;
    Ok(busy.stop()?)
}
