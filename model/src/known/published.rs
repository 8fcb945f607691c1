//! Published models, with the relevant fields of their `config.json`. The ids that end a text are
//! those of `generation_config.json` for models that have one.

/// A published model.
pub(super) struct Published {
    pub name: &'static str,
    /// Hugging Face repository of the model.
    pub repository: &'static str,
    /// JSON object with the structure of `config.json`.
    pub config: &'static str,
}

macro_rules! published {
    ($name:literal, $repository:literal) => {
        Published {
            name: $name,
            repository: $repository,
            config: include_str!(concat!($name, ".json")),
        }
    };
}

/// Published models, sorted by family and size.
pub(super) const PUBLISHED: &[Published] = &[
    published!("llama-3.1-8b", "meta-llama/Llama-3.1-8B"),
    published!("llama-3.1-70b", "meta-llama/Llama-3.1-70B"),
    published!("llama-3.2-1b", "meta-llama/Llama-3.2-1B"),
    published!("llama-3.2-3b", "meta-llama/Llama-3.2-3B"),
    published!("llama-3.3-70b", "meta-llama/Llama-3.3-70B-Instruct"),
    published!("qwen3-0.6b", "Qwen/Qwen3-0.6B"),
    published!("qwen3-1.7b", "Qwen/Qwen3-1.7B"),
    published!("qwen3-4b", "Qwen/Qwen3-4B"),
    published!("qwen3-8b", "Qwen/Qwen3-8B"),
    published!("qwen3-14b", "Qwen/Qwen3-14B"),
    published!("qwen3-32b", "Qwen/Qwen3-32B"),
    published!("phi-4", "microsoft/phi-4"),
    published!("phi-4-mini", "microsoft/Phi-4-mini-instruct"),
    published!("mistral-small-3.2-24b", "mistralai/Mistral-Small-3.2-24B-Instruct-2506"),
    published!("smollm3-3b", "HuggingFaceTB/SmolLM3-3B"),
    published!("granite-3.3-8b", "ibm-granite/granite-3.3-8b-instruct"),
    published!("gemma-3-1b", "google/gemma-3-1b-it"),
    published!("gemma-3-4b", "google/gemma-3-4b-it"),
    published!("gemma-3-12b", "google/gemma-3-12b-it"),
    published!("gemma-3-27b", "google/gemma-3-27b-it"),
    published!("gemma-4-26b-a4b", "google/gemma-4-26B-A4B-it"),
    published!("qwen3-30b-a3b", "Qwen/Qwen3-30B-A3B"),
    published!("qwen3-235b-a22b", "Qwen/Qwen3-235B-A22B"),
    published!("qwen3-next-80b-a3b", "Qwen/Qwen3-Next-80B-A3B-Instruct"),
    published!("qwen3.5-9b", "Qwen/Qwen3.5-9B"),
    published!("qwen3.5-35b-a3b", "Qwen/Qwen3.5-35B-A3B"),
    published!("qwen3.6-35b-a3b", "Qwen/Qwen3.6-35B-A3B"),
    published!("glm-4.5-air", "zai-org/GLM-4.5-Air"),
    published!("glm-4.6", "zai-org/GLM-4.6"),
    published!("glm-4.7-flash", "zai-org/GLM-4.7-Flash"),
    published!("deepseek-v3", "deepseek-ai/DeepSeek-V3"),
    // Sizes are the defaults of transformers' DeepseekV32Config and GlmMoeDsaConfig (5.24); the
    // rope of V3.2 is that of V3, and the rope and the end tokens of GLM-5 are those of
    // GLM-4.7-Flash.
    published!("deepseek-v3.2", "deepseek-ai/DeepSeek-V3.2"),
    published!("glm-5", "zai-org/GLM-5"),
    // Fields of the released files' config.json, without their quantisation. Sizes of Flash are
    // also the defaults of transformers' DeepseekV4Config (5.24).
    published!("deepseek-v4-flash", "deepseek-ai/DeepSeek-V4-Flash"),
    published!("deepseek-v4-pro", "deepseek-ai/DeepSeek-V4-Pro"),
    published!("kimi-k2", "moonshotai/Kimi-K2-Instruct-0905"),
    // Sizes are the defaults of transformers' KimiLinearConfig (5.24), with the layers of the file.
    published!("kimi-linear-48b-a3b", "moonshotai/Kimi-Linear-48B-A3B-Instruct"),
    published!("minimax-m2", "MiniMaxAI/MiniMax-M2"),
    // Sizes and limits are the defaults of transformers' Step3p7TextConfig (5.24) and what its
    // comments state of the checkpoint; heads, window and rope of the layers are those that public
    // runtimes have for it. None of them has the tokens that end a text.
    published!("step-3.5-flash", "stepfun-ai/Step-3.5-Flash"),
    published!("mistral-small-4", "mistralai/Mistral-Small-4-119B-2603"),
    published!("nemotron-3-nano", "nvidia/NVIDIA-Nemotron-3-Nano-30B-A3B-BF16"),
    // Pattern and sizes are those that public runtimes check the configuration of the checkpoint
    // against and that its training arguments have; the shared expert, the scale and the positions
    // are those of the latter. What no size of the model determines is that of Nemotron 3 Nano.
    published!("nemotron-3-super", "nvidia/NVIDIA-Nemotron-3-Super-120B-A12B-BF16"),
    published!("mixtral-8x7b", "mistralai/Mixtral-8x7B-Instruct-v0.1"),
    published!("olmoe-1b-7b", "allenai/OLMoE-1B-7B-0924"),
    published!("granite-3.1-1b-a400m", "ibm-granite/granite-3.1-1b-a400m-instruct"),
    published!("granite-3.1-3b-a800m", "ibm-granite/granite-3.1-3b-a800m-instruct"),
    published!("gpt-oss-20b", "openai/gpt-oss-20b"),
    published!("gpt-oss-120b", "openai/gpt-oss-120b"),
];
