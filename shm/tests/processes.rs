//! Real processes meet in shared memory: tests what the model checks cannot cover (two address
//! spaces, the kernel's futex, death).
//!
//! The test program starts itself again for the other side, see [`child`]. Two children pass a turn
//! back and forth over timelines while this process supervises, like the coordinator. A watchdog
//! ends a test that hangs.
#![cfg(not(loom))]

use std::collections::BTreeSet;
use std::os::fd::{AsFd, AsRawFd};
use std::process::{Child, Command, Stdio};
use std::sync::mpsc;
use std::time::Duration;

use rustix::event::{PollFd, PollFlags, Timespec};
use rustix::process::{PidfdFlags, Signal};
use shm::{Access, Channel, ChannelError, Control, Position, Segment, WaitError, WorkerState};

const LIMIT: Duration = Duration::from_secs(60);
const CHANNEL_VARIABLE: &str = "SHM_TEST_CHANNEL";
const DATA_BYTES: usize = 4096;
/// Code with which this supervisor ends a run because a worker died.
const CODE_DIED: u32 = 9;

/// Ends the program if the test that armed it does not finish; the children then die with it.
struct Watchdog {
    _disarm: mpsc::Sender<()>,
}

impl Watchdog {
    fn arm(test: &'static str) -> Watchdog {
        let (disarm, armed) = mpsc::channel();
        std::thread::spawn(move || {
            if armed.recv_timeout(LIMIT * 3) == Err(mpsc::RecvTimeoutError::Timeout) {
                eprintln!("watchdog: {test} hangs");
                std::process::abort();
            }
        });
        Watchdog { _disarm: disarm }
    }
}

struct Worker {
    process: Child,
    channel: Channel,
}

/// Cores on which the two workers run.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Cores {
    /// Any cores: turns mostly pass while the other side still spins on the word.
    Any,
    /// One core: spinning is in vain, so every turn passes through the kernel's futex.
    One,
}

/// Starts both workers; each of them gets the control segment, the data segment and its side (0 or
/// 1).
fn start(control: &Control, data: &Segment, rounds: u32, cores: Cores) -> [Worker; 2] {
    // Both pairs exist before either child does, so that a leaked end would be inherited.
    let pairs = [Channel::pair().unwrap(), Channel::pair().unwrap()];
    let sockets: BTreeSet<u64> =
        pairs.iter().flat_map(|(ours, theirs)| [inode(ours), inode(theirs)]).collect();
    let mut side = 0u32;
    pairs.map(|(channel, theirs)| {
        let expected = inode(&theirs);
        let mut command = Command::new(std::env::current_exe().unwrap());
        let number = theirs.hand_to(&mut command);
        command.args(["child", "--exact", "--ignored", "--nocapture"]);
        command
            .env(CHANNEL_VARIABLE, number.to_string())
            .stdin(Stdio::null())
            .stdout(Stdio::null());
        let process = command.spawn().unwrap();
        drop(command);
        let mut job = Vec::new();
        job.extend(side.to_le_bytes());
        job.extend(rounds.to_le_bytes());
        job.extend((control.segment().size_bytes() as u64).to_le_bytes());
        job.push(u8::from(cores == Cores::One));
        channel.send_large(&job, &[control.segment().fd(), data.fd()]).unwrap();
        // The first answer names the sockets that the child has inherited: exactly its own end must
        // be among ours.
        let (answer, _) = channel.recv(LIMIT).unwrap();
        let inherited: BTreeSet<u64> = answer
            .chunks_exact(8)
            .map(|inode| u64::from_le_bytes(inode.try_into().unwrap()))
            .collect();
        let ours: Vec<_> = inherited.intersection(&sockets).copied().collect();
        assert_eq!(ours, [expected], "a child inherits exactly one end");
        side += 1;
        Worker { process, channel }
    })
}

fn inode(fd: impl AsFd) -> u64 {
    rustix::fs::fstat(fd).unwrap().st_ino
}

fn text(channel: &Channel) -> String {
    String::from_utf8(channel.recv(LIMIT).unwrap().0).unwrap()
}

#[test]
fn two_processes_take_20000_turns() {
    let _watchdog = Watchdog::arm("two_processes_take_20000_turns");
    take_20000_turns(Cores::Any);
}

#[test]
fn two_processes_on_one_core_take_20000_turns() {
    let _watchdog = Watchdog::arm("two_processes_on_one_core_take_20000_turns");
    take_20000_turns(Cores::One);
}

fn take_20000_turns(cores: Cores) {
    const ROUNDS: u32 = 20_000;
    let control = Control::create(2, 0).unwrap();
    let data = Segment::create("turns", DATA_BYTES).unwrap();
    let workers = start(&control, &data, ROUNDS, cores);
    // The coordinator's view: it follows the steps without taking part in them.
    control.steps().wait_until(1, control.poison(), LIMIT).unwrap();
    for mut worker in workers {
        assert_eq!(text(&worker.channel), "done");
        assert!(worker.process.wait().unwrap().success());
        assert!(matches!(worker.channel.recv(LIMIT), Err(ChannelError::PeerClosed)));
    }
    assert_eq!([0, 1].map(|side| control.worker(side).state()), [WorkerState::Exit; 2]);
    assert_eq!([0, 1].map(|side| control.lane(side).timeline.value()), [ROUNDS; 2]);
    assert_eq!(control.lane(1).position().instruction, ROUNDS);
    // SAFETY: both writers have ended.
    assert_eq!(unsafe { data.slice::<u64>(0, 1) }, [2 * u64::from(ROUNDS)]);
}

