use super::super::metadata::MetadataValue;
use super::*;
use crate::config::{Rope, RopeScaling};
use crate::rope::{longrope_attention_factor, yarn_attention_factor};

fn rope_of(writer: &Writer) -> Rope {
    open(writer).expect("a good file").config().layers.kind(0).rope.clone().expect("rope")
}

#[test]
fn scaling_is_read_or_refused_by_name() {
    let mut writer = small_model("llama");
    writer.text("llama.rope.scaling.type", "linear");
    writer.set("llama.rope.scaling.factor", MetadataValue::Float(4.0));
    assert_eq!(rope_of(&writer).scaling, RopeScaling::Linear { factor: 4.0 });
    writer.text("llama.rope.scaling.type", "none");
    assert_eq!(rope_of(&writer).scaling, RopeScaling::None);
    for (kind, part) in [("ntk", "scaling ntk is not"), ("longrope", "without lists")] {
        writer.text("llama.rope.scaling.type", kind);
        let message = refusal(&writer);
        assert!(message.contains(part), "{message}");
    }
    let mut writer = small_model("llama");
    writer.set("llama.rope.scale_linear", MetadataValue::Float(2.0));
    assert_eq!(rope_of(&writer).scaling, RopeScaling::Linear { factor: 2.0 });
    writer.set("llama.rope.scaling.attn_factor", MetadataValue::Float(1.5));
    assert!(refusal(&writer).contains("with an attention factor"));
}

#[test]
fn yarn_has_what_its_keys_say_and_defaults() {
    let yarn = |change: &dyn Fn(&mut Writer)| {
        changed("qwen2", &|writer| {
            writer.text("qwen2.rope.scaling.type", "yarn");
            writer.set("qwen2.rope.scaling.factor", MetadataValue::Float(4.0));
            change(writer);
        })
    };
    let expected = |original_max_positions, betas: (f64, f64), attention_factor| {
        let (beta_fast, beta_slow) = betas;
        let factor = 4.0;
        RopeScaling::Yarn {
            factor,
            original_max_positions,
            beta_fast,
            beta_slow,
            attention_factor,
            truncate: true,
        }
    };
    let own = yarn_attention_factor(4.0, None, None);
    let plain = yarn(&|_| {});
    assert_eq!(rope_of(&plain).scaling, expected(128, (32.0, 1.0), own));
    assert_eq!(open(&plain).expect("good").config().max_positions, 512);
    let full = yarn(&|writer| {
        writer.integer("qwen2.rope.scaling.original_context_length", 32);
        writer.set("qwen2.rope.scaling.yarn_beta_fast", MetadataValue::Float(16.0));
        writer.set("qwen2.rope.scaling.yarn_beta_slow", MetadataValue::Float(2.0));
        writer.set("qwen2.rope.scaling.attn_factor", MetadataValue::Float(1.5));
    });
    assert_eq!(rope_of(&full).scaling, expected(32, (16.0, 2.0), 1.5 * own));
    // The original 32 positions are extended to 128.
    assert_eq!(open(&full).expect("good").config().max_positions, 128);
    let flat = yarn(&|writer| {
        writer.set("qwen2.rope.scaling.yarn_log_multiplier", MetadataValue::Float(1.0));
    });
    assert_eq!(rope_of(&flat).scaling, expected(128, (32.0, 1.0), 1.0));

    let message = refusal(&yarn(&|writer| writer.remove("qwen2.rope.scaling.factor")));
    assert!(message.contains("qwen2.rope.scaling.factor is missing"), "{message}");
    let message = refusal(&yarn(&|writer| {
        writer.set("qwen2.rope.scaling.yarn_ext_factor", MetadataValue::Float(0.5));
    }));
    assert!(message.contains("yarn_ext_factor is 0.5"), "{message}");
    let message = refusal(&yarn(&|w| w.tensor_f32("rope_freqs.weight", &[4], &[2.0; 4])));
    assert!(message.contains("yarn together with rope_freqs.weight"), "{message}");
}

