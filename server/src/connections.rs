//! Accepts a bounded number of sockets and serves each within its time limits.

use std::convert::Infallible;
use std::io::ErrorKind;
use std::pin::{Pin, pin};
use std::sync::Arc;
use std::task::{Context, Poll};
use std::time::Duration;

use axum::Router;
use axum::body::{Body, Bytes, HttpBody};
use axum::http::{Method, Request, Version};
use hyper::body::{Frame, Incoming, SizeHint};
use hyper::server::conn::http1;
use hyper::service::{Service, service_fn};
use hyper_util::rt::{TokioIo, TokioTimer};
use hyper_util::service::TowerToHyperService;
use tokio::net::{TcpListener, TcpStream};
use tokio::sync::{OwnedSemaphorePermit, Semaphore, watch};
use tokio::time::{sleep, timeout};
use tokio_io_timeout::TimeoutStream;

use super::activity::{Activity, ConnectionPhase, ConnectionRegistry, OpenConnection};
use super::client_stream::ClientStream;
use super::config::SocketLimits;
use super::descriptors::max_connections;
use super::disconnect::wait_for_disconnect;

/// Maximum size of a request's head, and of the part of a body that is read ahead, in bytes.
const BUFFER_BYTES: usize = 64 << 10;

/// Delay after a failed accept, for example because no descriptors are left.
const ACCEPT_RETRY_DELAY: Duration = Duration::from_millis(50);

/// Interval at which a waiting connection looks for another one to close.
const EVICTION_INTERVAL: Duration = Duration::from_millis(100);

/// Maximum number of bytes read and discarded after a request was refused because of its head.
const DISCARDED_BYTES_MAX: usize = 1 << 20;

/// Time for connections to finish their last response once they are asked to close.
pub const CLOSE_TIMEOUT: Duration = Duration::from_secs(2);

/// Open connections, all of which are asked to close once `closing` is true.
#[derive(Debug, Clone)]
pub struct Connections {
    limits: SocketLimits,
    max_open: usize,
    free: Arc<Semaphore>,
    activities: Arc<ConnectionRegistry>,
    closing: watch::Receiver<bool>,
}

impl Connections {
    /// Creates an empty set of connections.
    pub fn new(limits: SocketLimits, closing: watch::Receiver<bool>) -> Connections {
        let max_open = limits.connections.min(max_connections());
        let (free, activities) = (Arc::new(Semaphore::new(max_open)), Arc::default());
        Connections { limits, max_open, free, activities, closing }
    }

    /// Returns the number of open connections.
    pub fn open(&self) -> usize {
        self.max_open - self.free.available_permits()
    }

    /// Accepts connections until they must close.
    pub async fn accept(self, listener: TcpListener, router: Router) {
        let mut closing = self.closing.clone();
        loop {
            let (stream, permit) = tokio::select! {
                accepted = self.accept_one(&listener) => match accepted {
                    Some(accepted) => accepted,
                    None => {
                        sleep(ACCEPT_RETRY_DELAY).await;
                        continue;
                    }
                },
                () = wait_until_closing(&mut closing) => return,
            };
            let connection = self.activities.open();
            let (connections, router) = (self.clone(), router.clone());
            tokio::spawn(async move {
                connections.serve(stream, router, connection).await;
                drop(permit);
            });
        }
    }

    /// Accepts a connection. At the limit, it waits for another one to close, and asks the one that
    /// has been idle for longest to do so.
    async fn accept_one(
        &self,
        listener: &TcpListener,
    ) -> Option<(TcpStream, OwnedSemaphorePermit)> {
        let (stream, _) = listener.accept().await.ok()?;
        loop {
            if let Ok(permit) = Arc::clone(&self.free).try_acquire_owned() {
                return Some((stream, permit));
            }
            self.activities.evict_idle();
            let permit = Arc::clone(&self.free).acquire_owned();
            if let Ok(permit) = timeout(EVICTION_INTERVAL, permit).await {
                return Some((stream, permit.ok()?));
            }
        }
    }

