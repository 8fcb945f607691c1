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

use super::activity::{Activity, Phase};

/// Interval between two checks of a socket whose request is processed.
const LOOK_EVERY: Duration = Duration::from_millis(200);

/// Interim response, which HTTP/1.1 clients skip whenever they wait for a response.
const INTERIM: &[u8] = b"HTTP/1.1 100 Continue\r\n\r\n";

/// State of the remote end of a socket.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Peer {
    Sends,
    /// The client has shut down its sending side.
    ClosedItsSide,
    Gone,
}

fn look(socket: BorrowedFd<'_>) -> Peer {
    let now = Timespec { tv_sec: 0, tv_nsec: 0 };
    let mut polled = [PollFd::new(&socket, PollFlags::RDHUP)];
    if poll(&mut polled, Some(&now)).is_err() {
        return Peer::Sends;
    }
    let found = polled[0].revents();
    if found.intersects(PollFlags::ERR | PollFlags::HUP) {
        Peer::Gone
    } else if found.contains(PollFlags::RDHUP) {
        Peer::ClosedItsSide
    } else {
        Peer::Sends
    }
}

/// Waits until the client of a request that is processed has disconnected. `socket` is the socket
/// of the connection.
pub async fn departed<S: AsFd>(socket: &S, activity: &Activity) {
    let mut asked_at = None;
    loop {
        sleep(LOOK_EVERY).await;
        let (phase, since) = activity.phase();
        if phase != Phase::Answering {
            continue;
        }
        match look(socket.as_fd()) {
            Peer::Sends => {}
            Peer::Gone => return,
            Peer::ClosedItsSide if asked_at == Some(since) => {}
            Peer::ClosedItsSide if activity.is_old() && !activity.has_head() => return,
            Peer::ClosedItsSide => {
                asked_at = Some(since);
                if !activity.has_head() {
                    let flags = SendFlags::DONTWAIT | SendFlags::NOSIGNAL;
                    if send(socket.as_fd(), INTERIM, flags).is_err() {
                        return;
                    }
                }
                activity.doubt();
            }
        }
    }
}
