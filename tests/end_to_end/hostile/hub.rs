//! Tests of `coordinator pull` from a hub whose replies are false in every way: nothing outside of
//! the repository's directory changes, the token is sent to no other server, and the command ends
//! with a sentence.

use std::collections::BTreeMap;
use std::io::{BufRead, BufReader, Read, Write};
use std::net::{TcpListener, TcpStream};
use std::path::{Path, PathBuf};
use std::process::Stdio;
use std::sync::{Arc, Mutex};

use serde_json::{Value, json};
use sha2::{Digest, Sha256};

use super::mutate::{self, Random};
use super::{DEFECTS, from_environment};
use crate::command::{Place, coordinator, finish, text};

/// Default number of hubs; each takes a process and its connections.
const CASES: u64 = 100;
/// Divisor that gives the number of hubs from the requested number of cases.
const SHARE: u64 = 20;
/// Digit of which the commit consists.
const COMMIT: &str = "c";
const TOKEN: &str = "hf_secret";
/// Bytes that a hub sends of a file that is larger than announced.
const ENDLESS_BYTES: usize = 4 << 20;

/// Replies of a hub in one case.
#[derive(Debug, Default, Clone)]
struct Lies {
    list: Vec<u8>,
    /// `None` for the correct status.
    status: Option<u16>,
    etag: String,
    commit: String,
    location: Option<String>,
    body: Vec<u8>,
    content_range: Option<String>,
    content_length: Option<String>,
}

/// Answers every request with [`Lies`], and records if a request had the token.
struct Server {
    address: String,
    lies: Arc<Mutex<Lies>>,
    given_token: Arc<Mutex<bool>>,
}

impl Server {
    fn start() -> Server {
        let listener = TcpListener::bind("127.0.0.1:0").expect("a port");
        let address = listener.local_addr().expect("an address").to_string();
        let (lies, given_token) = (Arc::<Mutex<Lies>>::default(), Arc::<Mutex<bool>>::default());
        let (shared, token) = (lies.clone(), given_token.clone());
        std::thread::spawn(move || {
            for stream in listener.incoming().flatten() {
                let lies = shared.lock().expect("whole").clone();
                if answer(stream, &lies).is_some_and(|has_token| has_token) {
                    *token.lock().expect("whole") = true;
                }
            }
        });
        Server { address, lies, given_token }
    }
}

/// Answers a request; returns true if it had the token.
fn answer(mut stream: TcpStream, lies: &Lies) -> Option<bool> {
    let (mut is_list, mut has_token) = (false, false);
    let mut reader = BufReader::new(stream.try_clone().ok()?).take(1 << 16);
    let mut line = String::new();
    while reader.read_line(&mut line).ok()? > 0 && !line.trim().is_empty() {
        is_list |= line.starts_with("GET /api/");
        has_token |= line.contains(TOKEN);
        line.clear();
    }
    let head = if is_list {
        format!("HTTP/1.1 200 OK\r\nContent-Length: {}\r\n", lies.list.len())
    } else {
        let mut head = format!("HTTP/1.1 {} x\r\n", lies.status.unwrap_or(200));
        head += &format!("ETag: {}\r\nX-Repo-Commit: {}\r\n", lies.etag, lies.commit);
        for (name, value) in [
            ("Location", &lies.location),
            ("Content-Range", &lies.content_range),
            ("Content-Length", &lies.content_length),
        ] {
            if let Some(value) = value {
                head += &format!("{name}: {value}\r\n");
            }
        }
        head
    };
    let body = if is_list { &lies.list } else { &lies.body };
    let _ = stream.write_all(format!("{head}Connection: close\r\n\r\n").as_bytes());
    // The client may close the connection before everything is sent.
    let _ = stream.write_all(body);
    Some(has_token)
}

