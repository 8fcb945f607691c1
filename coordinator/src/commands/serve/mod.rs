//! `coordinator serve`: serves a model over HTTP until a signal arrives.

mod engine;
mod status_line;

use std::cell::RefCell;
use std::net::{IpAddr, SocketAddr, TcpListener, ToSocketAddrs};
use std::sync::Arc;
use std::time::{Duration, Instant, SystemTime, UNIX_EPOCH};

use anyhow::Context;
use model::generation::Generation;
use rustix::process::{Resource, Rlimit, getrlimit, setrlimit};

use super::run::{heed_stdin, kernels_of};
use crate::boundary::engine::{Penalties, Sampling};
use crate::boundary::serving::{Serving, State};
use crate::cli::request::{ServeRequest, Verbosity};
use crate::engine::descriptors::connections_max;
use crate::exit::Exit;
use crate::interrupt::Interrupt;
use crate::openai::fingerprint::system_fingerprint;
use crate::server::Server;
use crate::server::facts::{ModelCard, ServerOptions, SharedCodec};
use crate::setup::form::first_that_fits;
use crate::setup::formats::{described, formats};
use crate::setup::model::Opened;
use crate::setup::usage::Usage;
use engine::start_engine;
use status_line::StatusLine;

/// Maximum time to wait for the engine to end after the last answer.
const ENDING_MAX: Duration = Duration::from_secs(35);
/// Interval at which the engine's state is polled meanwhile.
const LOOK_EVERY: Duration = Duration::from_millis(10);

/// Serves until a signal requests the end.
///
/// # Errors
/// An error whose message is meant for the user.
pub fn run(request: &ServeRequest, interrupt: &Interrupt) -> anyhow::Result<Exit> {
    // Before any slow step: a port that is in use is reported at once.
    let listener = listen(&request.host, request.port)?;
    let address = listener.local_addr().context("the address that is listened at")?;
    heed_stdin(&request.run, interrupt)?;
    raise_descriptors();
    let opened = Opened::open(&request.run.model, request.run.seed)?;
    let model = card(request, &opened)?;
    let quiet = request.run.verbosity == Verbosity::Quiet;
    let engine = start_engine(request, &opened, interrupt)?;
    let mut options = options_at(address, request.options.clone());
    if let Some(warning) = warning(address, options.api_key.is_some()) {
        eprintln!("{warning}");
    }
    options.limits.connections = options.limits.connections.min(connections_max());
    let server = Server::new(listener, Arc::clone(&engine), model.clone(), options)?;
    if !quiet {
        eprintln!("{}", announcement(&model, &*engine, address, request.options.api_key.is_some()));
    }
    let line = RefCell::new(StatusLine::new());
    let served = server.run(&|| {
        let said = line.borrow_mut().line(&engine.status()).filter(|_| !quiet);
        said.iter().for_each(|line| eprintln!("{line}"));
        interrupt.is_requested()
    })?;
    if !quiet && served.cut > 0 {
        eprintln!("{} requests were not answered within --drain-timeout and are cut", served.cut);
    }
    wait_for_end(&*engine);
    Ok(Exit::Done)
}

/// Waits until the engine has ended, which may first store prompts.
fn wait_for_end(engine: &dyn Serving) {
    let until = Instant::now() + ENDING_MAX;
    while engine.status().state != State::Ended && Instant::now() < until {
        std::thread::sleep(LOOK_EVERY);
    }
}

fn listen(host: &str, port: u16) -> anyhow::Result<TcpListener> {
    let named = host.trim_start_matches('[').trim_end_matches(']');
    let address = match named.parse::<IpAddr>() {
        Ok(ip) => SocketAddr::new(ip, port),
        Err(_) => {
            let mut known = (named, port)
                .to_socket_addrs()
                .map_err(|error| Usage(format!("--host {host} is no address here: {error}")))?;
            known.next().ok_or_else(|| Usage(format!("--host {host} has no address")))?
        }
    };
    TcpListener::bind(address).with_context(|| {
        format!("nobody can listen at {address}; another --port, or --port 0, may be free")
    })
}

/// Returns the options of a server that listens at this address. A server that other machines can
/// reach is addressed by names that this machine does not know, so the names of hosts are checked
/// only if some were given.
fn options_at(address: SocketAddr, mut options: ServerOptions) -> ServerOptions {
    let given = options.cross_site.hosts.as_ref().is_some_and(|hosts| !hosts.is_empty());
    if !address.ip().is_loopback() && !given {
        options.cross_site.hosts = None;
    }
    options
}

/// Returns a warning if any client that reaches the server may use it.
fn warning(address: SocketAddr, has_key: bool) -> Option<String> {
    let is_open = !address.ip().is_loopback() && !has_key;
    is_open.then(|| {
        format!(
            "warning: {address} is reachable from other machines and no API key is set, so anyone \
             on the network can use this server; set TANDEM_API_KEY, or leave --host out"
        )
    })
}

/// Raises the limit on open files to its maximum, because every connection takes a descriptor.
pub(super) fn raise_descriptors() {
    let now = getrlimit(Resource::Nofile);
    let raised = Rlimit { current: now.maximum, maximum: now.maximum };
    // If this fails, the server accepts fewer connections.
    let _ = setrlimit(Resource::Nofile, raised);
}

