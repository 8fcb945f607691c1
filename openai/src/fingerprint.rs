//! Identities as short hashes: of a model with its settings, of a request, and of a `custom_id`.
//!
//! They are written to the output and read back by `--resume`, so their definition may only change
//! together with [`FORMAT`].

use engine_api::request::{Penalties, Sampling};
use model::config::{Dtype, ModelConfig};
use sha2::{Digest, Sha256};

use super::input_line::{CompletionRequest, Endpoint};
use super::output_options::OutputOptions;

/// Version of all identities, increased when the answer to an equal request would differ from that
/// of an earlier version.
const FORMAT: &str = "tandem-9";

/// Returns the `system_fingerprint`: a hash of everything that determines an answer apart from the
/// request, and the names of the `kernels` in plain text, since they determine the last bits and
/// therefore occasionally a token. The model's name is omitted, so that a moved folder is still the
/// same model.
pub fn system_fingerprint(
    config: &ModelConfig,
    weights_identity: &str,
    dtype: Dtype,
    compression: &str,
    seed: u64,
    kernels: &str,
) -> String {
    let mut config = config.clone();
    config.name.clear();
    let described = format!(
        "{FORMAT}\n{config:?}\n{weights_identity}\n{}\n{compression}\n{seed}",
        dtype.name()
    );
    format!("fp_{}_{kernels}", hex16(described.as_bytes()))
}

/// Returns the hash and the kernels of a `system_fingerprint`; the kernels are empty if it does not
/// name them.
pub fn hash_and_kernels(system_fingerprint: &str) -> (&str, &str) {
    let named = system_fingerprint.strip_prefix("fp_").unwrap_or(system_fingerprint);
    named.split_once('_').unwrap_or((named, ""))
}

/// Returns the identity of a request: its contents and parameters, as the model sees them.
/// `--resume` accepts an answer to a request only if both have this identity.
pub fn request_id(request: &CompletionRequest) -> String {
    let mut hash = Sha256::new();
    let mut field = |bytes: &[u8]| {
        hash.update((bytes.len() as u64).to_le_bytes());
        hash.update(bytes);
    };
    field(FORMAT.as_bytes());
    field(request.custom_id.as_bytes());
    field(&[u8::from(request.endpoint == Endpoint::ChatCompletions)]);
    let Sampling { temperature, top_p, top_k, min_p, top_n_sigma, penalties, min_tokens } =
        request.sampling;
    field(&temperature.to_le_bytes());
    field(&top_p.to_le_bytes());
    field(&request.seed.to_le_bytes());
    field(&[u8::from(request.has_own_seed)]);
    field(&[u8::from(request.ignore_eos)]);
    // Fields of later versions are omitted if they have their defaults, so that ids of earlier
    // versions remain valid. Their names distinguish them from the first field of a prompt, which
    // has four bytes.
    let mut later = |name: &str, is_given: bool, value: &[u8]| {
        if is_given {
            field(&[name.as_bytes(), value].concat());
        }
    };
    later("top_k", top_k > 0, &top_k.to_le_bytes());
    later("min_p", min_p > 0.0, &min_p.to_le_bytes());
    later("top_n_sigma", top_n_sigma > 0.0, &top_n_sigma.to_le_bytes());
    let Penalties { repetition, presence, frequency } = penalties;
    let of_penalties = [repetition, presence, frequency].map(f32::to_le_bytes).concat();
    later("penalties", penalties != Penalties::NONE, &of_penalties);
    later("min_tokens", min_tokens > 0, &min_tokens.to_le_bytes());
    if let Some(rules) = &request.token_rules {
        let biases = rules.logit_bias.iter().map(|(token, bias)| [*token, bias.to_bits()]);
        let biases: Vec<u32> = biases.flatten().collect();
        for (name, words) in [("logit_bias", &biases), ("stop_token_ids", &rules.stop_token_ids)] {
            let bytes: Vec<u8> = words.iter().flat_map(|word| word.to_le_bytes()).collect();
            later(name, !bytes.is_empty(), &bytes);
        }
    }
    later("n", request.n > 1, &(request.n as u64).to_le_bytes());
    later("logprobs", request.logprobs.is_some(), &request.logprobs_per_token().to_le_bytes());
    let grammar_text =
        request.grammar.as_ref().map(|grammar| format!("{grammar:?}")).unwrap_or_default();
    later("form", request.grammar.is_some(), grammar_text.as_bytes());
    let columns = serde_json::to_vec(&request.columns).unwrap_or_default();
    let thinking = request.reasoning.as_ref().map(|reasoning| format!("{reasoning:?}"));
    later("reasoning", thinking.is_some(), thinking.unwrap_or_default().as_bytes());
    later("columns", !request.columns.is_empty(), &columns);
    later("echo", request.echo, &[1]);
    let OutputOptions { includes_stop, spells_token_ids, omits_reasoning } = request.output;
    later("include_stop_str_in_output", includes_stop, &[1]);
    later("return_tokens_as_token_ids", spells_token_ids, &[1]);
    later("include_reasoning", omits_reasoning, &[0]);
    later("return_token_ids", request.returns_token_ids, &[1]);
    if let Some(settings) = &request.response {
        later("response", true, &serde_json::to_vec(&settings.echo).unwrap_or_default());
        later("encrypted_reasoning", settings.returns_encrypted_reasoning, &[1]);
    }
    let of_prompt = request.prompt_logprobs.unwrap_or(0).to_le_bytes();
    later("prompt_logprobs", request.prompt_logprobs.is_some(), &of_prompt);
    for prompt in &request.prompts {
        field(&prompt.max_new.to_le_bytes());
        field(&prompt.tokens.iter().flat_map(|token| token.to_le_bytes()).collect::<Vec<u8>>());
    }
    for stop in request.stop.iter() {
        field(stop.as_bytes());
    }
    format!("req_{}", hex(&hash.finalize()[..12]))
}

