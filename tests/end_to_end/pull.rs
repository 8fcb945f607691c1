//! Tests of `coordinator pull` from a stand-in for a hub on this machine.

use std::io::{BufRead, BufReader, Write};
use std::net::{TcpListener, TcpStream};
use std::path::{Path, PathBuf};
use std::process::{Command, Output, Stdio};
use std::sync::{Arc, Mutex};

use serde_json::{Value, json};
use sha2::{Digest, Sha256};

use crate::command::{Place, coordinator, finish, fixture, text};

const NAME: &str = "org/llama";
const COMMIT: &str = "0123456789abcdef0123456789abcdef01234567";

/// A hub with one repository.
struct Hub {
    address: String,
    state: Arc<State>,
}

struct State {
    folder: PathBuf,
    /// Bytes of weights after which connections are closed; `u64::MAX` for never.
    cut_at: Mutex<u64>,
    lie: Mutex<Lie>,
    /// Address of another hub, to which weights are redirected.
    elsewhere: Mutex<Option<String>>,
    /// Target and token of each request.
    asked: Mutex<Vec<(String, Option<String>)>>,
    /// Start offset of each answer with weights.
    starts: Mutex<Vec<u64>>,
}

/// A false reply of a hub.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
enum Lie {
    #[default]
    Nothing,
    /// The weights differ in one byte from the list.
    Bytes,
    /// The weights continue after their size, in an answer without a length.
    Longer,
    Etag(String),
    /// Commit of the list.
    Commit(String),
    /// Commit in the header of a file.
    CommitHeader(String),
    /// Name of a file in the list.
    Name(String),
    /// Size of the weights in the list.
    Size(u64),
}

impl Hub {
    fn start() -> Hub {
        let listener = TcpListener::bind("127.0.0.1:0").expect("a port");
        let address = format!("http://{}", listener.local_addr().expect("an address"));
        let state = Arc::new(State {
            folder: fixture("llama"),
            cut_at: Mutex::new(u64::MAX),
            lie: Mutex::default(),
            elsewhere: Mutex::default(),
            asked: Mutex::default(),
            starts: Mutex::default(),
        });
        let (shared, own) = (state.clone(), address.clone());
        std::thread::spawn(move || {
            for stream in listener.incoming().flatten() {
                let (state, own) = (shared.clone(), own.clone());
                std::thread::spawn(move || state.answer(stream, &own));
            }
        });
        Hub { address, state }
    }

    fn pull(&self, place: &Place, options: &[&str]) -> Output {
        let mut command = at(&self.address, place);
        command.args(["pull", NAME]).args(options);
        finish(command.stdout(Stdio::piped()).stderr(Stdio::piped()).spawn().expect("starts"))
    }
}

fn at(endpoint: &str, place: &Place) -> Command {
    let mut command = coordinator();
    command.env("HF_ENDPOINT", endpoint).env("HF_HOME", place.path("home"));
    command.env_remove("HF_HUB_CACHE").env_remove("HF_TOKEN");
    for proxy in ["http_proxy", "HTTP_PROXY", "all_proxy", "ALL_PROXY"] {
        command.env_remove(proxy);
    }
    command
}

impl State {
    /// Answers the requests of a connection until it is closed.
    fn answer(&self, stream: TcpStream, own: &str) {
        let mut reader = BufReader::new(stream.try_clone().expect("a socket"));
        loop {
            let (mut target, mut from, mut token) = (String::new(), None, None);
            let mut line = String::new();
            while reader.read_line(&mut line).is_ok_and(|read| read > 0) && line.trim() != "" {
                match line.trim().split_once(' ') {
                    Some(("GET", rest)) => {
                        rest.split(' ').next().unwrap_or_default().clone_into(&mut target);
                    }
                    Some((name, value)) if name.eq_ignore_ascii_case("authorization:") => {
                        token = Some(value.to_owned());
                    }
                    Some((name, value)) if name.eq_ignore_ascii_case("range:") => {
                        let range = value.trim_start_matches("bytes=");
                        let start = range.split('-').next().and_then(|start| start.parse().ok());
                        from = start.map(|start: u64| (start, range.ends_with("-0")));
                    }
                    _ => {}
                }
                line.clear();
            }
            self.asked.lock().expect("whole").push((target.clone(), token));
            if target.is_empty() || !self.reply(&stream, own, &target, from) {
                return;
            }
        }
    }