/// Returns the description of the model that clients see.
fn card(request: &ServeRequest, opened: &Opened) -> anyhow::Result<ModelCard> {
    let run = &request.run;
    let config = &opened.config;
    let (generation, weights) = (opened.generation()?, opened.weights_identity()?);
    let case = first_that_fits(run, opened, None);
    let formats = described(&formats(run, opened, case));
    let kernels = kernels_of(run)?;
    let names = request.names.iter().chain([&config.name, &run.model.name]).cloned();
    let (bos_token_id, eos_token_ids) = opened.text_ends()?;
    let now = SystemTime::now().duration_since(UNIX_EPOCH);
    Ok(ModelCard {
        names: names.collect(),
        created: now.map_or(0, |since| since.as_secs()),
        system_fingerprint: system_fingerprint(
            config, &weights, run.dtype, &formats, run.seed, &kernels,
        ),
        vocab_size: config.vocab_size,
        max_positions: config.max_positions,
        sampling: sampling(generation),
        codec: opened.shared_codec()?.map(|codec| codec as SharedCodec),
        unread_tokenizer: opened.unread_tokenizer(),
        bos_token_id,
        eos_token_ids,
    })
}

/// Returns the default sampling of requests.
fn sampling(generation: Generation) -> Sampling {
    let Generation { temperature, top_p, top_k, min_p, repetition_penalty } = generation;
    let all = Sampling::GREEDY;
    Sampling {
        temperature: temperature.unwrap_or(1.0),
        top_p: top_p.unwrap_or(all.top_p),
        top_k: top_k.unwrap_or(all.top_k),
        min_p: min_p.unwrap_or(all.min_p),
        penalties: Penalties {
            repetition: repetition_penalty.unwrap_or(all.penalties.repetition),
            ..all.penalties
        },
        ..all
    }
}

/// Returns the address, the model and an example request, to be printed when the server starts.
fn announcement(
    model: &ModelCard,
    engine: &dyn Serving,
    address: SocketAddr,
    has_key: bool,
) -> String {
    let limits = engine.limits();
    let context = (limits.context as usize).min(model.max_positions);
    let shown = if address.ip().is_unspecified() {
        SocketAddr::new([127, 0, 0, 1].into(), address.port())
    } else {
        address
    };
    let key = if has_key { " \\\n    -H \"Authorization: Bearer $TANDEM_API_KEY\"" } else { "" };
    let (path, body) = match model.codec {
        Some(_) => (
            "chat/completions",
            "{\"messages\": [{\"role\": \"user\", \"content\": \"What is a kernel?\"}]}",
        ),
        None => ("completions", "{\"prompt\": [2, 11, 7]}"),
    };
    format!(
        "serving {} with {} slots and a context of {context} at http://{address}\n  curl \
         http://{shown}/v1/{path} -H 'Content-Type: application/json'{key} \\\n    -d '{body}'",
        model.name(),
        limits.slots,
    )
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_host_is_an_address_or_a_name() {
        for host in ["127.0.0.1", "localhost", "[::1]"] {
            match listen(host, 0) {
                Ok(listener) => assert!(listener.local_addr().expect("bound").ip().is_loopback()),
                // This machine has no IPv6.
                Err(error) => assert!(host.contains(':'), "{host}: {error}"),
            }
        }
        let taken = listen("127.0.0.1", 0).expect("a free port");
        let port = taken.local_addr().expect("bound").port();
        let error = listen("127.0.0.1", port).expect_err("taken").to_string();
        assert!(error.contains("--port"), "{error}");
        assert!(listen("no such host.invalid", 0).is_err());
    }

    #[test]
    fn a_server_beyond_this_machine_asks_for_a_key() {
        let at = |address: &str| address.parse::<SocketAddr>().expect("an address");
        assert!(warning(at("0.0.0.0:80"), false).is_some_and(|text| text.contains("API_KEY")));
        assert!(warning(at("[::]:80"), false).is_some());
        assert_eq!(warning(at("0.0.0.0:80"), true), None);
        assert_eq!(warning(at("127.0.0.1:80"), false), None);
        let with = |hosts: &[&str]| {
            let mut options = ServerOptions::default();
            options.cross_site.hosts = Some(hosts.iter().map(|host| (*host).into()).collect());
            options
        };
        let hosts = |address, given: &[&str]| options_at(at(address), with(given)).cross_site.hosts;
        assert_eq!(hosts("127.0.0.1:80", &[]), Some(Vec::new()));
        assert_eq!(hosts("0.0.0.0:80", &[]), None);
        assert_eq!(hosts("0.0.0.0:80", &["a"]), Some(vec!["a".to_owned()]));
    }

    #[test]
    fn what_a_model_does_not_say_is_plain_sampling() {
        let plain = sampling(Generation::default());
        assert_eq!(plain, Sampling { temperature: 1.0, ..Sampling::GREEDY });
        let said = Generation { temperature: Some(0.5), top_k: Some(3), ..Generation::default() };
        let expected = Sampling { temperature: 0.5, top_k: 3, ..Sampling::GREEDY };
        assert_eq!(sampling(said), expected);
    }
}
