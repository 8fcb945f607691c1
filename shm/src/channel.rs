//! The channel between the coordinator and one worker: messages and descriptors over a Unix socket
//! pair.
//!
//! Used before a run (the plan, the segments) and at its end, never on the step path. The socket
//! keeps message boundaries (`SOCK_SEQPACKET`); a payload over [`MESSAGE_BYTES_MAX`] travels as a
//! sealed memory file, see [`Channel::send_large`], and arrives by the same [`Channel::recv`]. Both
//! ends are close-on-exec; [`Channel::hand_to`] lets exactly one program inherit one end, without a
//! moment in which a program started by another thread could inherit it too.
//!
//! No call blocks without limit, and a peer that died shows as [`ChannelError::PeerClosed`].

use std::fs::File;
use std::io::{IoSlice, IoSliceMut, Write};
use std::mem::MaybeUninit;
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, FromRawFd, OwnedFd, RawFd};
use std::os::unix::fs::FileExt;
use std::os::unix::process::CommandExt;
use std::process::Command;
use std::time::{Duration, Instant};

use rustix::event::{PollFd, PollFlags, Timespec};
use rustix::fs::{MemfdFlags, SealFlags};
use rustix::io::{Errno, FdFlags};
use rustix::net::{
    AddressFamily, RecvAncillaryBuffer, RecvAncillaryMessage, RecvFlags, ReturnFlags,
    SendAncillaryBuffer, SendAncillaryMessage, SendFlags, SocketFlags, SocketType,
};

/// Maximum payload of [`Channel::send`]; well under the smallest socket buffer of any Linux.
pub const MESSAGE_BYTES_MAX: usize = 64 << 10;
/// Maximum number of descriptors in a message; the kernel's own limit is 253.
pub const DESCRIPTORS_MAX: usize = 64;
/// Maximum payload that [`Channel::recv`] accepts from a large message: a plan is megabytes, never
/// gigabytes.
pub const LARGE_BYTES_MAX: u64 = 1 << 32;
/// Maximum time that a send waits for a peer that does not read.
pub const SEND_TIMEOUT: Duration = Duration::from_secs(10);

/// First byte of a message whose payload follows.
const KIND_PLAIN: u8 = b'p';
/// First byte of a message whose payload is in the memory file of the first descriptor.
const KIND_LARGE: u8 = b'l';
const LARGE_SEALS: SealFlags =
    SealFlags::SHRINK.union(SealFlags::GROW).union(SealFlags::WRITE).union(SealFlags::SEAL);

/// Error of sending or receiving a message.
#[derive(Debug, thiserror::Error)]
pub enum ChannelError {
    /// The kernel refused an operation.
    #[error("The channel to the other process failed to {doing}: {source}.")]
    Kernel {
        /// Operation that failed.
        doing: &'static str,
        /// Error of the kernel.
        source: std::io::Error,
    },
    /// The message does not follow the protocol.
    #[error("The other process sent something that is not a message of this build: {what}.")]
    Malformed {
        /// Description of the problem.
        what: &'static str,
    },
    /// The payload exceeds a limit.
    #[error(
        "A message of {size_bytes} bytes is larger than the limit of {limit_bytes}; send it as a \
         large message."
    )]
    MessageTooLong {
        /// Size of the payload.
        size_bytes: u64,
        /// Limit that applies.
        limit_bytes: u64,
    },
    /// The number given on the command line is not a channel.
    #[error(
        "Descriptor {number} is not the end of a channel; workers are started by the coordinator, \
         not by hand."
    )]
    NotAChannel {
        /// Number given as an argument.
        number: RawFd,
    },
    /// The peer closed its end, which the system does when a process ends.
    #[error("The other process closed its end of the channel; it has ended.")]
    PeerClosed,
    /// Nothing arrived, or nothing could be sent, within the time limit.
    #[error("The other process did not answer within {limit_s:.1} s.")]
    TimedOut {
        /// Time limit in seconds.
        limit_s: f64,
    },
    /// The number of descriptors exceeds [`DESCRIPTORS_MAX`].
    #[error("A message carries at most {DESCRIPTORS_MAX} descriptors, not {count}; use several.")]
    TooManyDescriptors {
        /// Number of descriptors given.
        count: usize,
    },
}

