//! The list of decoder families. A family that consists of existing kinds of operations is a file
//! in `model/src/family/` with its description, its `mod` line there, and a line here.

/// Calls a macro with the list: the variant of `Family`, and the constant of `family` that
/// describes it.
macro_rules! for_each_family {
    ($callback:ident) => {
        $callback! {
            DeepseekV2 => deepseek_v2::FAMILY,
            DeepseekV3 => deepseek_v3::FAMILY,
            DeepseekV32 => deepseek_v32::FAMILY,
            DeepseekV4 => deepseek_v4::FAMILY,
            Dots1 => dots1::FAMILY,
            Ernie45Moe => ernie4_5_moe::FAMILY,
            Gemma3 => gemma3::FAMILY,
            Gemma4 => gemma4::FAMILY,
            Glm4Moe => glm4_moe::FAMILY,
            Glm4MoeLite => glm4_moe_lite::FAMILY,
            GlmMoeDsa => glm_moe_dsa::FAMILY,
            GptOss => gpt_oss::FAMILY,
            Granite => granite::FAMILY,
            GraniteHybrid => granite_hybrid::FAMILY,
            GraniteMoe => granite::FAMILY_WITH_EXPERTS,
            HyV3 => hy_v3::FAMILY,
            KimiLinear => kimi_linear::FAMILY,
            Lfm2 => lfm2::FAMILY,
            Lfm2Moe => lfm2::FAMILY_WITH_EXPERTS,
            Llama => llama::FAMILY,
            MiniMaxM2 => minimax_m2::FAMILY,
            Mistral => mistral::FAMILY,
            Mistral4 => mistral4::FAMILY,
            Mixtral => mixtral::FAMILY,
            NemotronH => nemotron_h::FAMILY,
            Olmo2 => olmo2::FAMILY,
            Olmoe => olmoe::FAMILY,
            Opt => opt::FAMILY,
            Phi3 => phi3::FAMILY,
            Qwen2 => qwen2::FAMILY,
            Qwen2Moe => qwen2_moe::FAMILY,
            Qwen3 => qwen3::FAMILY,
            Qwen3Moe => qwen3::FAMILY_WITH_EXPERTS,
            Qwen3Next => qwen3_next::FAMILY,
            Qwen35 => qwen3_next::QWEN35,
            Qwen35Moe => qwen3_next::QWEN35_WITH_EXPERTS,
            SeedOss => seed_oss::FAMILY,
            SmolLm3 => smollm3::FAMILY,
            Step3p5 => step3p5::FAMILY,
        }
    };
}