/// Returns a string that is not a name, hash or number, or only looks like one.
fn hostile(random: &mut Random, victim: &Path) -> String {
    let up = "../".repeat(1 + random.below(12));
    match random.below(14) {
        0 => format!("{up}{}", victim.display().to_string().trim_start_matches('/')),
        1 => victim.display().to_string(),
        2 => "../../victim/file".to_owned(),
        3 => format!("{}/../../{}", "a".repeat(40), "b".repeat(40)),
        4 => "\u{1b}]0;owned\u{7}\u{9b}2J".to_owned(),
        5 => "x".repeat(1 << random.below(14)),
        6 => String::new(),
        7 => "..".to_owned(),
        8 => "a\u{0}b".to_owned(),
        9 => format!("W/\"{}\"", "e".repeat(63)),
        10 => "é".repeat(20),
        11 => "%2e%2e%2f%2e%2e%2fvictim".to_owned(),
        12 => "-1".to_owned(),
        _ => "a//b/./c".to_owned(),
    }
}

fn hash(content: &[u8]) -> String {
    Sha256::digest(content).iter().map(|byte| format!("{byte:02x}")).collect()
}

/// Returns a list of files, most of which have `content`.
fn list(random: &mut Random, victim: &Path, content: &[u8]) -> Vec<u8> {
    let commit = match random.below(5) {
        0 => hostile(random, victim),
        _ => COMMIT.repeat(40),
    };
    let mut siblings: Vec<Value> = ["config.json", "model.safetensors", "x/y.gguf"]
        .iter()
        .map(|name| {
            let mut file = json!({"rfilename": name, "size": content.len()});
            if random.below(2) == 0 {
                file["lfs"] = json!({"sha256": hash(content)});
            }
            file
        })
        .collect();
    for _ in 0..random.below(3) {
        let bad = hostile(random, victim);
        let number = random.below(siblings.len());
        match random.below(6) {
            0 => siblings[number]["rfilename"] = format!("{bad}.gguf").into(),
            1 => siblings = vec![json!({"rfilename": format!("{bad}/m.gguf"), "size": 3})],
            2 => siblings[number]["blobId"] = bad.into(),
            3 => siblings[number]["lfs"] = json!({"sha256": bad}),
            4 => siblings[number]["size"] = random.next().into(),
            _ => siblings[number]["rfilename"] = "a-00001-of-99999.gguf".into(),
        }
    }
    let mut list = json!({"sha": commit, "siblings": siblings});
    if random.below(6) == 0 {
        mutate::json(&mut list, random);
    }
    let mut list = list.to_string().into_bytes();
    if random.below(8) == 0 {
        mutate::bytes(&mut list, random);
    }
    list
}

/// Returns the replies of a hub in one case; `other` is the address of another server.
fn lies(random: &mut Random, victim: &Path, other: &str) -> Lies {
    let content = b"{\"not\": \"a model\"}".to_vec();
    let list = list(random, victim, &content);
    let mut lies = Lies { list, body: content, commit: COMMIT.repeat(40), ..Lies::default() };
    lies.etag = format!("\"{}\"", hash(&lies.body));
    lies.content_length = Some(lies.body.len().to_string());
    match random.below(12) {
        0 | 1 => lies.etag = hostile(random, victim),
        2 => lies.commit = hostile(random, victim),
        3 | 4 => {
            let locations = [
                format!("http://{other}/x"),
                format!("//{other}/x"),
                "/again".to_owned(),
                format!("file://{}", victim.display()),
                format!("http://user@{other}/"),
                hostile(random, victim),
            ];
            lies.status = Some(*random.pick(&[301, 302, 303, 307, 308]));
            lies.location = Some(random.pick(&locations).clone());
            lies.content_length = Some("0".to_owned());
            lies.body.clear();
        }
        // Longer than announced, with a wrong length, or with other bytes than announced.
        5 => (lies.content_length, lies.body) = (None, vec![b'x'; ENDLESS_BYTES]),
        6 => lies.content_length = Some(random.next().to_string()),
        7 => lies.body.iter_mut().for_each(|byte| *byte ^= 1),
        8 => {
            lies.status = Some(206);
            lies.content_range = Some(format!("bytes {}-9/{}", random.next(), random.next()));
        }
        9 => lies.status = Some(*random.pick(&[204, 304, 401, 403, 404, 418])),
        _ => {}
    }
    // Line breaks would end a header within its value.
    for value in [&mut lies.etag, &mut lies.commit].into_iter().chain(&mut lies.location) {
        value.retain(|c| !matches!(c, '\r' | '\n'));
    }
    lies
}

