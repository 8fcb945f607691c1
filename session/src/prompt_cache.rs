//! Store of prompt prefixes of a run, and everything that their keys and values depend on.

use std::fs::File;
use std::io::Read;

use anyhow::Context;
use kernels::Variant;
use program::page_runs::PageRuns;
use program::plan::Plan;
use prompt_cache::PageOrigin;
use protocol::messages::PrefixStoreConfig;
use sha2::{Digest, Sha256};

use super::argument_error::ArgumentError;
use super::model::ModelHandle;
use crate::session::Session;

/// This program's own file. The kernels of another version may give different bits.
const PROGRAM: &str = "/proc/self/exe";
const BUFFER_BYTES: usize = 1 << 20;

/// Returns the store for the workers; `None` if the run requests none.
///
/// # Errors
/// A run whose caches cannot be stored, as a sentence for the user.
pub(super) fn prompt_store_config(
    session: &Session<'_>,
    plan: &Plan,
) -> anyhow::Result<Option<PrefixStoreConfig>> {
    let Some(requested) = &session.options.prompt_cache else { return Ok(None) };
    let is_cuda = matches!(session.options.device, crate::values::DeviceChoice::Cuda(_));
    if is_cuda || PageRuns::of(plan, 0).is_none() {
        let sentence = "--prompt-cache requires caches in pages to which the CPU attends. This run \
                        has none: a device stores or computes them, no layer of the model keeps \
                        all positions, its caches differ by layer, or its windows and states have \
                        no checkpoints. Run with --device none, another model, or without \
                        --prompt-cache";
        return Err(ArgumentError(sentence.to_owned()).into());
    }
    Ok(Some(PrefixStoreConfig {
        directory: requested.directory.clone(),
        max_bytes: requested.max_bytes,
        min_tokens: requested.min_tokens,
        origin: origin(session.model, plan)?,
    }))
}

fn origin(model_handle: &ModelHandle, plan: &Plan) -> anyhow::Result<PageOrigin> {
    let mut config = plan.config.clone();
    let model = std::mem::take(&mut config.name);
    let windows = &plan.table.windows;
    // Windows that are as long as the context are kept in pages.
    let windows = (!windows.is_empty()).then(|| ("windows", format!("{windows:?}")));
    let fields = [
        ("dtype", plan.shape.dtype.name().to_owned()),
        ("KV", format!("{:?}", plan.map.kv_format).to_lowercase()),
        ("kernels", Variant::from_env()?.name().to_owned()),
        ("page", format!("{} positions", plan.shape.page_positions)),
        ("weights", model_handle.weights_identity()?),
        ("forms of weights", digest(format!("{:?}", plan.map.weight_formats).as_bytes())),
        ("configuration", digest(format!("{config:?}").as_bytes())),
        ("program", program()?),
    ];
    let layers = &plan.config.layers;
    let drafts = layers.kinds()[0].draft_positions;
    let drafts = (layers.has_states() && drafts > 0).then(|| ("drafts", drafts.to_string()));
    let fields = fields
        .into_iter()
        .chain(windows)
        .chain(drafts)
        .map(|(name, value)| (name.to_owned(), value));
    Ok(PageOrigin { model, fields: fields.collect() })
}

/// Returns a hash of this program's file.
fn program() -> anyhow::Result<String> {
    let mut file = File::open(PROGRAM).context("this program's own file")?;
    let mut hash = Sha256::new();
    let mut buffer = vec![0; BUFFER_BYTES];
    loop {
        match file.read(&mut buffer).context("this program's own file")? {
            0 => return Ok(hex(&hash.finalize())),
            read => hash.update(&buffer[..read]),
        }
    }
}

fn digest(bytes: &[u8]) -> String {
    hex(&Sha256::digest(bytes))
}

fn hex(bytes: &[u8]) -> String {
    bytes.iter().take(16).map(|byte| format!("{byte:02x}")).collect()
}
