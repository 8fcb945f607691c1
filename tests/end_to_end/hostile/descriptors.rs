//! Test of a server whose connections use up all file descriptors available to them.

use std::net::TcpStream;
use std::process::Command;
use std::time::{Duration, Instant};

use rustix::process::{Pid, Signal, kill_process};
use serde_json::{Value, json};

use crate::command::{WATCHDOG, coordinator, fixture};
use crate::serve::{Served, workers_of_any};

#[test]
fn workers_are_replaced_though_idle_connections_take_what_there_is() {
    let binary = coordinator();
    let mut limited = Command::new("sh");
    limited.args(["-c", "ulimit -n 256 && exec \"$0\" \"$@\""]).arg(binary.get_program());
    let model = fixture("llama").to_string_lossy().into_owned();
    let served = Served::by(limited, &["--model", &model, "--slots", "2"]);
    let body = json!({"prompt": [5, 6, 7], "max_tokens": 4, "seed": 1});
    let ask = || {
        let (status, reply) = served.post("/v1/completions", &body);
        assert_eq!(status, 200, "{reply}");
        let mut answer: Value = serde_json::from_str(&reply).expect("JSON");
        answer["choices"].take()
    };
    let expected = ask();
    let address = served.address().parse().expect("an address");
    // Connections that are not accepted wait in the system's queue until it is full. It holds at
    // least 128, so with more the server has accepted as many as it can.
    let connect = |_| TcpStream::connect_timeout(&address, Duration::from_millis(500)).ok();
    let idle: Vec<TcpStream> = (0..400).map_while(connect).collect();
    assert!(idle.len() > 128, "{} connections", idle.len());
    std::thread::sleep(Duration::from_millis(200));
    for round in 0..3 {
        let workers = workers_of_any(served.id());
        let (lost, _) = workers[0];
        let pid = Pid::from_raw(lost.cast_signed()).expect("a process id");
        kill_process(pid, Signal::KILL).expect("it runs");
        let until = Instant::now() + WATCHDOG;
        let is_replaced = || {
            let now = workers_of_any(served.id());
            !now.is_empty() && now.iter().all(|(pid, _)| *pid != lost)
        };
        while !is_replaced() {
            assert!(Instant::now() < until, "round {round}: it is not replaced");
            std::thread::sleep(Duration::from_millis(5));
        }
    }
    drop(idle);
    assert_eq!(ask(), expected);
    assert!(!served.end().contains("the server ends"));
}