fn kernel(doing: &'static str) -> impl Fn(Errno) -> ChannelError {
    move |errno| match errno {
        Errno::PIPE | Errno::CONNRESET => ChannelError::PeerClosed,
        errno => ChannelError::Kernel { doing, source: errno.into() },
    }
}

fn file_error(doing: &'static str) -> impl Fn(std::io::Error) -> ChannelError {
    move |source| ChannelError::Kernel { doing, source }
}

/// One end of a channel.
#[derive(Debug)]
pub struct Channel {
    socket: OwnedFd,
}

impl Channel {
    /// Creates two connected ends, both close-on-exec.
    pub fn pair() -> Result<(Channel, Channel), ChannelError> {
        let (ours, theirs) = rustix::net::socketpair(
            AddressFamily::UNIX,
            SocketType::SEQPACKET,
            SocketFlags::CLOEXEC,
            None,
        )
        .map_err(kernel("be created"))?;
        Ok((Channel { socket: ours }, Channel { socket: theirs }))
    }

    /// Lets the program that `command` starts inherit this end, and no other program. Returns the
    /// number under which it finds it (to be passed as an argument, see [`Channel::from_number`]).
    ///
    /// `command` keeps this process's copy of the end open: drop it once the program is started, or
    /// the peer's death will not be noticed.
    pub fn hand_to(self, command: &mut Command) -> RawFd {
        let socket = self.socket;
        let number = socket.as_raw_fd();
        // SAFETY: needed because the hook runs between fork and exec, where only async-signal-safe
        // calls are allowed: it makes one fcntl and allocates nothing. The hook owns the
        // descriptor, so it is open when it runs.
        unsafe {
            command.pre_exec(move || Ok(rustix::io::fcntl_setfd(&socket, FdFlags::empty())?));
        }
        number
    }

    /// Takes the end that this program inherited under `number`; it is close-on-exec from here on.
    ///
    /// # Safety
    /// Nothing else in this process may own descriptor `number`: it was inherited, and this is
    /// called only once.
    pub unsafe fn from_number(number: RawFd) -> Result<Channel, ChannelError> {
        let refused = |_| ChannelError::NotAChannel { number };
        if number < 0 {
            return Err(ChannelError::NotAChannel { number });
        }
        // SAFETY: needed to look at the number before owning it, so that a wrong one is an error
        // and not a double close. Borrowed for these calls only; the kernel answers EBADF if it is
        // not open.
        let borrowed = unsafe { BorrowedFd::borrow_raw(number) };
        let kind = rustix::net::sockopt::socket_type(borrowed).map_err(refused)?;
        if kind != SocketType::SEQPACKET {
            return Err(ChannelError::NotAChannel { number });
        }
        rustix::io::fcntl_setfd(borrowed, FdFlags::CLOEXEC).map_err(refused)?;
        // SAFETY: needed to take ownership, which nothing else has according to the caller; the
        // descriptor was just seen to be open.
        let socket = unsafe { OwnedFd::from_raw_fd(number) };
        Ok(Channel { socket })
    }

