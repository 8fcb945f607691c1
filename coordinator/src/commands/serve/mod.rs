//! `coordinator serve`: serves a model over HTTP until a signal arrives.

mod engine;
mod status_line;

use std::cell::RefCell;
use std::net::{IpAddr, SocketAddr, TcpListener, ToSocketAddrs};
use std::sync::Arc;
use std::time::{Duration, Instant, SystemTime, UNIX_EPOCH};

use anyhow::Context;
use model::generation::GenerationDefaults;

use super::run::{kernel_variant, stop_at_stdin_eof};
use crate::cli::request::ServeRequest;
use ::engine::descriptors::max_connections;
use engine::{StartedEngine, start_engine};
use engine_api::request::{Penalties, Sampling};
use engine_api::serving::{Engine, EngineState};
use openai::fingerprint::system_fingerprint;
use server::Server;
use server::config::{ModelCard, PlacementEntry, ServerOptions, SharedCodec};
use session::argument_error::ArgumentError;
use session::compression::first_fitting_compression;
use session::descriptor_limit::raise_descriptor_limit;
use session::embedding_model::embedding_model;
use session::exit::Exit;
use session::formats::{describe_formats, resolve_formats};
use session::interrupt::Interrupt;
use session::model::ModelHandle;
use session::session::Session;
use status_line::StatusLine;

/// Maximum time to wait for the engine to end after the last answer.
const MAX_SHUTDOWN_TIME: Duration = Duration::from_secs(35);
/// Interval at which the engine's state is polled meanwhile.
const POLL_INTERVAL: Duration = Duration::from_millis(10);

/// Serves until a signal requests the end.
///
/// # Errors
/// An error whose message is meant for the user.
pub fn run(request: &ServeRequest, interrupt: &Interrupt) -> anyhow::Result<Exit> {
    // Before any slow step: a port that is in use is reported at once.
    let listener = listen(&request.host, request.port)?;
    let address = listener.local_addr().context("the address on which to listen")?;
    stop_at_stdin_eof(&request.options, interrupt)?;
    raise_descriptor_limit();
    let model_handle = ModelHandle::of_session(&request.options)?;
    let session = Session::new(&model_handle, &request.options);
    let mut model = model_card(request, &session)?;
    let quiet = session.options.is_quiet();
    let StartedEngine { engine, placement } = start_engine(request, &session, interrupt)?;
    let entry = |(name, value): (&str, String)| PlacementEntry { name: name.to_owned(), value };
    model.placement = placement.into_iter().map(entry).collect();
    let mut options = options_for_address(address, request.server.clone());
    if let Some(warning) = access_warning(address, options.api_key.is_some()) {
        eprintln!("{warning}");
    }
    options.limits.connections = options.limits.connections.min(max_connections());
    let server = Server::new(listener, Arc::clone(&engine), model.clone(), options)?;
    if !quiet {
        eprintln!(
            "{}",
            startup_message(&model, &*engine, address, request.server.api_key.is_some())
        );
    }
    let line = RefCell::new(StatusLine::new());
    let outcome = server.run(&|| {
        let message = line.borrow_mut().next_line(&engine.status()).filter(|_| !quiet);
        message.iter().for_each(|line| eprintln!("{line}"));
        interrupt.is_requested()
    })?;
    if !quiet && outcome.aborted_requests > 0 {
        eprintln!(
            "{} requests were not finished within --drain-timeout and were cut off",
            outcome.aborted_requests
        );
    }
    wait_for_end(&*engine);
    Ok(Exit::Done)
}

/// Waits until the engine has ended, which may first store prompts.
fn wait_for_end(engine: &dyn Engine) {
    let deadline = Instant::now() + MAX_SHUTDOWN_TIME;
    while engine.status().state != EngineState::Ended && Instant::now() < deadline {
        std::thread::sleep(POLL_INTERVAL);
    }
}

fn listen(host: &str, port: u16) -> anyhow::Result<TcpListener> {
    let named = host.trim_start_matches('[').trim_end_matches(']');
    let address = match named.parse::<IpAddr>() {
        Ok(ip) => SocketAddr::new(ip, port),
        Err(_) => {
            let mut known = (named, port).to_socket_addrs().map_err(|error| {
                ArgumentError(format!("--host {host} cannot be resolved: {error}"))
            })?;
            known
                .next()
                .ok_or_else(|| ArgumentError(format!("--host {host} resolves to no address")))?
        }
    };
    TcpListener::bind(address).with_context(|| {
        format!("cannot listen on {address}; try another --port, or --port 0 for any free port")
    })
}