    /// Sends a reply; returns true if the connection stays open.
    fn reply(
        &self,
        stream: &TcpStream,
        own: &str,
        target: &str,
        from: Option<(u64, bool)>,
    ) -> bool {
        let list = format!("/api/models/{NAME}/revision/main?blobs=true");
        if target == list {
            return send(stream, "200 OK", "", self.listing().to_string().as_bytes());
        }
        let beside = target.strip_prefix("/beside/");
        let name = target.strip_prefix(&format!("/{NAME}/resolve/main/")).or(beside);
        let Some(name) = name.filter(|name| self.folder.join(name).is_file()) else {
            return send(stream, "404 Not Found", "", b"");
        };
        let mut bytes = std::fs::read(self.folder.join(name)).expect("a file");
        let is_weights = name.ends_with(".safetensors");
        let sum = sha256(&bytes);
        let lie = self.lie.lock().expect("whole").clone();
        let (commit, etag) = match &lie {
            Lie::CommitHeader(commit) => (&**commit, &sum),
            Lie::Etag(etag) => (COMMIT, etag),
            _ => (COMMIT, &sum),
        };
        let mut head = format!("x-repo-commit: {commit}\r\netag: \"{etag}\"\r\n");
        if is_weights && beside.is_none() {
            let elsewhere = self.elsewhere.lock().expect("whole").clone();
            let at = elsewhere.unwrap_or_else(|| own.to_owned());
            head += &format!("x-linked-etag: \"{etag}\"\r\nLocation: {at}/beside/{name}\r\n");
            return send(stream, "302 Found", &head, b"");
        }
        let (start, only_one) = from.unwrap_or((0, false));
        let total = bytes.len();
        if start as usize >= total {
            return send(stream, "416 Range Not Satisfiable", "", b"");
        }
        if is_weights && lie == Lie::Longer {
            bytes.resize(total + (1 << 20), 0);
            let mut stream = stream;
            let _ = stream
                .write_all(b"HTTP/1.1 200 OK\r\n\r\n")
                .and_then(|()| stream.write_all(&bytes));
            return false;
        }
        if is_weights && lie == Lie::Bytes {
            *bytes.last_mut().expect("weights") ^= 1;
        }
        let end = if only_one { start as usize + 1 } else { total };
        head += &format!("Content-Range: bytes {start}-{}/{total}\r\n", end - 1);
        let part = &bytes[start as usize..end];
        if !is_weights || only_one {
            return send(stream, "206 Partial Content", &head, part);
        }
        self.starts.lock().expect("whole").push(start);
        let cut_at = self.cut_at.lock().expect("whole").min(part.len() as u64) as usize;
        head += &format!("Content-Length: {}\r\n\r\n", part.len());
        let mut stream = stream;
        let _ = stream.write_all(format!("HTTP/1.1 206 Partial Content\r\n{head}").as_bytes());
        let _ = stream.write_all(&part[..cut_at]);
        let goes_on = cut_at == part.len();
        if !goes_on {
            let _ = stream.shutdown(std::net::Shutdown::Both);
        }
        goes_on
    }

    fn listing(&self) -> Value {
        let files = std::fs::read_dir(&self.folder).expect("a fixture").flatten();
        let lie = self.lie.lock().expect("whole").clone();
        let entry = |mut name: String| {
            let bytes = std::fs::read(self.folder.join(&name)).expect("a file");
            let mut size_bytes = bytes.len() as u64;
            let is_weights = name.ends_with(".safetensors");
            match &lie {
                Lie::Name(lie) if is_weights => name.clone_from(lie),
                Lie::Size(lie) if is_weights => size_bytes = *lie,
                _ => {}
            }
            let mut entry = json!({"rfilename": name, "size": size_bytes});
            if is_weights {
                entry["lfs"] = json!({"sha256": sha256(&bytes), "size": bytes.len()});
            }
            entry
        };
        let names = files.map(|file| file.file_name().to_string_lossy().into_owned());
        let commit = if let Lie::Commit(commit) = &lie { commit } else { COMMIT };
        json!({"sha": commit, "siblings": names.map(entry).collect::<Vec<_>>()})
    }
}