    /// Sends a payload of at most [`MESSAGE_BYTES_MAX`] and copies of at most [`DESCRIPTORS_MAX`]
    /// descriptors.
    pub fn send(&self, payload: &[u8], descriptors: &[BorrowedFd<'_>]) -> Result<(), ChannelError> {
        if payload.len() > MESSAGE_BYTES_MAX {
            return Err(ChannelError::MessageTooLong {
                size_bytes: payload.len() as u64,
                limit_bytes: MESSAGE_BYTES_MAX as u64,
            });
        }
        self.send_packet(KIND_PLAIN, payload, descriptors)
    }

    /// Sends a payload of any length up to [`LARGE_BYTES_MAX`], through a sealed memory file, and
    /// at most [`DESCRIPTORS_MAX`] - 1 descriptors.
    pub fn send_large(
        &self,
        payload: &[u8],
        descriptors: &[BorrowedFd<'_>],
    ) -> Result<(), ChannelError> {
        if payload.len() as u64 > LARGE_BYTES_MAX {
            return Err(ChannelError::MessageTooLong {
                size_bytes: payload.len() as u64,
                limit_bytes: LARGE_BYTES_MAX,
            });
        }
        let doing = "write a large message";
        let flags = MemfdFlags::CLOEXEC | MemfdFlags::ALLOW_SEALING;
        let memory = rustix::fs::memfd_create("tandem-message", flags).map_err(kernel(doing))?;
        let mut memory = File::from(memory);
        memory.write_all(payload).map_err(file_error(doing))?;
        // Sealed so that the receiver reads what was sent, whatever happens to the sender.
        rustix::fs::fcntl_add_seals(&memory, LARGE_SEALS).map_err(kernel(doing))?;
        let mut all = vec![memory.as_fd()];
        all.extend_from_slice(descriptors);
        self.send_packet(KIND_LARGE, &[], &all)
    }

    /// Sends a payload of any length without descriptors, as a plain or a large message.
    pub fn send_any(&self, payload: &[u8]) -> Result<(), ChannelError> {
        if payload.len() <= MESSAGE_BYTES_MAX {
            self.send(payload, &[])
        } else {
            self.send_large(payload, &[])
        }
    }

    /// Receives the next message, plain or large, with its descriptors in the order sent (all
    /// close-on-exec).
    pub fn recv(&self, timeout: Duration) -> Result<(Vec<u8>, Vec<OwnedFd>), ChannelError> {
        let mut payload = Vec::new();
        let descriptors = self.recv_into(timeout, &mut payload)?;
        Ok((payload, descriptors))
    }

    /// Receives like [`Channel::recv`], with the payload in `payload`. A plain message without
    /// descriptors allocates nothing if `payload` has a capacity of [`MESSAGE_BYTES_MAX`] bytes.
    pub fn recv_into(
        &self,
        timeout: Duration,
        payload: &mut Vec<u8>,
    ) -> Result<Vec<OwnedFd>, ChannelError> {
        let (kind, mut descriptors) = self.recv_packet(timeout, payload)?;
        match kind {
            KIND_PLAIN => Ok(descriptors),
            KIND_LARGE if descriptors.is_empty() => {
                Err(ChannelError::Malformed { what: "a large message without its memory" })
            }
            KIND_LARGE => {
                *payload = read_large(descriptors.remove(0))?;
                Ok(descriptors)
            }
            _ => Err(ChannelError::Malformed { what: "an unknown kind of message" }),
        }
    }

    fn send_packet(
        &self,
        kind: u8,
        payload: &[u8],
        descriptors: &[BorrowedFd<'_>],
    ) -> Result<(), ChannelError> {
        if descriptors.len() > DESCRIPTORS_MAX {
            return Err(ChannelError::TooManyDescriptors { count: descriptors.len() });
        }
        let parts = [IoSlice::new(std::slice::from_ref(&kind)), IoSlice::new(payload)];
        let deadline = Instant::now() + SEND_TIMEOUT;
        loop {
            let mut space =
                [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(DESCRIPTORS_MAX))];
            let mut control = SendAncillaryBuffer::new(&mut space);
            if !descriptors.is_empty() {
                let fits = control.push(SendAncillaryMessage::ScmRights(descriptors));
                assert!(fits, "the space is made for DESCRIPTORS_MAX");
            }
            let flags = SendFlags::NOSIGNAL | SendFlags::DONTWAIT;
            match rustix::net::sendmsg(&self.socket, &parts, &mut control, flags) {
                Ok(sent) => {
                    assert_eq!(sent, payload.len() + 1, "a packet is sent whole or not at all");
                    return Ok(());
                }
                Err(Errno::INTR) => {}
                Err(Errno::AGAIN) => self.poll(PollFlags::OUT, deadline, SEND_TIMEOUT)?,
                Err(errno) => return Err(kernel("send")(errno)),
            }
        }
    }

    fn recv_packet(
        &self,
        timeout: Duration,
        payload: &mut Vec<u8>,
    ) -> Result<(u8, Vec<OwnedFd>), ChannelError> {
        // A deadline beyond the range of the clock is replaced by a year.
        let start = Instant::now();
        let deadline = start.checked_add(timeout).unwrap_or(start + Duration::from_hours(365 * 24));
        let mut kind = [0];
        payload.resize(MESSAGE_BYTES_MAX, 0);
        let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(DESCRIPTORS_MAX))];
        let (received, descriptors) = loop {
            let mut control = RecvAncillaryBuffer::new(&mut space);
            let mut parts = [IoSliceMut::new(&mut kind), IoSliceMut::new(payload)];
            let flags = RecvFlags::CMSG_CLOEXEC | RecvFlags::DONTWAIT;
            match rustix::net::recvmsg(&self.socket, &mut parts, &mut control, flags) {
                Ok(received) => {
                    let mut descriptors = Vec::new();
                    for message in control.drain() {
                        if let RecvAncillaryMessage::ScmRights(passed) = message {
                            descriptors.extend(passed);
                        }
                    }
                    break (received, descriptors);
                }
                Err(Errno::INTR) => {}
                Err(Errno::AGAIN) => self.poll(PollFlags::IN, deadline, timeout)?,
                Err(errno) => return Err(kernel("receive")(errno)),
            }
        };
        if received.flags.contains(ReturnFlags::TRUNC) {
            return Err(ChannelError::Malformed { what: "a message longer than the limit" });
        }
        if received.flags.contains(ReturnFlags::CTRUNC) {
            // Also the result when this process has reached its limit of open files.
            return Err(ChannelError::Malformed {
                what: "more descriptors than this process may take (see `ulimit -n`)",
            });
        }
        // Every message has at least its kind, so an empty one means that the peer is gone.
        let length = received.bytes.checked_sub(1).ok_or(ChannelError::PeerClosed)?;
        payload.truncate(length);
        Ok((kind[0], descriptors))
    }

