//! Address of the measured server.

use std::io;
use std::net::{SocketAddr, ToSocketAddrs};

use hyper::Uri;

/// URL of the measured server.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ServerUrl {
    pub host: String,
    pub port: u16,
    /// Prefix of all paths: empty, or a path that begins with a slash and does not end with one.
    pub base: String,
}

/// Parses a URL such as `http://127.0.0.1:8000`, optionally with the path of a proxy or a final
/// `/v1`, which is removed.
///
/// # Errors
/// The text is not such a URL.
pub fn parse_server_url(text: &str) -> Result<ServerUrl, String> {
    let example = "specify for example http://127.0.0.1:8000";
    let uri: Uri = text.parse().map_err(|error| format!("invalid URL ({error}); {example}"))?;
    if uri.scheme_str() == Some("https") {
        return Err("https is not supported; specify the server without its TLS proxy".to_owned());
    }
    match (uri.scheme_str(), uri.host(), uri.query()) {
        (Some("http"), Some(host), None) => {
            let path = uri.path().trim_end_matches('/');
            let base = path.strip_suffix("/v1").unwrap_or(path).to_owned();
            Ok(ServerUrl { host: host.to_owned(), port: uri.port_u16().unwrap_or(80), base })
        }
        _ => Err(format!("expected http://, a host and no query; {example}")),
    }
}

impl ServerUrl {
    /// Returns host and port as in a request's `Host` header.
    pub fn authority(&self) -> String {
        format!("{}:{}", self.host, self.port)
    }

    /// Resolves the host to its addresses, at least one.
    ///
    /// # Errors
    /// The name cannot be resolved.
    pub fn addresses(&self) -> io::Result<Vec<SocketAddr>> {
        let host = self.host.trim_start_matches('[').trim_end_matches(']');
        let addresses: Vec<SocketAddr> = (host, self.port).to_socket_addrs()?.collect();
        if addresses.is_empty() {
            return Err(io::Error::new(io::ErrorKind::NotFound, "the host name has no address"));
        }
        Ok(addresses)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_url_is_host_port_and_what_stands_before_paths() {
        let parts = |text| {
            let target = parse_server_url(text).expect("a URL");
            (target.host, target.port, target.base)
        };
        let expected = |host: &str, port, base: &str| (host.to_owned(), port, base.to_owned());
        assert_eq!(parts("http://127.0.0.1:8000"), expected("127.0.0.1", 8000, ""));
        assert_eq!(parts("http://localhost/v1/"), expected("localhost", 80, ""));
        assert_eq!(parts("http://[::1]:9/a/v1"), expected("[::1]", 9, "/a"));
        for wrong in ["https://a", "127.0.0.1:8000", "a", "http://", "http://a/?b", "ftp://a"] {
            assert!(parse_server_url(wrong).is_err(), "{wrong}");
        }
        let local =
            parse_server_url("http://[::1]:9").expect("a URL").addresses().expect("literal");
        assert_eq!(local, ["[::1]:9".parse().expect("an address")]);
    }
}
