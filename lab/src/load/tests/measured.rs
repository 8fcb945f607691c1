//! Tests of the requests that are sent, of their times, and of the results.

use std::net::SocketAddr;
use std::time::Duration;

use hyper::header::HeaderValue;

use super::fake::{Manner, serve};
use crate::load::api::Api;
use crate::load::arrivals::Rate;
use crate::load::client::Client;
use crate::load::record::RequestRecords;
use crate::load::results::LoadTestResults;
use crate::load::runner::{LoadGenError, send_requests};
use crate::load::server_url::parse_server_url;
use crate::load::slo::Slo;
use crate::load::workload::{
    PlannedRequest, WorkloadParams, WorkloadShape, warmup_request, workload,
};

/// Time limit, which exceeds the duration of any request here.
const WATCHDOG: Duration = Duration::from_secs(60);

const DRAW: WorkloadParams = WorkloadParams { rate: None, requests: 8, vocab_size: 50, seed: 1 };

fn client(address: SocketAddr, api: Api) -> Client {
    Client {
        addresses: vec![address],
        target: parse_server_url(&format!("http://{address}/v1")).expect("a URL"),
        api,
        authorization: Some(HeaderValue::from_static("Bearer key")),
        timeout: WATCHDOG,
    }
}

fn planned(draw: WorkloadParams) -> Vec<PlannedRequest> {
    workload(&WorkloadShape::Fixed { prompt_tokens: 7, answer_tokens: 5 }, draw)
}

fn measure(manner: Manner, api: Api) -> Result<RequestRecords, LoadGenError> {
    let (address, _) = serve(manner, 1);
    send_requests(client(address, api), None, None, &planned(DRAW), &|_| {}, &|| false)
}

#[test]
fn every_request_is_sent_as_planned_and_counted() {
    for (manner, api) in [(Manner::Openai, Api::Openai), (Manner::Llama, Api::Llama)] {
        let (address, received) = serve(manner, 1);
        let (planned, client) = (planned(DRAW), client(address, api));
        let first = warmup_request(&planned, DRAW);
        let records =
            send_requests(client, Some("m"), first.as_ref(), &planned, &|_| {}, &|| false)
                .expect("done");
        let figures = LoadTestResults::from_records(&records, Slo::default());
        assert_eq!((figures.completed, figures.failed, figures.short), (8, 0, 0), "{records:?}");
        assert_eq!((figures.total_input_tokens, figures.total_output_tokens), (56, 40));
        for answer in &records.answers {
            assert_eq!((answer.events.len(), answer.answer_tokens), (5, 5));
            assert!(answer.scheduled <= answer.sent && answer.sent <= answer.events[0]);
            assert!(answer.events.is_sorted() && answer.events[4] <= answer.ended);
            assert!(answer.ended <= records.duration);
        }
        let mut received: Vec<_> = received.try_iter().collect();
        assert_eq!(received.len(), 9, "one before the others");
        received.remove(0);
        let prompts: Vec<_> =
            received.iter().map(|request| request.body["prompt"].to_string()).collect();
        for request in &planned {
            let prompt = serde_json::to_string(&request.prompt).expect("JSON");
            assert!(prompts.contains(&prompt), "{prompt}");
        }
        for request in &received {
            assert_eq!(request.path, api.path());
            assert_eq!(request.authorization.as_deref(), Some("Bearer key"));
            assert_eq!(request.body["model"], "m");
        }
    }
}

#[test]
fn arrivals_wait_for_no_answer() {
    // The server answers only once the last request has arrived, so a client that waits for an
    // answer before it sends the next request would wait forever.
    let (address, received) = serve(Manner::Openai, 12);
    let draw = WorkloadParams { rate: Some(Rate::PerSecond(40.0)), requests: 12, ..DRAW };
    let planned = planned(draw);
    let client = client(address, Api::Openai);
    let records = send_requests(client, None, None, &planned, &|_| {}, &|| false).expect("done");
    assert_eq!(records.answers.len(), 12, "{records:?}");
    assert_eq!(received.try_iter().count(), 12);
    for answer in &records.answers {
        // No request is sent before its time, and all are sent before the first answer.
        assert!(answer.sent >= answer.scheduled, "{answer:?}");
        assert!(answer.events[0] >= planned[11].at, "{answer:?}");
    }
}

#[test]
fn what_is_no_answer_is_a_failure_with_a_sentence() {
    let records = measure(Manner::HalfRefused, Api::Openai).expect("others are answered");
    assert_eq!((records.answers.len(), records.failures.len()), (4, 4));
    assert!(records.failures[0].contains("429"), "{:?}", records.failures);
    assert!(records.failures[0].contains("the queue is full"), "{:?}", records.failures);
    for (manner, expected) in [(Manner::Cut, "ended before"), (Manner::ErrorWithin, "it broke")] {
        let records = measure(manner, Api::Openai).expect("measured");
        assert_eq!((records.answers.len(), records.failures.len()), (0, 8));
        assert!(records.failures[0].contains(expected), "{:?}", records.failures);
    }
    // Events in the format of another API are errors.
    let records = measure(Manner::Openai, Api::Llama).expect("measured");
    assert_eq!(records.failures.len(), 8);
}

#[test]
fn a_server_that_does_not_answer_is_not_measured() {
    let (address, _) = serve(Manner::Cut, 1);
    let planned = planned(DRAW);
    let first = warmup_request(&planned, DRAW);
    let error = send_requests(
        client(address, Api::Openai),
        None,
        first.as_ref(),
        &planned,
        &|_| {},
        &|| false,
    )
    .expect_err("no answer");
    assert!(matches!(error, LoadGenError::FirstRequest(_)), "{error}");
    let (address, _) = serve(Manner::Openai, usize::MAX);
    let error =
        send_requests(client(address, Api::Openai), None, None, &planned, &|_| {}, &|| true)
            .expect_err("an interruption");
    assert!(matches!(error, LoadGenError::Interrupted), "{error}");
    let slow = Client { timeout: Duration::from_millis(20), ..client(address, Api::Openai) };
    let records = send_requests(slow, None, None, &planned, &|_| {}, &|| false).expect("measured");
    assert_eq!(records.failures.len(), 8);
    assert!(records.failures[0].contains("no complete answer within"), "{:?}", records.failures);
}