    /// Waits until `events` (or a hang-up, which the next call then reports) or the deadline.
    fn poll(
        &self,
        events: PollFlags,
        deadline: Instant,
        limit: Duration,
    ) -> Result<(), ChannelError> {
        let left = deadline.saturating_duration_since(Instant::now());
        let left = Timespec::try_from(left).unwrap_or(Timespec { tv_sec: i64::MAX, tv_nsec: 0 });
        let mut polled = [PollFd::new(&self.socket, events)];
        match rustix::event::poll(&mut polled, Some(&left)) {
            Ok(0) => Err(ChannelError::TimedOut { limit_s: limit.as_secs_f64() }),
            Ok(_) | Err(Errno::INTR) => Ok(()),
            Err(errno) => Err(kernel("wait")(errno)),
        }
    }
}

impl AsFd for Channel {
    /// Allows polling the channel together with process descriptors.
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.socket.as_fd()
    }
}

fn read_large(memory: OwnedFd) -> Result<Vec<u8>, ChannelError> {
    let doing = "read a large message";
    let seals = rustix::fs::fcntl_get_seals(&memory).unwrap_or(SealFlags::empty());
    if !seals.contains(LARGE_SEALS) {
        return Err(ChannelError::Malformed { what: "a large message that is not sealed" });
    }
    let memory = File::from(memory);
    let size_bytes = memory.metadata().map_err(file_error(doing))?.len();
    let too_long = ChannelError::MessageTooLong { size_bytes, limit_bytes: LARGE_BYTES_MAX };
    if size_bytes > LARGE_BYTES_MAX {
        return Err(too_long);
    }
    let mut payload = vec![0; usize::try_from(size_bytes).map_err(|_| too_long)?];
    memory.read_exact_at(&mut payload, 0).map_err(file_error(doing))?;
    Ok(payload)
}

#[cfg(test)]
mod tests {
    use super::*;

    const LIMIT: Duration = Duration::from_secs(60);

