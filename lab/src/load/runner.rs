//! Sends requests at their scheduled times, regardless of the state of other requests.

use std::io;
use std::sync::Arc;
use std::time::Duration;

use hyper::body::Bytes;
use tokio::runtime::Builder;
use tokio::task::JoinSet;
use tokio::time::{Instant, sleep, sleep_until};

use super::client::{Client, ClientError, StreamedAnswer};
use super::record::{AnswerRecord, RequestRecords};
use super::workload::PlannedRequest;

/// Interval between two checks for an interruption.
const INTERRUPT_POLL_INTERVAL: Duration = Duration::from_millis(100);

/// Reason for which a measurement failed.
#[derive(Debug, thiserror::Error)]
pub enum LoadGenError {
    #[error("the system has no more file descriptors: {0}")]
    System(io::Error),
    #[error("interrupted; nothing was measured")]
    Interrupted,
    #[error("the server did not answer the first request: {0}")]
    FirstRequest(ClientError),
}

/// Sends `first` and reads its answer, then sends all of `planned`, which are sorted by arrival, on
/// this thread. Calls `progress` with the number of requests that have ended so far.
///
/// # Errors
/// The first request fails, or `interrupted` returns true.
pub fn send_requests(
    client: Client,
    model: Option<&str>,
    first: Option<&PlannedRequest>,
    planned: &[PlannedRequest],
    progress: &dyn Fn(usize),
    interrupted: &dyn Fn() -> bool,
) -> Result<RequestRecords, LoadGenError> {
    let runtime =
        Builder::new_current_thread().enable_all().build().map_err(LoadGenError::System)?;
    let body = |request: &PlannedRequest| {
        Bytes::from(client.api.body(model, &request.prompt, request.answer_tokens))
    };
    let first = first.map(body);
    let bodies: Vec<Bytes> = planned.iter().map(body).collect();
    let client = Arc::new(client);
    let measured = async {
        if let Some(first) = first {
            client.send(first).await.map_err(LoadGenError::FirstRequest)?;
        }
        Ok(send_all(&client, planned, bodies, progress).await)
    };
    runtime.block_on(async {
        tokio::select! {
            records = measured => records,
            () = wait_for_interrupt(interrupted) => Err(LoadGenError::Interrupted),
        }
    })
}

async fn wait_for_interrupt(interrupted: &dyn Fn() -> bool) {
    while !interrupted() {
        sleep(INTERRUPT_POLL_INTERVAL).await;
    }
}

async fn send_all(
    client: &Arc<Client>,
    planned: &[PlannedRequest],
    bodies: Vec<Bytes>,
    progress: &dyn Fn(usize),
) -> RequestRecords {
    let mut answers = JoinSet::new();
    let start = Instant::now();
    for (index, (request, body)) in planned.iter().zip(bodies).enumerate() {
        // Other tasks can run here even if this request is late.
        sleep_until(start + request.at).await;
        let client = Arc::clone(client);
        answers.spawn(async move { (index, client.send(body).await) });
    }
    let mut records = RequestRecords::default();
    while let Some(answered) = answers.join_next().await {
        let (index, answered) = answered.expect("a request does not panic");
        match answered {
            Ok(streamed) => records.answers.push(answer_record(&planned[index], &streamed, start)),
            Err(error) => records.failures.push(error.to_string()),
        }
        progress(records.answers.len() + records.failures.len());
    }
    records.duration = start.elapsed();
    records
}

fn answer_record(
    request: &PlannedRequest,
    streamed: &StreamedAnswer,
    start: Instant,
) -> AnswerRecord {
    let since = |moment: &Instant| moment.duration_since(start);
    AnswerRecord {
        scheduled: request.at,
        sent: since(&streamed.sent),
        events: streamed.events.iter().map(since).collect(),
        ended: since(&streamed.ended),
        prompt_tokens: request.prompt.len() as u32,
        answer_tokens: streamed.answer_tokens,
        requested_tokens: request.answer_tokens,
    }
}
