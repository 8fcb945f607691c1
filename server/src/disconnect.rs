//! Detection of clients that disconnect while their request is processed.
//!
//! A client may send its request, shut down its sending side and wait for the answer. A client that
//! has disconnected looks the same until something is sent to it. It is therefore sent an interim
//! response, which every client skips; a client that has disconnected replies to it with a reset.

use std::os::fd::{AsFd, BorrowedFd};
use std::time::Duration;

use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::net::{SendFlags, send};
use tokio::time::sleep;

use super::activity::{Activity, ConnectionPhase};

/// Interval between two checks of a socket whose request is processed.
const POLL_INTERVAL: Duration = Duration::from_millis(200);

/// Interim response, which HTTP/1.1 clients skip whenever they wait for a response.
const INTERIM: &[u8] = b"HTTP/1.1 100 Continue\r\n\r\n";

/// State of the remote end of a socket.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum PeerState {
    Open,
    /// The client has shut down its sending side.
    HalfClosed,
    Disconnected,
}

fn poll_peer(socket: BorrowedFd<'_>) -> PeerState {
    let now = Timespec { tv_sec: 0, tv_nsec: 0 };
    let mut polled = [PollFd::new(&socket, PollFlags::RDHUP)];
    if poll(&mut polled, Some(&now)).is_err() {
        return PeerState::Open;
    }
    let found = polled[0].revents();
    if found.intersects(PollFlags::ERR | PollFlags::HUP) {
        PeerState::Disconnected
    } else if found.contains(PollFlags::RDHUP) {
        PeerState::HalfClosed
    } else {
        PeerState::Open
    }
}

/// Waits until the client of a request that is processed has disconnected. `socket` is the socket
/// of the connection.
pub async fn wait_for_disconnect<S: AsFd>(socket: &S, activity: &Activity) {
    let mut probed_at = None;
    loop {
        sleep(POLL_INTERVAL).await;
        let (phase, since) = activity.phase();
        if phase != ConnectionPhase::Answering {
            continue;
        }
        match poll_peer(socket.as_fd()) {
            PeerState::Open => {}
            PeerState::Disconnected => return,
            PeerState::HalfClosed if probed_at == Some(since) => {}
            PeerState::HalfClosed if activity.is_http_1_0() && !activity.has_response_begun() => {
                return;
            }
            PeerState::HalfClosed => {
                probed_at = Some(since);
                if !activity.has_response_begun() {
                    let flags = SendFlags::DONTWAIT | SendFlags::NOSIGNAL;
                    if send(socket.as_fd(), INTERIM, flags).is_err() {
                        return;
                    }
                }
                activity.request_liveness_check();
            }
        }
    }
}