    #[test]
    fn messages_keep_their_boundaries_and_descriptors() {
        let (a, b) = Channel::pair().unwrap();
        let file = File::open("/proc/self/exe").unwrap();
        let inode = |fd: &OwnedFd| rustix::fs::fstat(fd).unwrap().st_ino;
        let expected = rustix::fs::fstat(&file).unwrap().st_ino;
        a.send(&[], &[]).unwrap();
        a.send(b"two", &[file.as_fd(), file.as_fd()]).unwrap();
        a.send(&vec![7; MESSAGE_BYTES_MAX], &[]).unwrap();
        assert_eq!(b.recv(LIMIT).unwrap().0, b"");
        let (payload, descriptors) = b.recv(LIMIT).unwrap();
        assert_eq!((payload.as_slice(), descriptors.len()), (&b"two"[..], 2));
        for descriptor in &descriptors {
            assert_eq!(inode(descriptor), expected);
            let flags = rustix::io::fcntl_getfd(descriptor).unwrap();
            assert!(flags.contains(FdFlags::CLOEXEC));
        }
        assert_eq!(b.recv(LIMIT).unwrap().0, vec![7; MESSAGE_BYTES_MAX]);
    }

    #[test]
    fn large_messages_arrive_like_others() {
        let (a, b) = Channel::pair().unwrap();
        let payload: Vec<u8> = (0..3_000_000u32).map(|i| (i % 251) as u8).collect();
        assert!(matches!(a.send(&payload, &[]), Err(ChannelError::MessageTooLong { .. })));
        a.send_large(&payload, &[a.as_fd()]).unwrap();
        a.send_large(&[], &[]).unwrap();
        a.send_any(&payload).unwrap();
        a.send_any(&payload[..10]).unwrap();
        let (received, descriptors) = b.recv(LIMIT).unwrap();
        assert!(received == payload);
        assert_eq!(descriptors.len(), 1);
        assert_eq!(b.recv(LIMIT).unwrap().0, b"");
        assert!(b.recv(LIMIT).unwrap().0 == payload);
        assert_eq!(b.recv(LIMIT).unwrap().0, payload[..10]);
    }

    #[test]
    fn the_most_descriptors_pass_and_one_more_is_refused() {
        let (a, b) = Channel::pair().unwrap();
        let many = vec![a.as_fd(); DESCRIPTORS_MAX + 1];
        assert!(matches!(a.send(b"", &many), Err(ChannelError::TooManyDescriptors { .. })));
        a.send(b"", &many[1..]).unwrap();
        assert_eq!(b.recv(LIMIT).unwrap().1.len(), DESCRIPTORS_MAX);
    }

    #[test]
    fn silence_is_a_timeout_and_absence_is_told() {
        let (a, b) = Channel::pair().unwrap();
        let silence = b.recv(Duration::from_millis(1));
        assert!(matches!(silence, Err(ChannelError::TimedOut { .. })));
        a.send(b"last words", &[]).unwrap();
        drop(a);
        assert_eq!(b.recv(LIMIT).unwrap().0, b"last words");
        assert!(matches!(b.recv(LIMIT), Err(ChannelError::PeerClosed)));
        assert!(matches!(b.send(b"", &[]), Err(ChannelError::PeerClosed)));
    }

    #[test]
    fn unsealed_or_unknown_messages_are_refused() {
        let (a, b) = Channel::pair().unwrap();
        let memory = rustix::fs::memfd_create("loose", MemfdFlags::CLOEXEC).unwrap();
        a.send_packet(KIND_LARGE, &[], &[memory.as_fd()]).unwrap();
        a.send_packet(KIND_LARGE, &[], &[]).unwrap();
        a.send_packet(b'?', &[], &[]).unwrap();
        a.send_packet(KIND_PLAIN, &vec![0; MESSAGE_BYTES_MAX + 1], &[]).unwrap();
        for _ in 0..4 {
            assert!(matches!(b.recv(LIMIT), Err(ChannelError::Malformed { .. })));
        }
    }

    #[test]
    fn other_descriptors_are_not_channels() {
        let file = File::open("/proc/self/exe").unwrap();
        for number in [-1, file.as_raw_fd(), 1 << 20] {
            // SAFETY: the call is expected to refuse, and then takes no ownership.
            let refused = unsafe { Channel::from_number(number) };
            assert!(matches!(refused, Err(ChannelError::NotAChannel { .. })));
        }
    }
}
