//! Requests that browsers send for pages of other sites.

use serde_json::json;

use super::fake_engine::FakeEngineOptions;
use super::http::{Reply, exchange};
use super::test_server::{COMPLETIONS, TestServer};
use crate::config::ServerOptions;
use crate::cross_site::{AllowedOrigin, CrossSiteRules};

const BODY: &str = r#"{"prompt": "a", "max_tokens": 1}"#;

fn test_server(hosts: Option<Vec<String>>, origins: &[&str]) -> TestServer {
    let origins = origins.iter().map(|origin| AllowedOrigin::parse(origin).expect("an origin"));
    let cross_site = CrossSiteRules { hosts, origins: origins.collect() };
    TestServer::with_options(
        FakeEngineOptions::default(),
        ServerOptions { cross_site, ..ServerOptions::default() },
    )
}

fn send(test_server: &TestServer, method: &str, path: &str, headers: &[&str]) -> Reply {
    let body = if method == "POST" { BODY } else { "" };
    let headers: String = headers.iter().map(|header| format!("{header}\r\n")).collect();
    let length = body.len();
    let head = format!(
        "{method} {path} HTTP/1.1\r\n{headers}Connection: close\r\nContent-Length: {length}\r\n\r\n"
    );
    exchange(test_server.address, format!("{head}{body}").as_bytes())
}

fn post(test_server: &TestServer, headers: &[&str]) -> (u16, String) {
    let reply = send(test_server, "POST", COMPLETIONS, headers);
    let code = reply.json()["error"]["code"].as_str().unwrap_or_default().to_owned();
    (reply.status, code)
}

const OWN: &str = "Host: localhost:8000";
const FORM: &str = "Content-Type: application/x-www-form-urlencoded";

#[test]
fn a_name_that_points_here_is_not_enough() {
    let test_server = test_server(Some(vec!["box.lan".to_owned()]), &[]);
    for host in ["localhost:8000", "127.0.0.1", "[::1]:9", "192.168.1.2:8000", "box.lan:8000"] {
        assert_eq!(post(&test_server, &[&format!("Host: {host}")]).0, 200, "{host}");
    }
    for host in ["evil.example", "evil.example:8000", "localhost.evil.example", ""] {
        let refused = (403, "host_not_allowed".to_owned());
        assert_eq!(post(&test_server, &[&format!("Host: {host}")]), refused, "{host}");
    }
    let absolute = send(&test_server, "GET", "http://evil.example/v1/models", &[OWN]);
    assert_eq!(absolute.status, 403);
    // A server on a non-loopback address allows any name, unless `--allowed-host` is given.
    let any = self::test_server(None, &[]);
    assert_eq!(post(&any, &["Host: evil.example"]).0, 200);
}

#[test]
fn one_host_is_said() {
    let test_server = TestServer::new();
    let refused = (400, "invalid_host".to_owned());
    assert_eq!(post(&test_server, &[]), refused);
    assert_eq!(post(&test_server, &[OWN, OWN]), refused);
    let old = exchange(test_server.address, b"GET /health HTTP/1.0\r\n\r\n");
    assert_eq!(old.status, 200, "HTTP/1.0 has none");
}

#[test]
fn pages_of_other_sites_are_not_answered() {
    let test_server = test_server(Some(Vec::new()), &[]);
    let refused = (403, "origin_not_allowed".to_owned());
    for origin in ["http://evil.example", "http://localhost:3000", "null", "https://localhost"] {
        let origin = format!("Origin: {origin}");
        assert_eq!(
            post(&test_server, &[OWN, &origin, "Content-Type: text/plain"]),
            refused,
            "{origin}"
        );
        assert_eq!(post(&test_server, &[OWN, &origin, "Content-Type: application/json"]), refused);
    }
    assert_eq!(
        post(&test_server, &[OWN, "Origin: http://localhost:8000"]).0,
        200,
        "a page of its own"
    );
    assert_eq!(post(&test_server, &[OWN, FORM]).0, 200, "curl -d");
    assert_eq!(post(&test_server, &[OWN]).0, 200);
    let media = (415, "unsupported_media_type".to_owned());
    assert_eq!(post(&test_server, &[OWN, "Sec-Fetch-Site: cross-site", FORM]), media);
    assert_eq!(post(&test_server, &[OWN, "Sec-Fetch-Site: same-site"]), media);
    assert_eq!(post(&test_server, &[OWN, "Sec-Fetch-Site: none", FORM]).0, 200);
    let json = "Content-Type: application/json; charset=utf-8";
    assert_eq!(post(&test_server, &[OWN, "Sec-Fetch-Site: cross-site", json]).0, 200);
    assert_eq!(test_server.engine.submissions().len(), 5);
    // Without `--cors` no headers mention other origins, and preflights are refused.
    let preflight = send(&test_server, "OPTIONS", COMPLETIONS, &[OWN]);
    assert_eq!((preflight.status, preflight.header("access-control-allow-origin")), (405, None));
}

#[test]
fn allowed_origins_may_ask_and_read() {
    let test_server =
        test_server(Some(Vec::new()), &["http://localhost:3000", "https://app.example"]);
    let (allowed, other) = ("Origin: https://app.example", "Origin: https://other.example");
    let wanted = [
        "Access-Control-Request-Method: POST",
        "Access-Control-Request-Headers: authorization, content-type",
    ];
    let preflight =
        send(&test_server, "OPTIONS", COMPLETIONS, &[&[OWN, allowed], &wanted[..]].concat());
    assert_eq!(preflight.status, 200);
    let header = |reply: &Reply, name: &str| reply.header(name).unwrap_or_default();
    assert_eq!(header(&preflight, "access-control-allow-origin"), "https://app.example");
    let headers = header(&preflight, "access-control-allow-headers");
    assert!(headers.contains("authorization") && headers.contains("content-type"), "{headers}");
    let answer = send(&test_server, "POST", COMPLETIONS, &[OWN, allowed]);
    assert_eq!(answer.status, 200);
    assert_eq!(header(&answer, "access-control-allow-origin"), "https://app.example");
    assert!(header(&answer, "access-control-expose-headers").contains("x-request-id"));
    assert_eq!(post(&test_server, &[OWN, other]), (403, "origin_not_allowed".to_owned()));
    let any = self::test_server(Some(Vec::new()), &["*"]);
    let answer = send(&any, "POST", COMPLETIONS, &[OWN, other]);
    assert_eq!((answer.status, header(&answer, "access-control-allow-origin")), (200, "*".into()));
    assert_eq!(answer.json()["choices"][0]["token_ids"], json!([256]));
}