    async fn serve(mut self, stream: TcpStream, router: Router, connection: OpenConnection) {
        // Tokens are sent as they are produced. A failure to set the option only delays them.
        let _ = stream.set_nodelay(true);
        let (stream, activity) = (Arc::new(stream), &connection.activity);
        let client_stream = ClientStream::new(Arc::clone(&stream), Arc::clone(activity));
        let mut client_stream = TimeoutStream::new(client_stream);
        client_stream.set_write_timeout(Some(self.limits.write_timeout));
        let service = track_activity(router, activity);
        let served = http1::Builder::new()
            .timer(TokioTimer::new())
            .header_read_timeout(self.limits.header_timeout)
            .max_buf_size(BUFFER_BYTES)
            .max_header_size(BUFFER_BYTES)
            // A client may shut down its sending side after its request.
            .half_close(true)
            .serve_connection(TokioIo::new(Box::pin(client_stream)), service);
        let mut served = pin!(served);
        tokio::select! {
            // A client that disconnected or was too slow is not an error of the server.
            served = served.as_mut() => {
                if served.is_err() {
                    let _ = timeout(CLOSE_TIMEOUT, discard(&stream)).await;
                }
                return;
            }
            () = wait_for_disconnect(&*stream, activity) => return,
            () = activity.evicted() => {}
            () = wait_until_closing(&mut self.closing) => {}
        }
        served.as_mut().graceful_shutdown();
        let _ = timeout(CLOSE_TIMEOUT, served).await;
    }
}

/// Reads the rest of a refused request: closing a socket with unread data would reset the
/// connection and discard the response.
async fn discard(stream: &TcpStream) {
    let _ = rustix::net::shutdown(stream, rustix::net::Shutdown::Write);
    let (mut buffer, mut remaining_bytes) = (vec![0; 16 << 10], DISCARDED_BYTES_MAX);
    while remaining_bytes > 0 && stream.readable().await.is_ok() {
        match stream.try_read(&mut buffer) {
            Ok(0) => return,
            Ok(read) => remaining_bytes = remaining_bytes.saturating_sub(read),
            Err(error) if error.kind() == ErrorKind::WouldBlock => {}
            Err(_) => return,
        }
    }
}

/// Waits until connections must close.
async fn wait_until_closing(closing: &mut watch::Receiver<bool>) {
    // An error means that the server is gone, which closes connections too.
    let _ = closing.wait_for(|closing| *closing).await;
}

/// Wraps the endpoints so that they track the phase of the connection.
fn track_activity(
    router: Router,
    activity: &Arc<Activity>,
) -> impl Service<
    Request<Incoming>,
    Response = hyper::Response<TrackedBody>,
    Error = Infallible,
    Future: Send,
> + use<> {
    let (router, activity) = (TowerToHyperService::new(router), Arc::clone(activity));
    service_fn(move |mut request: Request<Incoming>| {
        let has_body = *request.method() == Method::POST;
        let phase = if has_body { ConnectionPhase::Receiving } else { ConnectionPhase::Answering };
        activity.begin_request(phase, request.version() < Version::HTTP_11);
        request.extensions_mut().insert(Arc::clone(&activity));
        let (answer, activity) = (router.call(request), Arc::clone(&activity));
        async move {
            // Resets the phase even if the client disconnects before the response begins.
            let idle_on_drop = IdleOnDrop(activity);
            let response = answer.await?;
            idle_on_drop.0.set_phase(ConnectionPhase::Answering);
            idle_on_drop.0.set_response_begun();
            Ok(response.map(|body| TrackedBody { body, _idle_on_drop: idle_on_drop }))
        }
    })
}

/// Marks a connection as idle when it is dropped.
#[derive(Debug)]
struct IdleOnDrop(Arc<Activity>);

impl Drop for IdleOnDrop {
    fn drop(&mut self) {
        self.0.set_phase(ConnectionPhase::Idle);
    }
}

/// Body of a response; the connection becomes idle when it ends.
#[derive(Debug)]
struct TrackedBody {
    body: Body,
    _idle_on_drop: IdleOnDrop,
}

impl HttpBody for TrackedBody {
    type Data = Bytes;
    type Error = axum::Error;

    fn poll_frame(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<Bytes>, axum::Error>>> {
        Pin::new(&mut self.body).poll_frame(cx)
    }

    fn is_end_stream(&self) -> bool {
        self.body.is_end_stream()
    }

    fn size_hint(&self) -> SizeHint {
        self.body.size_hint()
    }
}