fn send(mut stream: &TcpStream, status: &str, head: &str, body: &[u8]) -> bool {
    let head = format!("HTTP/1.1 {status}\r\n{head}Content-Length: {}\r\n\r\n", body.len());
    stream.write_all(head.as_bytes()).and_then(|()| stream.write_all(body)).is_ok()
}

fn sha256(bytes: &[u8]) -> String {
    Sha256::digest(bytes).iter().map(|byte| format!("{byte:02x}")).collect()
}

fn weights_bytes() -> u64 {
    std::fs::metadata(fixture("llama").join("model.safetensors")).expect("weights").len()
}

#[test]
fn a_pulled_model_answers_without_the_hub() {
    let (hub, place) = (Hub::start(), Place::new());
    let done = hub.pull(&place, &[]);
    assert!(done.status.success(), "{}", text(&done.stderr));
    let folder = text(&done.stdout);
    let pulled = Path::new(folder.trim());
    for name in ["config.json", "model.safetensors"] {
        let same = std::fs::read(pulled.join(name)).ok()
            == std::fs::read(fixture("llama").join(name)).ok();
        assert!(same, "{name}");
    }
    let again = hub.pull(&place, &[]);
    assert!(text(&again.stderr).contains("are present"), "{}", text(&again.stderr));
    assert_eq!(hub.state.starts.lock().expect("whole").len(), 1, "nothing is fetched twice");
    std::fs::write(place.path("in.jsonl"), "{\"prompt\": [5, 6, 7], \"max_tokens\": 4}\n")
        .expect("a file");
    let mut command = at("http://127.0.0.1:9", &place);
    command.args(["--model", NAME, "--quiet", "--input"]).arg(place.path("in.jsonl"));
    let answered =
        finish(command.stdout(Stdio::piped()).stderr(Stdio::piped()).spawn().expect("starts"));
    assert!(answered.status.success(), "{}", text(&answered.stderr));
    assert!(text(&answered.stdout).contains("\"error\":null"), "{}", text(&answered.stdout));
}

#[test]
fn a_fetch_goes_on_where_it_ended() {
    let (hub, place) = (Hub::start(), Place::new());
    let piece = weights_bytes() / 8;
    *hub.state.cut_at.lock().expect("whole") = piece;
    let cut = hub.pull(&place, &["--quiet"]);
    assert_eq!(cut.status.code(), Some(1));
    assert!(text(&cut.stderr).contains("to resume"), "{}", text(&cut.stderr));
    let fetched = hub.state.starts.lock().expect("whole").len() as u64;
    *hub.state.cut_at.lock().expect("whole") = u64::MAX;
    let whole = hub.pull(&place, &["--quiet"]);
    assert!(whole.status.success(), "{}", text(&whole.stderr));
    let starts = hub.state.starts.lock().expect("whole").clone();
    assert_eq!(starts.last().copied(), Some(fetched * piece), "{starts:?}");
}

#[test]
fn a_part_with_all_bytes_does_not_stand_in_the_way() {
    let (hub, place) = (Hub::start(), Place::new());
    let weights = std::fs::read(fixture("llama").join("model.safetensors")).expect("weights");
    let blobs = place.path("home/hub/models--org--llama/blobs");
    std::fs::create_dir_all(&blobs).expect("a folder");
    std::fs::write(blobs.join(format!("{}.part", sha256(&weights))), &weights).expect("a file");
    let whole = hub.pull(&place, &["--quiet"]);
    assert!(whole.status.success(), "{}", text(&whole.stderr));
}

