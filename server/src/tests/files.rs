//! Uploads, and what is stored of them.

use std::os::unix::fs::PermissionsExt;
use std::time::Duration;

use serde_json::Value;

use super::batch_client::{
    BATCHES, FILES, create, form, post_form, send, server, storage, upload, wait_for,
};
use super::fake_engine::FakeEngineOptions;
use super::http::{exchange, request};
use super::test_server::TestServer;

fn folder() -> tempfile::TempDir {
    tempfile::tempdir().expect("a folder")
}

fn names(folder: &tempfile::TempDir) -> Vec<String> {
    let entries = std::fs::read_dir(folder.path()).expect("readable").flatten();
    let names = entries.map(|entry| entry.file_name().to_string_lossy().into_owned());
    let mut names: Vec<String> = names.filter(|name| name != "lock").collect();
    names.sort();
    names
}

#[test]
fn a_file_is_stored_listed_read_and_deleted() {
    let folder = folder();
    let server = server(folder.path(), Duration::ZERO);
    // Several times what is written at a time, with bytes like those of boundaries.
    let content: Vec<u8> =
        (0..700_000_u32).map(|i| b"\r\n--X{}"[(i % 1000 * i % 7) as usize]).collect();
    let fields = [("purpose", "batch")];
    let reply = post_form(&server, &form(&fields, Some(("m\u{fc}ll.jsonl", &content))));
    assert_eq!(reply.status, 200, "{}", reply.text());
    let file = reply.json();
    assert_eq!((&file["object"], &file["purpose"]), (&"file".into(), &"batch".into()));
    assert_eq!(file["filename"], "m\u{fc}ll.jsonl");
    assert_eq!(file["bytes"], content.len());
    let id = file["id"].as_str().expect("an id");
    assert_eq!(server.get(&format!("{FILES}/{id}")).json(), file);
    let reply = server.get(&format!("/files/{id}/content"));
    assert_eq!(reply.body, content);
    assert_eq!(reply.header("content-length"), Some(content.len().to_string()));
    for name in names(&folder) {
        let metadata = folder.path().join(&name).metadata().expect("there");
        assert_eq!(metadata.permissions().mode() & 0o777, 0o600, "{name}");
    }
    let deleted = send(&server, "DELETE", &format!("{FILES}/{id}")).json();
    assert_eq!((&deleted["id"], &deleted["deleted"]), (&id.into(), &true.into()));
    let reply = server.get(&format!("{FILES}/{id}"));
    assert_eq!(reply.status, 404);
    assert!(reply.text().contains("No such File object: file-"), "{}", reply.text());
    assert!(names(&folder).is_empty());
}

#[test]
fn lists_have_pages_and_survive_a_restart() {
    let folder = folder();
    let server_1 = server(folder.path(), Duration::ZERO);
    let ids: Vec<String> = (0..5).map(|i| upload(&server_1, format!("{i}").as_bytes())).collect();
    drop(server_1);
    let server = server(folder.path(), Duration::ZERO);
    let page = |query: &str| {
        let reply = server.get(&format!("{FILES}{query}"));
        assert_eq!(reply.status, 200, "{}", reply.text());
        reply.json()
    };
    let listed = |page: &Value| -> Vec<String> {
        let data = page["data"].as_array().expect("a list");
        data.iter().map(|file| file["id"].as_str().expect("an id").to_owned()).collect()
    };
    assert_eq!(listed(&page("?order=asc")), ids);
    let newest: Vec<String> = ids.iter().rev().cloned().collect();
    assert_eq!(listed(&page("")), newest);
    let first = page("?limit=2&purpose=batch");
    assert_eq!((&first["has_more"], &first["last_id"]), (&true.into(), &ids[3].clone().into()));
    let last = page(&format!("?limit=3&after={}", ids[3]));
    assert_eq!(listed(&last), newest[2..]);
    assert_eq!((&last["has_more"], &last["object"]), (&false.into(), &"list".into()));
    assert!(listed(&page("?purpose=batch_output")).is_empty());
    for query in ["?limit=0", "?limit=x", "?order=up", "?after=file-0"] {
        assert_eq!(server.get(&format!("{FILES}{query}")).status, 400, "{query}");
    }
}

