//! Conversion of the arguments of `serve` to a request.

use std::path::Path;
use std::time::Duration;

use server::api_key::ApiKey;
use server::config::{
    BatchStorageOptions, LogTarget, ResponseStorage, ServerOptions, SocketLimits,
};
use server::cross_site::CrossSiteRules;

use super::request::ServeRequest;
use super::serve::ServeArgs;
use super::session_options::{SessionArgs, quiet_or_normal};
use super::usage_error::UsageError;
use session::values::DeviceChoice;

/// Validates the arguments of `serve`.
///
/// # Errors
/// Arguments that contradict each other.
pub(super) fn convert_serve(args: ServeArgs) -> Result<ServeRequest, UsageError> {
    let server = ServerOptions {
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
        batch_storage: args.store_batches.map(|path| BatchStorageOptions {
            path,
            max_bytes: args.store_batches_size,
            max_file_bytes: args.max_file_size,
        }),
    };
    let session_args = SessionArgs {
        of_model: args.of_model,
        placement: args.placement,
        nvme: args.nvme,
        prompts: args.prompts,
        speculation: args.speculation.for_server(),
        positions: None,
        seed: args.seed,
        stop_at_eof: args.stop_at_eof,
        verbosity: quiet_or_normal(args.quiet),
    };
    let options = session_args.into_options()?;
    if args.host_attention.is_some() && options.device == DeviceChoice::None {
        return Err(UsageError::HostAttentionWithoutDevice);
    }
    Ok(ServeRequest {
        options,
        host: args.host,
        port: args.port,
        names: args.served_model_name,
        slots: args.slots,
        context: args.context,
        step_ms: args.step_ms,
        hybrid: args.host_attention.map(|policy| (policy, args.device_slots)),
        costs: args.costs,
        pooling: args.pooling,
        server,
    })
}
