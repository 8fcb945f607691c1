//! Sends requests at their scheduled times, regardless of the state of other requests.

use std::io;
use std::sync::Arc;
use std::time::Duration;

use hyper::body::Bytes;
use tokio::runtime::Builder;
use tokio::task::JoinSet;
use tokio::time::{Instant, sleep, sleep_until};

use super::client::{Client, ClientError, Streamed};
use super::record::{Answer, Records};
use super::workload::Planned;

/// Interval between two checks for an interruption.
const LOOK_EVERY: Duration = Duration::from_millis(100);

/// Reason for which a measurement failed.
#[derive(Debug, thiserror::Error)]
pub enum DriveError {
    #[error("the system has no more file descriptors: {0}")]
    System(io::Error),
    #[error("interrupted; nothing was measured")]
    Interrupted,
    #[error("the server did not answer the first request: {0}")]
    First(ClientError),
}

/// Sends `first` and reads its answer, then sends all of `planned`, which are sorted by arrival, on
/// this thread. Calls `progress` with the number of requests that have ended so far.
///
/// # Errors
/// The first request fails, or `interrupted` returns true.
pub fn drive(
    client: Client,
    model: Option<&str>,
    first: Option<&Planned>,
    planned: &[Planned],
    progress: &dyn Fn(usize),
    interrupted: &dyn Fn() -> bool,
) -> Result<Records, DriveError> {
    let runtime = Builder::new_current_thread().enable_all().build().map_err(DriveError::System)?;
    let body = |request: &Planned| {
        Bytes::from(client.api.body(model, &request.prompt, request.answer_tokens))
    };
    let first = first.map(body);
    let bodies: Vec<Bytes> = planned.iter().map(body).collect();
    let client = Arc::new(client);
    let measured = async {
        if let Some(first) = first {
            client.answer(first).await.map_err(DriveError::First)?;
        }
        Ok(send_all(&client, planned, bodies, progress).await)
    };
    runtime.block_on(async {
        tokio::select! {
            records = measured => records,
            () = until(interrupted) => Err(DriveError::Interrupted),
        }
    })
}

async fn until(interrupted: &dyn Fn() -> bool) {
    while !interrupted() {
        sleep(LOOK_EVERY).await;
    }
}

async fn send_all(
    client: &Arc<Client>,
    planned: &[Planned],
    bodies: Vec<Bytes>,
    progress: &dyn Fn(usize),
) -> Records {
    let mut answers = JoinSet::new();
    let start = Instant::now();
    for (index, (request, body)) in planned.iter().zip(bodies).enumerate() {
        // Other tasks can run here even if this request is late.
        sleep_until(start + request.at).await;
        let client = Arc::clone(client);
        answers.spawn(async move { (index, client.answer(body).await) });
    }
    let mut records = Records::default();
    while let Some(answered) = answers.join_next().await {
        let (index, answered) = answered.expect("a request does not panic");
        match answered {
            Ok(streamed) => records.answers.push(answer(&planned[index], &streamed, start)),
            Err(error) => records.failures.push(error.to_string()),
        }
        progress(records.answers.len() + records.failures.len());
    }
    records.lasted = start.elapsed();
    records
}

fn answer(request: &Planned, streamed: &Streamed, start: Instant) -> Answer {
    let since = |moment: &Instant| moment.duration_since(start);
    Answer {
        scheduled: request.at,
        sent: since(&streamed.sent),
        events: streamed.events.iter().map(since).collect(),
        ended: since(&streamed.ended),
        prompt_tokens: request.prompt.len() as u32,
        answer_tokens: streamed.answer_tokens,
        ordered_tokens: request.answer_tokens,
    }
}