/// Returns the options of a server that listens at this address. A server that other machines can
/// reach is addressed by names that this machine does not know, so the names of hosts are checked
/// only if some were given.
fn options_for_address(address: SocketAddr, mut options: ServerOptions) -> ServerOptions {
    let given = options.cross_site.hosts.as_ref().is_some_and(|hosts| !hosts.is_empty());
    if !address.ip().is_loopback() && !given {
        options.cross_site.hosts = None;
    }
    options
}

/// Returns a warning if any client that reaches the server may use it.
fn access_warning(address: SocketAddr, has_key: bool) -> Option<String> {
    let is_open = !address.ip().is_loopback() && !has_key;
    is_open.then(|| {
        format!(
            "warning: {address} is reachable from other machines and no API key is set, so anyone \
             on the network can use this server; set TANDEM_API_KEY, or omit --host"
        )
    })
}

/// Returns the description of the model that clients see.
fn model_card(request: &ServeRequest, session: &Session<'_>) -> anyhow::Result<ModelCard> {
    let Session { model, options, .. } = session;
    let config = &model.config;
    let (generation, weights) = (model.generation()?, model.weights_identity()?);
    let case = first_fitting_compression(session, None);
    let formats = describe_formats(&resolve_formats(session, case));
    let kernels = kernel_variant(options.device)?;
    let names = request.names.iter().chain([&config.name, &options.model.name]).cloned();
    let (bos_token_id, eos_token_ids) = model.bos_and_eos_tokens()?;
    let now = SystemTime::now().duration_since(UNIX_EPOCH);
    Ok(ModelCard {
        names: names.collect(),
        created: now.map_or(0, |since| since.as_secs()),
        system_fingerprint: system_fingerprint(
            config,
            &weights,
            options.dtype,
            &formats,
            options.seed,
            &kernels,
        ),
        vocab_size: config.vocab_size,
        max_positions: config.max_positions,
        sampling: default_sampling(generation),
        embeddings: embedding_model(model, request.pooling),
        codec: model.shared_codec()?.map(|codec| codec as SharedCodec),
        unsupported_tokenizer: model.unsupported_tokenizer(),
        bos_token_id,
        eos_token_ids,
        placement: Vec::new(),
    })
}

/// Returns the default sampling of requests.
fn default_sampling(generation: GenerationDefaults) -> Sampling {
    let GenerationDefaults { temperature, top_p, top_k, min_p, repetition_penalty } = generation;
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
fn startup_message(
    model: &ModelCard,
    engine: &dyn Engine,
    address: SocketAddr,
    has_key: bool,
) -> String {
    let limits = engine.limits();
    let context = (limits.context as usize).min(model.max_positions);
    let example_address = if address.ip().is_unspecified() {
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
         http://{example_address}/v1/{path} -H 'Content-Type: application/json'{key} \\\n    \
         -d '{body}'",
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
        assert!(
            access_warning(at("0.0.0.0:80"), false).is_some_and(|text| text.contains("API_KEY"))
        );
        assert!(access_warning(at("[::]:80"), false).is_some());
        assert_eq!(access_warning(at("0.0.0.0:80"), true), None);
        assert_eq!(access_warning(at("127.0.0.1:80"), false), None);
        let with = |hosts: &[&str]| {
            let mut options = ServerOptions::default();
            options.cross_site.hosts = Some(hosts.iter().map(|host| (*host).into()).collect());
            options
        };
        let hosts = |address, given: &[&str]| {
            options_for_address(at(address), with(given)).cross_site.hosts
        };
        assert_eq!(hosts("127.0.0.1:80", &[]), Some(Vec::new()));
        assert_eq!(hosts("0.0.0.0:80", &[]), None);
        assert_eq!(hosts("0.0.0.0:80", &["a"]), Some(vec!["a".to_owned()]));
    }

    #[test]
    fn what_a_model_does_not_say_is_plain_sampling() {
        let plain = default_sampling(GenerationDefaults::default());
        assert_eq!(plain, Sampling { temperature: 1.0, ..Sampling::GREEDY });
        let partial = GenerationDefaults {
            temperature: Some(0.5),
            top_k: Some(3),
            ..GenerationDefaults::default()
        };
        let expected = Sampling { temperature: 0.5, top_k: 3, ..Sampling::GREEDY };
        assert_eq!(default_sampling(partial), expected);
    }
}