/// Returns the identity of a request that generates no text, a hash of its `fields`; see
/// [`request_id`].
pub fn fields_id<'f>(fields: impl Iterator<Item = &'f [u8]>) -> String {
    let mut hash = Sha256::new();
    for bytes in std::iter::once(FORMAT.as_bytes()).chain(fields) {
        hash.update((bytes.len() as u64).to_le_bytes());
        hash.update(bytes);
    }
    format!("req_{}", hex(&hash.finalize()[..12]))
}

/// Returns the identity of an input line, a hash of its contents.
pub fn content_id(line: &[u8]) -> String {
    hex16(line)
}

/// Returns the part of an answer's ids that represents its `custom_id`.
pub fn id_suffix(custom_id: &str) -> String {
    hex16(custom_id.as_bytes())
}

/// Returns the identifier of a tool call: nine letters and digits, as Mistral's templates require.
pub fn call_id(custom_id: &str, choice: usize, call: usize) -> String {
    hex(&Sha256::digest(format!("{custom_id}\n{choice}\n{call}").as_bytes())[..5])[..9].to_owned()
}

/// Returns the value that keys sampling of the `index`-th answer of a request, together with the
/// seed. Requests that share the run's seed differ by their ids, so that they sample independently;
/// requests with their own seed do not depend on their ids.
pub fn sampling_id(request: &CompletionRequest, index: usize) -> u64 {
    let mut hash = Sha256::new();
    if !request.has_own_seed {
        hash.update(request.custom_id.as_bytes());
    }
    hash.update((index as u64).to_le_bytes());
    let digest = hash.finalize();
    digest.iter().take(8).fold(0, |word, byte| word << 8 | u64::from(*byte))
}

fn hex16(bytes: &[u8]) -> String {
    hex(&Sha256::digest(bytes)[..8])
}

fn hex(bytes: &[u8]) -> String {
    bytes.iter().map(|byte| format!("{byte:02x}")).collect()
}