#[test]
fn a_killed_process_releases_the_other_by_poison() {
    let _watchdog = Watchdog::arm("a_killed_process_releases_the_other_by_poison");
    let (any, one) = (Cores::Any, Cores::One);
    let cases = [(0, 1, any), (1, 2, one), (0, 700, one), (1, 1_033, any), (1, 3_001, one)];
    for (victim, kill_at, cores) in cases {
        let control = Control::create(2, 0).unwrap();
        let data = Segment::create("turns", DATA_BYTES).unwrap();
        // More turns than they will ever take.
        let mut workers = start(&control, &data, 1 << 30, cores);
        control.lane(0).timeline.wait_until(kill_at, control.poison(), LIMIT).unwrap();
        let pid = rustix::process::Pid::from_child(&workers[victim].process);
        let watched = rustix::process::pidfd_open(pid, PidfdFlags::empty()).unwrap();
        rustix::process::pidfd_send_signal(&watched, Signal::KILL).unwrap();
        let limit = Timespec::try_from(LIMIT).unwrap();
        let mut polled = [PollFd::new(&watched, PollFlags::IN)];
        assert_eq!(rustix::event::poll(&mut polled, Some(&limit)), Ok(1), "the kill is noticed");
        let cause = control.stop(victim as u32, CODE_DIED);
        let expected = WaitError::Poisoned(cause).to_string();
        assert!(expected.contains(&format!("process {victim} with code {CODE_DIED}")));

        let survivor = &mut workers[1 - victim];
        assert_eq!(text(&survivor.channel), expected);
        assert!(survivor.process.wait().unwrap().success());
        let dead = &mut workers[victim];
        assert!(matches!(dead.channel.recv(LIMIT), Err(ChannelError::PeerClosed)));
        assert!(!dead.process.wait().unwrap().success());
    }
}

#[test]
#[ignore = "the other half of the tests above, which start it"]
fn child() {
    let Ok(number) = std::env::var(CHANNEL_VARIABLE) else {
        println!(
            "SKIP child: it is the other half of the other tests and runs only when they start it"
        );
        return;
    };
    // Armed before anything else: if the parent is gone already, the channel reports it.
    rustix::process::set_parent_process_death_signal(Some(Signal::KILL)).unwrap();
    // SAFETY: the number was inherited for this, and this is the only call.
    let channel = unsafe { Channel::from_number(number.parse().unwrap()) }.unwrap();
    let (job, segments) = channel.recv(LIMIT).unwrap();
    let word = |at: usize| u32::from_le_bytes(job[at..at + 4].try_into().unwrap());
    let control_bytes = u64::from_le_bytes(job[8..16].try_into().unwrap()) as usize;
    if job[16] == 1 {
        stay_on_first_core();
    }
    let [control, data] = segments.try_into().unwrap();
    let control = Control::attach(control, control_bytes).unwrap();
    let data = Segment::attach(data, DATA_BYTES, Access::ReadWrite).unwrap();
    channel.send(&inherited_sockets(&channel), &[]).unwrap();
    let answer = match take_turns(&control, &data, word(0) as usize, word(4)) {
        Ok(()) => "done".to_owned(),
        Err(error) => error.to_string(),
    };
    control.worker(word(0) as usize).set_state(WorkerState::Exit);
    channel.send(answer.as_bytes(), &[]).unwrap();
}

/// Takes turns with the other side. Side 0 begins each round and side 1 ends it; the side whose
/// turn it is owns the data.
fn take_turns(
    control: &Control,
    data: &Segment,
    side: usize,
    rounds: u32,
) -> Result<(), WaitError> {
    let (own, other) = (control.lane(side), control.lane(1 - side));
    control.worker(side).set_state(WorkerState::Run);
    control.barrier().wait(control.poison(), LIMIT)?;
    for round in 1..=rounds {
        own.set_position(Position { instruction: round, ..Position::default() });
        if side == 1 {
            other.timeline.wait_until(round, control.poison(), LIMIT)?;
        }
        // SAFETY: the timelines hand the turn from side to side, and it is this side's now.
        unsafe { data.slice_mut::<u64>(0, 1)[0] += 1 };
        own.timeline.signal();
        if side == 0 {
            other.timeline.wait_until(round, control.poison(), LIMIT)?;
        }
    }
    if side == 0 {
        control.steps().signal();
    }
    Ok(())
}

fn stay_on_first_core() {
    let allowed = rustix::thread::sched_getaffinity(None).unwrap();
    let first = (0..rustix::thread::CpuSet::MAX_CPU).find(|core| allowed.is_set(*core)).unwrap();
    let mut only = rustix::thread::CpuSet::new();
    only.set(first);
    rustix::thread::sched_setaffinity(None, &only).unwrap();
}

/// Returns the inode numbers of all open sockets of this process.
fn inherited_sockets(channel: &Channel) -> Vec<u8> {
    let mut inodes = Vec::new();
    for entry in std::fs::read_dir("/proc/self/fd").unwrap() {
        // An entry may have vanished, such as the directory's own.
        let Ok(link) = std::fs::read_link(entry.unwrap().path()) else { continue };
        let name = link.to_string_lossy().into_owned();
        if let Some(inode) = name.strip_prefix("socket:[").and_then(|name| name.strip_suffix(']')) {
            inodes.extend(inode.parse::<u64>().unwrap().to_le_bytes());
        }
    }
    assert!(inodes.len() >= 8, "at least descriptor {} is a socket", channel.as_fd().as_raw_fd());
    inodes
}