#[test]
fn what_came_damaged_is_removed() {
    let (hub, place) = (Hub::start(), Place::new());
    *hub.state.lie.lock().expect("whole") = Lie::Bytes;
    let damaged = hub.pull(&place, &["--quiet"]);
    assert_eq!(damaged.status.code(), Some(1));
    assert!(text(&damaged.stderr).contains("damaged in transit"), "{}", text(&damaged.stderr));
    *hub.state.lie.lock().expect("whole") = Lie::Nothing;
    let whole = hub.pull(&place, &["--quiet"]);
    assert!(whole.status.success(), "{}", text(&whole.stderr));
}

#[test]
fn what_cannot_be_had_is_said() {
    let (hub, place) = (Hub::start(), Place::new());
    let none = hub.pull(&place, &["--revision", "v2"]);
    assert!(text(&none.stderr).contains("no org/llama at revision v2"), "{}", text(&none.stderr));
    let none = hub.pull(&place, &["--file", "b.gguf"]);
    assert_eq!(none.status.code(), Some(2));
    assert!(text(&none.stderr).contains("has no b.gguf"), "{}", text(&none.stderr));
    let mut command = at("http://127.0.0.1:9", &place);
    command.args(["pull", NAME]).stderr(Stdio::piped()).stdout(Stdio::null());
    let away = finish(command.spawn().expect("starts"));
    assert!(text(&away.stderr).contains("cannot be reached"), "{}", text(&away.stderr));
    let mut command = at(&hub.address, &place);
    command.args(["pull", "llama"]).stderr(Stdio::piped()).stdout(Stdio::null());
    assert_eq!(finish(command.spawn().expect("starts")).status.code(), Some(2));
}

#[test]
fn nothing_that_a_hub_says_leads_out_of_the_cache() {
    let (hub, place) = (Hub::start(), Place::new());
    let victim = place.path("victim");
    std::fs::write(&victim, "mine").expect("a file");
    let up = format!("{}{}", "../".repeat(40), &victim.display().to_string()[1..]);
    let free_bytes = 1 << 43;
    for (lie, sentence) in [
        (Lie::Etag(up.clone()), "which is not a hash"),
        (Lie::Commit(up.clone()), "which is not a hash"),
        (Lie::CommitHeader(up.clone()), "which is not a hash"),
        (Lie::CommitHeader("d".repeat(40)), "has changed during the download"),
        (Lie::Name(format!("model/{up}.safetensors.json")), "has neither"),
        (Lie::Name(format!("x/{up}.gguf")), "not a path below a folder"),
        (Lie::Name(format!("{}.gguf", victim.display())), "not a path below a folder"),
        (Lie::Name("model\u{1b}[2J.safetensors".to_owned()), "not a path below a folder"),
        (Lie::Size(u64::MAX), "no more than 16 TiB"),
        (Lie::Size(free_bytes), "remain to be fetched, but the disk"),
        (Lie::Size(3), "with a size other than"),
        (Lie::Longer, "with a size other than"),
    ] {
        *hub.state.lie.lock().expect("whole") = lie.clone();
        let done = hub.pull(&place, &["--quiet"]);
        let said = text(&done.stderr);
        assert!(matches!(done.status.code(), Some(1 | 2)), "{lie:?}: {said}");
        assert!(said.contains(sentence), "{lie:?}: {said}");
        assert!(!said.contains('\u{1b}'), "{said:?}");
        assert_eq!(std::fs::read(&victim).expect("there"), b"mine", "{lie:?}");
    }
    let mut names: Vec<_> =
        std::fs::read_dir(place.path("")).expect("a folder").flatten().collect();
    names.sort_by_key(std::fs::DirEntry::file_name);
    let names: Vec<_> = names.iter().map(std::fs::DirEntry::file_name).collect();
    assert_eq!(names, ["home", "victim"]);
    let blobs = place.path("home/hub/models--org--llama/blobs");
    let kept = std::fs::read_dir(blobs).expect("a folder").flatten();
    let most_bytes = kept.map(|file| file.metadata().expect("a file").len()).max();
    assert!(most_bytes <= Some(weights_bytes()), "no more than was said is kept");
}