#[test]
fn factors_of_llama3_are_recognised_and_others_kept() {
    // For a head of 8 elements and theta 500000, the wavelengths are 6, 167, 4443 and 118144
    // positions: two below 8192 / 4 (kept), one on the ramp, and one above 8192 (divided by 8).
    let ramp = {
        let wavelength = 2.0 * std::f64::consts::PI * 500_000f64.powf(0.5);
        let smooth = (8192.0 / wavelength - 1.0) / 3.0;
        1.0 / ((1.0 - smooth) / 8.0 + smooth)
    };
    let mut writer = small_model("llama");
    writer.set("llama.rope.freq_base", MetadataValue::Float(500_000.0));
    writer.tensor_f32("rope_freqs.weight", &[4], &[1.0, 1.0, ramp as f32, 8.0]);
    let expected = RopeScaling::Llama3 {
        factor: 8.0,
        low_freq_factor: 1.0,
        high_freq_factor: 4.0,
        original_max_positions: 8192,
    };
    assert_eq!(rope_of(&writer), Rope::new(500_000.0, expected));

    writer.tensor_f32("rope_freqs.weight", &[4], &[1.0; 4]);
    assert_eq!(rope_of(&writer).scaling, RopeScaling::None);

    writer.tensor_f32("rope_freqs.weight", &[4], &[1.0, 2.0, 4.0, 8.0]);
    let rope = rope_of(&writer);
    assert_eq!(rope.scaling, RopeScaling::Factors { factors: vec![1.0, 2.0, 4.0, 8.0] });
    let plain = Rope::new(500_000.0, RopeScaling::None).inverse_frequencies(HEAD_DIM);
    let expected: Vec<f32> = plain.iter().zip([1.0, 2.0, 4.0, 8.0]).map(|(f, by)| f / by).collect();
    assert_eq!(rope.inverse_frequencies(HEAD_DIM), expected);

    for other in [&[1.0, 1.0, 8.0][..], &[f32::NAN; 4], &[1.0, 1.0, 1.0, 0.0], &[]] {
        writer.tensor_f32("rope_freqs.weight", &[other.len()], other);
        let message = refusal(&writer);
        assert!(message.contains("rope_freqs.weight does not hold 4 positive"), "{message}");
    }
}

#[test]
fn longrope_has_two_lists_and_a_part_of_each_head() {
    let with = |change: &dyn Fn(&mut Writer)| {
        changed("phi3", &|writer| {
            writer.integer("phi3.rope.dimension_count", 4);
            writer.integer("phi3.rope.scaling.original_context_length", 32);
            writer.tensor_f32("rope_factors_long.weight", &[2], &[1.5, 4.0]);
            writer.tensor_f32("rope_factors_short.weight", &[2], &[1.0, 1.25]);
            change(writer);
        })
    };
    let rope = |attention_factor| Rope {
        theta: 10_000.0,
        rotary_dim: Some(4),
        temperature: None,
        scaling: RopeScaling::Longrope {
            short_factors: vec![1.0, 1.25],
            long_factors: vec![1.5, 4.0],
            original_max_positions: 32,
            attention_factor,
        },
    };
    assert_eq!(rope_of(&with(&|_| {})), rope(longrope_attention_factor(4.0, 32)));
    let said = with(&|w| w.set("phi3.rope.scaling.attn_factor", MetadataValue::Float(1.25)));
    assert_eq!(rope_of(&said), rope(1.25));

    let long = "rope_factors_long.weight";
    let cases: [(Writer, &str); 5] = [
        (with(&|w| w.tensor_f32(long, &[4], &[1.0; 4])), "does not hold 2 positive factors"),
        (with(&|w| w.tensors.retain(|(name, ..)| name != long)), "only one of its two lists"),
        (with(&|w| w.text("phi3.rope.scaling.type", "linear")), "linear together with longrope's"),
        (with(&|w| w.integer("phi3.rope.dimension_count", 10)), "an even part of a head"),
        (with(&|w| w.tensor(long, &[2], 1, vec![0; 4])), "no short vector of F32"),
    ];
    for (writer, part) in cases {
        let message = refusal(&writer);
        assert!(message.contains(part), "{message:?} does not say {part:?}");
    }
}
