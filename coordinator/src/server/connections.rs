//! Sockets: accepted within bounds, each with time limits of its own.

use std::pin::pin;
use std::sync::Arc;
use std::time::Duration;

use axum::Router;
use hyper::server::conn::http1;
use hyper_util::rt::{TokioIo, TokioTimer};
use hyper_util::service::TowerToHyperService;
use tokio::net::{TcpListener, TcpStream};
use tokio::sync::{Semaphore, watch};
use tokio::time::{sleep, timeout};
use tokio_io_timeout::TimeoutStream;

use super::facts::SocketLimits;

/// Bytes of a request's head, and of what is read ahead of a body.
const BUFFER_BYTES: usize = 64 << 10;

/// After an accept that failed, as where there are no more descriptors.
const AFTER_FAILURE: Duration = Duration::from_millis(50);

/// What connections have for their last words.
pub const CLOSING_TIME: Duration = Duration::from_secs(2);

/// Connections that are open; all of them are asked to close once `closing` is true.
#[derive(Debug, Clone)]
pub struct Connections {
    limits: SocketLimits,
    free: Arc<Semaphore>,
    closing: watch::Receiver<bool>,
}

impl Connections {
    /// None yet.
    pub fn new(limits: SocketLimits, closing: watch::Receiver<bool>) -> Connections {
        Connections { limits, free: Arc::new(Semaphore::new(limits.connections)), closing }
    }

    /// How many are open.
    pub fn open(&self) -> usize {
        self.limits.connections - self.free.available_permits()
    }

    /// Accepts connections until they are to close.
    pub async fn accept(self, listener: TcpListener, router: Router) {
        let mut closing = self.closing.clone();
        loop {
            let Ok(free) = Arc::clone(&self.free).acquire_owned().await else { return };
            let stream = tokio::select! {
                accepted = listener.accept() => match accepted {
                    Ok((stream, _)) => stream,
                    Err(_) => {
                        sleep(AFTER_FAILURE).await;
                        continue;
                    }
                },
                () = closed(&mut closing) => return,
            };
            let (connections, router) = (self.clone(), router.clone());
            tokio::spawn(async move {
                connections.serve(stream, router).await;
                drop(free);
            });
        }
    }

    async fn serve(mut self, stream: TcpStream, router: Router) {
        // Tokens go out as they come; a socket that refuses is as good.
        let _ = stream.set_nodelay(true);
        let mut stream = TimeoutStream::new(stream);
        stream.set_write_timeout(Some(self.limits.write_timeout));
        let served = http1::Builder::new()
            .timer(TokioTimer::new())
            .header_read_timeout(self.limits.header_timeout)
            .max_buf_size(BUFFER_BYTES)
            .serve_connection(TokioIo::new(Box::pin(stream)), TowerToHyperService::new(router));
        let mut served = pin!(served);
        tokio::select! {
            // A client that went, or that was too slow, is nobody's error.
            _ = served.as_mut() => return,
            () = closed(&mut self.closing) => {}
        }
        served.as_mut().graceful_shutdown();
        let _ = timeout(CLOSING_TIME, served).await;
    }
}

/// Returns when connections are to close.
async fn closed(closing: &mut watch::Receiver<bool>) {
    // A server that is gone has no connections either.
    let _ = closing.wait_for(|closing| *closing).await;
}
