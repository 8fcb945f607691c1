//! Conversion of the arguments of `serve` to a request.

use std::path::Path;
use std::time::Duration;

use server::api_key::ApiKey;
use server::config::{LogTarget, ResponseStorage, ServerOptions, SocketLimits};
use server::cross_site::CrossSiteRules;

use super::args::RunArgs;
use super::request::ServeRequest;
use super::serve::ServeArgs;
use session::request::RunRequest;

/// Returns the arguments of the run that computes, and a function that completes the request.
pub(super) fn convert_serve(args: ServeArgs) -> (RunArgs, impl FnOnce(RunRequest) -> ServeRequest) {
    let options = ServerOptions {
        api_key: args.api_key.as_deref().map(ApiKey::new),
        max_queue: args.max_queue,
        max_queue_tokens: args.max_queue_tokens,
        max_tokens: args.max_tokens,
        chats: args.chats.options(),
        seed: args.seed,
        timeout: args.timeout.map(|seconds| Duration::from_secs(seconds.into())),
        drain_timeout: Duration::from_secs(args.drain_timeout.into()),
        log: args.log.map(|path| {
            if path == Path::new("-") { LogTarget::StandardError } else { LogTarget::File(path) }
        }),
        limits: SocketLimits {
            connections: args.max_connections as usize,
            body_bytes: args.max_body_size as usize,
            ..SocketLimits::default()
        },
        answer_memory_bytes: args.max_answer_memory,
        cross_site: CrossSiteRules { hosts: Some(args.allowed_host), origins: args.cors },
        ignore_unknown_fields: args.ignore_unknown_fields,
        response_storage: args.store_responses.map(|path| {
            let max_bytes = args.store_responses_size;
            ResponseStorage { path, max_bytes }
        }),
    };
    let (host, port, names) = (args.host, args.port, args.served_model_name);
    let (slots, context, step_ms) = (args.slots, args.context, args.step_ms);
    let costs = args.costs;
    let hybrid = args.host_attention.map(|policy| (policy, args.device_slots));
    let run = RunArgs {
        of_model: args.of_model,
        placement: args.placement,
        nvme: args.nvme,
        prompts: args.prompts,
        is_served: true,
        seed: args.seed,
        stop_at_eof: args.stop_at_eof,
        quiet: args.quiet,
        ..RunArgs::default()
    };
    let into_request = move |run| ServeRequest {
        run,
        host,
        port,
        names,
        slots,
        context,
        step_ms,
        hybrid,
        costs,
        options,
    };
    (run, into_request)
}