#[test]
fn the_token_stays_with_the_hub() {
    let (hub, other, place) = (Hub::start(), Hub::start(), Place::new());
    let pull = || {
        let mut command = at(&hub.address, &place);
        command.args(["pull", NAME]).env("HF_TOKEN", "hf_secret").stderr(Stdio::piped());
        let done = finish(command.stdout(Stdio::piped()).spawn().expect("starts"));
        assert!(done.status.success(), "{}", text(&done.stderr));
    };
    let asked = |hub: &Hub| std::mem::take(&mut *hub.state.asked.lock().expect("whole"));
    pull();
    let own = asked(&hub);
    assert!(own.iter().any(|(target, _)| target.starts_with("/beside/")), "{own:?}");
    let is_given = |(target, token): &(String, Option<String>)| {
        target.is_empty() || token.as_deref() == Some("Bearer hf_secret")
    };
    assert!(own.iter().all(is_given), "{own:?}");
    std::fs::remove_dir_all(place.path("home")).expect("a folder");
    *hub.state.elsewhere.lock().expect("whole") = Some(other.address.clone());
    pull();
    let theirs = asked(&other);
    assert!(theirs.iter().any(|(target, _)| target.starts_with("/beside/")), "{theirs:?}");
    assert!(theirs.iter().all(|(_, token)| token.is_none()), "{theirs:?}");
    assert!(asked(&hub).iter().all(is_given));
}

#[test]
fn links_in_the_cache_are_those_of_its_layout() {
    let (hub, place) = (Hub::start(), Place::new());
    let repository = place.path("home/hub/models--org--llama");
    let outside = place.path("outside");
    let again = || {
        let _ = std::fs::remove_dir_all(&repository);
        let _ = std::fs::remove_dir_all(&outside);
        std::fs::create_dir_all(repository.join("blobs")).expect("a folder");
        std::fs::create_dir_all(&outside).expect("a folder");
        std::fs::write(outside.join("victim"), "mine").expect("a file");
    };
    let weights = std::fs::read(fixture("llama").join("model.safetensors")).expect("weights");
    let sum = sha256(&weights);
    let snapshot = format!("snapshots/{COMMIT}");
    for (link, target) in [
        (format!("blobs/{sum}"), "../../../../outside/victim"),
        (format!("blobs/{sum}.part"), "../../../../outside/victim"),
        (format!("blobs/{sum}.part"), "../../../../outside/new"),
        ("snapshots".to_owned(), "../../../outside"),
        (snapshot.clone(), "../../../../outside"),
        ("refs".to_owned(), "../../../outside"),
    ] {
        again();
        let at = repository.join(&link);
        std::fs::create_dir_all(at.parent().expect("a folder")).expect("a folder");
        std::os::unix::fs::symlink(target, &at).expect("a link");
        let done = hub.pull(&place, &["--quiet"]);
        assert_eq!(done.status.code(), Some(1), "{link}: {}", text(&done.stderr));
        let names: Vec<_> = std::fs::read_dir(&outside).expect("a folder").flatten().collect();
        assert_eq!(names.len(), 1, "{link}: {names:?}");
        assert_eq!(std::fs::read(outside.join("victim")).expect("there"), b"mine", "{link}");
    }
    // A file of a snapshot is linked again, and a revision written again.
    again();
    std::fs::create_dir_all(repository.join(&snapshot)).expect("a folder");
    std::fs::create_dir_all(repository.join("refs")).expect("a folder");
    let pointer = repository.join(&snapshot).join("model.safetensors");
    for link in [&pointer, &repository.join("refs/main")] {
        std::os::unix::fs::symlink(outside.join("victim"), link).expect("a link");
    }
    let done = hub.pull(&place, &["--quiet"]);
    assert!(done.status.success(), "{}", text(&done.stderr));
    let blob = format!("../../blobs/{sum}");
    assert_eq!(std::fs::read_link(&pointer).expect("a link"), Path::new(&blob));
    assert!(std::fs::read(&pointer).expect("weights") == weights);
    assert_eq!(std::fs::read(repository.join("refs/main")).expect("there"), COMMIT.as_bytes());
    assert_eq!(std::fs::read(outside.join("victim")).expect("there"), b"mine");
}
