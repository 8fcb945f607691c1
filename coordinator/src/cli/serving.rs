//! Conversion of the arguments of `serve` to a request.

use std::path::Path;
use std::time::Duration;

use super::low::LowRun;
use super::request::{Run, ServeRequest};
use super::serve::LowServe;
use crate::server::api_key::ApiKey;
use crate::server::cross_site::CrossSiteRules;
use crate::server::facts::{LogPlace, ServerOptions, SocketLimits};

/// Returns the arguments of the run that computes, and a function that completes the request.
pub(super) fn serving(low: LowServe) -> (LowRun, impl FnOnce(Run) -> ServeRequest) {
    let options = ServerOptions {
        api_key: low.api_key.as_deref().map(ApiKey::new),
        max_queue: low.max_queue,
        max_queue_tokens: low.max_queue_tokens,
        max_tokens: low.max_tokens,
        chats: low.chats.options(),
        seed: low.seed,
        timeout: low.timeout.map(|seconds| Duration::from_secs(seconds.into())),
        drain_timeout: Duration::from_secs(low.drain_timeout.into()),
        log: low.log.map(|path| {
            if path == Path::new("-") { LogPlace::StandardError } else { LogPlace::File(path) }
        }),
        limits: SocketLimits {
            connections: low.max_connections as usize,
            body_bytes: low.max_body_size as usize,
            ..SocketLimits::default()
        },
        answer_memory_bytes: low.max_answer_memory,
        cross_site: CrossSiteRules { hosts: Some(low.allowed_host), origins: low.cors },
        ignore_unknown_fields: low.ignore_unknown_fields,
    };
    let (host, port, names) = (low.host, low.port, low.served_model_name);
    let (slots, context, step_ms) = (low.slots, low.context, low.step_ms);
    let costs = low.costs;
    let owners = low.host_attention.map(|policy| (policy, low.device_slots));
    let run = LowRun {
        of_model: low.of_model,
        placement: low.placement,
        nvme: low.nvme,
        prompts: low.prompts,
        is_served: true,
        seed: low.seed,
        stop_at_eof: low.stop_at_eof,
        quiet: low.quiet,
        ..LowRun::default()
    };
    let meant = move |run| ServeRequest {
        run,
        host,
        port,
        names,
        slots,
        context,
        step_ms,
        owners,
        costs,
        options,
    };
    (run, meant)
}
