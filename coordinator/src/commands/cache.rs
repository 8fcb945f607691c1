//! `coordinator cache`: lists the contents of a prompt store, or removes some of them.

use std::time::{Duration, SystemTime, UNIX_EPOCH};

use anyhow::Context;
use prompt_cache::{CachedPrefix, OriginPages, StoreListing};
use serde_json::{Value, json};

use crate::cli::request::{CacheAction, CacheRequest};
use report::plain_table::{plain_table, right_aligned};
use session::argument_error::ArgumentError;
use session::exit::Exit;
use session::output::print_result;

const MIB: f64 = (1u64 << 20) as f64;
/// Number of digits of a name that are shown.
const NAME_DIGITS: usize = 12;
const DAY: Duration = Duration::from_secs(24 * 60 * 60);

/// Lists or removes stored prompt prefixes.
///
/// # Errors
/// An error whose message is meant for the user.
pub fn run(request: &CacheRequest) -> anyhow::Result<Exit> {
    let directory = &request.directory;
    let listing = prompt_cache::list_store(directory)
        .with_context(|| format!("the prompt cache {}", directory.display()))?;
    let text = match &request.action {
        CacheAction::List { json: true } => {
            let json = serde_json::to_string_pretty(&to_json(&listing))?;
            print_result(&format!("{json}\n"), true)?;
            return Ok(Exit::Done);
        }
        CacheAction::List { json: false } => format_table(&listing),
        action => {
            let removed = remove(request, &listing, action)?;
            format!("removed {:.1} MiB", removed as f64 / MIB)
        }
    };
    print_result(&format!("{text}\n"), false)?;
    Ok(Exit::Done)
}

fn remove(
    request: &CacheRequest,
    listing: &StoreListing,
    action: &CacheAction,
) -> anyhow::Result<u64> {
    let CacheAction::Remove { names, model, unused_days, all } = action else { return Ok(0) };
    let beginnings = || listing.origins.iter().flat_map(|listed| &listed.prefixes);
    for name in names {
        let named = beginnings().filter(|prefix| prefix.name.to_string().starts_with(name)).count();
        if named != 1 {
            let what = if named == 0 { "no prefix has" } else { "several prefixes have" };
            let sentence = format!(
                "{what} a name that starts with {name}; `coordinator cache list` shows the names"
            );
            return Err(ArgumentError(sentence).into());
        }
    }
    let belongs_to = |listed: &OriginPages, model: &String| {
        model_name(listed) == model
            || listed.folder.file_name().is_some_and(|name| name == &**model)
    };
    if let Some(model) = model
        && !listing.origins.iter().any(|listed| belongs_to(listed, model))
    {
        let sentence =
            format!("no prefix of {model} is stored; `coordinator cache list` shows the models");
        return Err(ArgumentError(sentence).into());
    }
    let now = SystemTime::now();
    let is_old = |beginning: &CachedPrefix| {
        unused_days.is_some_and(|days| {
            now.duration_since(beginning.last_used).is_ok_and(|unused| unused >= DAY * days)
        })
    };
    let removed = prompt_cache::remove_prefixes(&request.directory, |listed, beginning| {
        let name = beginning.name.to_string();
        *all || names.iter().any(|named| name.starts_with(named))
            || model.as_ref().is_some_and(|model| belongs_to(listed, model))
            || is_old(beginning)
    });
    removed.with_context(|| format!("the prompt cache {}", request.directory.display()))
}

fn model_name(listed: &OriginPages) -> &str {
    listed.origin.as_ref().map_or("unknown", |origin| &origin.model)
}

fn short_name(beginning: &CachedPrefix) -> String {
    beginning.name.to_string()[..NAME_DIGITS].to_owned()
}

fn format_table(listing: &StoreListing) -> String {
    let mut table = plain_table();
    table.set_header(["name", "model", "format", "tokens", "MiB", "last used"]);
    right_aligned(&mut table, 3..5);
    let (mut rows, mut useless) = (0, 0);
    for listed in &listing.origins {
        let field = |wanted: &str| {
            let fields = listed.origin.iter().flat_map(|origin| &origin.fields);
            fields.clone().find(|(name, _)| name == wanted).map_or("", |(_, value)| value.as_str())
        };
        let form = format!("{}, KV {}, {}", field("dtype"), field("KV"), field("kernels"));
        for beginning in &listed.prefixes {
            table.add_row([
                short_name(beginning),
                model_name(listed).to_owned(),
                form.clone(),
                beginning.tokens.to_string(),
                format!("{:.1}", beginning.size_bytes as f64 / MIB),
                format_age(beginning.last_used),
            ]);
            rows += 1;
        }
        useless += listed.unusable.len();
    }
    let size = listing.size_bytes as f64 / MIB;
    let mut text = match rows {
        0 => "no prompt prefixes are stored there".to_owned(),
        _ => format!(
            "{table}\n{size:.1} MiB in total; prefixes share the pages that they have in common"
        ),
    };
    if useless > 0 {
        text += &format!("\n{useless} files are unusable; `coordinator cache rm` removes them too");
    }
    text
}

/// Returns the time since last use in words.
fn format_age(used: SystemTime) -> String {
    let seconds = SystemTime::now().duration_since(used).unwrap_or_default().as_secs();
    match seconds {
        0..120 => format!("{seconds} s ago"),
        120..7200 => format!("{} min ago", seconds / 60),
        7200..172_800 => format!("{} h ago", seconds / 3600),
        _ => format!("{} days ago", seconds / 86_400),
    }
}

fn to_json(listing: &StoreListing) -> Value {
    let beginning = |beginning: &CachedPrefix| {
        let used = beginning.last_used.duration_since(UNIX_EPOCH).unwrap_or_default();
        json!({
            "name": beginning.name.to_string(),
            "tokens": beginning.tokens,
            "size_bytes": beginning.size_bytes,
            "last_used_s": used.as_secs_f64(),
        })
    };
    let origin = |listed: &OriginPages| {
        let fields = listed.origin.iter().flat_map(|origin| &origin.fields);
        let fields = fields.map(|(name, value)| (name.clone(), Value::from(value.as_str())));
        json!({
            "model": model_name(listed),
            "folder": listed.folder.file_name().map(|name| name.to_string_lossy()),
            "depends_on": Value::Object(fields.collect()),
            "size_bytes": listed.size_bytes,
            "useless_files": listed.unusable.len(),
            "beginnings": listed.prefixes.iter().map(beginning).collect::<Vec<_>>(),
        })
    };
    json!({
        "size_bytes": listing.size_bytes,
        "models": listing.origins.iter().map(origin).collect::<Vec<_>>(),
    })
}