/// Collects everything in a directory except `but`: targets of links and contents of files.
fn tree(folder: &Path, but: &Path, found: &mut BTreeMap<PathBuf, Vec<u8>>) {
    for entry in std::fs::read_dir(folder).expect("a folder").flatten() {
        let (path, kind) = (entry.path(), entry.file_type().expect("a kind"));
        if path == but {
            continue;
        }
        if kind.is_dir() {
            found.insert(path.clone(), Vec::new());
            tree(&path, but, found);
        } else if kind.is_symlink() {
            let target = std::fs::read_link(&path).expect("a link");
            found.insert(path, target.to_string_lossy().into_owned().into_bytes());
        } else {
            let content = std::fs::read(&path).expect("a file");
            found.insert(path, content);
        }
    }
}

/// Asserts that every entry of the repository's directory belongs to the cache's layout, and that
/// no link leads out of it.
fn assert_layout(repository: &Path) {
    let mut found = BTreeMap::new();
    if repository.exists() {
        tree(repository, Path::new(""), &mut found);
    }
    for (path, content) in found {
        let inner = path.strip_prefix(repository).expect("below it");
        let first = inner.components().next().expect("a name").as_os_str().to_string_lossy();
        assert!(matches!(&*first, "blobs" | "snapshots" | "refs"), "{}", inner.display());
        assert!(content.len() <= ENDLESS_BYTES, "{}", inner.display());
        if path.is_symlink() {
            assert_eq!(first, "snapshots", "{}", inner.display());
            let target = path.canonicalize().expect("a blob");
            let root = repository.canonicalize().expect("a folder");
            assert!(target.starts_with(root.join("blobs")), "{}", target.display());
        }
    }
}

#[test]
fn hubs_that_lie() {
    let cases = from_environment("TANDEM_FUZZ_CASES").map_or(CASES, |cases| cases.div_ceil(SHARE));
    let mut random = Random(from_environment("TANDEM_FUZZ_SEED").unwrap_or(1));
    let (hub, other) = (Server::start(), Server::start());
    let place = Place::new();
    let victim = place.path("victim/file");
    std::fs::create_dir_all(place.path("victim")).expect("writable");
    std::fs::create_dir_all(place.path("home/hub")).expect("writable");
    std::fs::write(&victim, "mine\n").expect("writable");
    let repository = place.path("home/hub/models--org--name");
    let outside = || {
        let mut found = BTreeMap::new();
        tree(&place.path(""), &repository, &mut found);
        found
    };
    let before = outside();
    for _ in 0..cases {
        let seed = random.0;
        let lies = lies(&mut random, &victim, &other.address);
        *hub.lies.lock().expect("whole") = lies.clone();
        *other.lies.lock().expect("whole") = Lies { location: None, status: None, ..lies };
        let _ = std::fs::remove_dir_all(&repository);
        let mut command = coordinator();
        command.env("HF_ENDPOINT", format!("http://{}", hub.address)).env("HF_TOKEN", TOKEN);
        command.env("HF_HOME", place.path("home")).env_remove("HF_HUB_CACHE");
        for proxy in ["http_proxy", "HTTP_PROXY", "all_proxy", "ALL_PROXY"] {
            command.env_remove(proxy);
        }
        command.args(["pull", "org/name"]).stdout(Stdio::piped()).stderr(Stdio::piped());
        let done = finish(command.spawn().expect("starts"));
        let said = text(&done.stderr) + &text(&done.stdout);
        let code = done.status.code();
        assert!(matches!(code, Some(0..=2)), "seed {seed}: {:?}: {said}", done.status);
        assert!(!said.trim().is_empty(), "seed {seed}: an end without a word");
        assert!(said.len() < 20_000, "seed {seed}: {} bytes of words", said.len());
        for defect in DEFECTS.iter().chain(&[TOKEN]) {
            assert!(!said.contains(defect), "seed {seed}: {said}");
        }
        let controls = |c: char| c.is_control() && !matches!(c, '\n' | '\t');
        assert!(!said.contains(controls), "seed {seed}: {said:?}");
        assert!(outside() == before, "seed {seed}: something else was changed: {said}");
        assert_layout(&repository);
        assert!(!*other.given_token.lock().expect("whole"), "seed {seed}: the token left the hub");
    }
    assert!(*hub.given_token.lock().expect("whole"), "the hub itself is given the token");
}