#[test]
fn invalid_uploads_are_refused_and_leave_nothing() {
    let folder = folder();
    let server = server(folder.path(), Duration::ZERO);
    let file = Some(("a.jsonl", b"{}".as_slice()));
    let large = vec![b'x'; (1 << 20) + 1];
    let long = "x".repeat(2000);
    let purpose = ("purpose", "batch");
    let cases = [
        (form(&[], file), 400, "Missing required parameter: 'purpose'."),
        (form(&[("purpose", "fine-tune")], file), 400, "Invalid value: 'fine-tune'. Supported"),
        (form(&[purpose], None), 400, "Missing required parameter: 'file'."),
        (form(&[purpose], Some(("a", b""))), 400, "File is empty."),
        (form(&[purpose], Some(("", b"x"))), 400, "a file with a name"),
        (form(&[purpose], Some(("a", &large))), 413, "The maximum size is 1 MiB."),
        (form(&[purpose, purpose], file), 400, "given once"),
        (form(&[("purpose", long.as_str())], file), 400, "at most 1024 bytes"),
        (form(&[purpose, ("color", "red")], file), 400, "supplied: color."),
        (form(&[purpose, ("expires_after[seconds]", "5")], file), 400, "expires_after"),
    ];
    for (body, status, words) in cases {
        let reply = post_form(&server, &body);
        assert_eq!(reply.status, status, "{}", reply.text());
        assert!(reply.text().contains(words), "{words}: {}", reply.text());
        assert!(reply.json()["error"]["code"].is_string());
    }
    let whole = form(&[("purpose", "batch")], file);
    let torn = post_form(&server, &whole[..whole.len() - 8]);
    assert_eq!(
        (torn.status, torn.json()["error"]["code"].clone()),
        (400, "incomplete_body".into())
    );
    let reply = post_form(&server, b"--XX\r\nno headers\r\n\r\n");
    assert_eq!(reply.json()["error"]["code"], "invalid_multipart");
    let reply = exchange(server.address, &request("POST", FILES, "", &whole));
    assert_eq!(reply.json()["error"]["code"], "invalid_content_type");
    for path in ["/v1/files/..%2flock", "/v1/files/lock", "/v1/files/file-0/content"] {
        assert_eq!(server.get(path).status, 404, "{path}");
    }
    assert_eq!(send(&server, "DELETE", "/v1/files/..%2flock").status, 404);
    assert!(names(&folder).is_empty(), "{:?}", names(&folder));
}

#[test]
fn what_is_stored_is_bounded() {
    let folder = folder();
    let server =
        TestServer::with_options(FakeEngineOptions::default(), storage(folder.path(), 100 << 10));
    let id = upload(&server, &[b'\n'; 60 << 10]);
    let body = form(&[("purpose", "batch")], Some(("b", &[b'\n'; 60 << 10])));
    let reply = post_form(&server, &body);
    assert_eq!(reply.json()["error"]["code"], "storage_limit_exceeded", "{}", reply.text());
    assert_eq!(names(&folder).len(), 2);
    assert_eq!(send(&server, "DELETE", &format!("{FILES}/{id}")).status, 200);
    assert_eq!(post_form(&server, &body).status, 200);
}

#[test]
fn leftovers_of_a_killed_server_are_removed_and_other_files_are_not() {
    let folder = folder();
    let first = server(folder.path(), Duration::ZERO);
    let id = upload(&first, b"{}\n");
    drop(first);
    let digits = "0".repeat(32);
    let orphan = format!("file-{digits}.jsonl");
    let work = format!("batch_{digits}.work.jsonl");
    let sorted = format!(".batch_{digits}.work.jsonl.settling");
    let leftovers = [&orphan, &work, &sorted, ".upload-0123456789abcdef", ".tmp-0123456789abcdef"];
    let foreign = ["notes.jsonl", "file-1.jsonl", ".upload-mine", "batch_1.json"];
    for name in leftovers.iter().copied().chain(foreign) {
        std::fs::write(folder.path().join(name), "x").expect("written");
    }
    let damaged = format!("batch_{digits}.json");
    std::fs::write(folder.path().join(&damaged), "{").expect("written");
    let server = server(folder.path(), Duration::ZERO);
    assert_eq!(server.get(&format!("{FILES}/{id}/content")).text(), "{}\n");
    let mut expected: Vec<String> = foreign.iter().map(|name| (*name).to_owned()).collect();
    expected.extend([format!("{id}.json"), format!("{id}.jsonl"), damaged]);
    expected.sort();
    assert_eq!(names(&folder), expected);
    assert_eq!(server.get(BATCHES).json()["data"], Value::Array(Vec::new()));
}

#[test]
fn a_directory_has_one_server_and_files_in_use_stay() {
    let folder = folder();
    let server = server(folder.path(), Duration::ZERO);
    let error = crate::batches::service::BatchService::open(
        storage(folder.path(), 1 << 20).batch_storage.as_ref().expect("given"),
        crate::batch_metrics::BatchMetrics::default(),
    );
    assert!(error.expect_err("locked").to_string().contains("another server uses it"));
    server.engine.hold(true);
    let file = upload(&server, super::batch_client::lines(1).as_bytes());
    let batch = create(&server, &file, "24h");
    let refused = send(&server, "DELETE", &format!("{FILES}/{file}"));
    assert_eq!(refused.status, 409);
    assert!(refused.text().contains("File is still processing. Check back later"));
    server.engine.hold(false);
    wait_for(&server, &batch, "completed");
    assert_eq!(send(&server, "DELETE", &format!("{FILES}/{file}")).status, 200);
}

#[test]
fn a_server_without_a_directory_says_how_to_have_one() {
    let server = TestServer::new();
    let body = form(&[("purpose", "batch")], Some(("a", b"x")));
    for reply in [
        post_form(&server, &body),
        server.get(FILES),
        server.get("/v1/files/file-0/content"),
        server.get(BATCHES),
        server.post(BATCHES, &Value::Null),
        send(&server, "POST", "/v1/batches/batch_0/cancel"),
    ] {
        assert_eq!(reply.status, 404, "{}", reply.text());
        assert!(reply.text().contains("--store-batches"), "{}", reply.text());
    }
}
