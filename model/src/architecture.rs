//! Features that unsupported architectures require.

/// Unsupported features of published architectures, by the lower-case prefix of the architecture's
/// name. The first matching prefix counts.
const MISSING_FEATURES: &[(&str, &str)] = &[
    ("bamba", "state-space layers"),
    ("bert", "a decoder"),
    ("bloom", "ALiBi positions"),
    ("chatglm", "a rotary embedding of neighbours"),
    ("commandr", "norms whose halves run in parallel"),
    ("cohere", "norms whose halves run in parallel"),
    ("dbrx", "clipped queries, keys and values"),
    // Names in GGUF files.
    ("deepseek32", "the safetensors files of such models, since GGUF files of them are not read"),
    ("exaone4", "norms behind each half alone"),
    ("falconh1", "state-space layers"),
    ("falconmamba", "state-space layers"),
    ("falcon", "halves that run in parallel"),
    ("gemma3n", "per-layer embeddings and shared caches"),
    ("gemma2", "scores and logits that are capped"),
    ("gemmaembedding", "attention in both directions"),
    ("gemma", "norms with a gain of 1 + w and a gate with GELU in two norms a layer"),
    ("glm", "a rotary embedding of neighbours"),
    ("gptneox", "halves that run in parallel"),
    ("gpt2", "learned positions with fused linears that are stored transposed"),
    ("granitemoeshared", "experts that every row passes"),
    ("jamba", "state-space layers"),
    ("kimik3", "gated experts in a latent, and residual streams of blocks"),
    ("lfm2vl", "convolutional layers next to images"),
    ("llama4", "attention in chunks, and experts that every row passes"),
    ("mamba", "state-space layers"),
    ("minimaxm1", "linear attention"),
    ("minimaxtext", "linear attention"),
    ("mpt", "ALiBi positions"),
    ("nemotron", "a squared ReLU and norms of 1 + w"),
    ("olmo", "norms without gains"),
    ("phimoe", "a router with two softmaxes"),
    ("phiforcausallm", "halves that run in parallel"),
    ("phi2", "halves that run in parallel"),
    ("qwen2vl", "rotary positions of images"),
    ("qwen25vl", "rotary positions of images"),
    // Names in GGUF files, whose tensors for such layers have a different layout.
    ("qwen3vl", "rotary positions of images"),
    ("rwkv", "recurrent layers"),
    ("starcoder2", "a feed-forward network with GELU behind LayerNorms with rotary positions"),
    ("t5", "a decoder alone: it has an encoder"),
    ("whisper", "a decoder alone: it has an encoder"),
];

/// Returns an error clause that names the unsupported feature that an architecture requires; empty
/// if the architecture is not known.
pub fn missing_features(architecture: &str) -> String {
    let letters = architecture.chars().filter(char::is_ascii_alphanumeric);
    let name: String = letters.map(|letter| letter.to_ascii_lowercase()).collect();
    let known = MISSING_FEATURES.iter().find(|(start, _)| name.starts_with(start));
    known.map_or_else(String::new, |(_, what)| format!(": it needs {what}"))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_lacking_is_said() {
        assert_eq!(missing_features("MptForCausalLM"), ": it needs ALiBi positions");
        assert_eq!(missing_features("SomethingNew"), "");
    }
}
