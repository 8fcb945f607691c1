//! Tests of tokenizers and templates that once made a run panic, abort or hang.

use serde_json::{Value, json};

use super::{copy_of, run};
use crate::command::{Place, lines};

/// Changes the JSON file `name` of a model's directory.
fn changed(model: &std::path::Path, name: &str, change: impl FnOnce(&mut Value)) {
    let path = model.join(name);
    let mut value = serde_json::from_slice(&std::fs::read(&path).expect("a file")).expect("JSON");
    change(&mut value);
    std::fs::write(path, value.to_string()).expect("writable");
}

/// Runs a chat, a text and token IDs; the IDs must be answered unless the whole model is refused,
/// for a reason that contains one of `words`.
fn judged(model: &std::path::Path, place: &Place, words: &[&str]) {
    let input = place.path("in.jsonl");
    let bodies = [
        json!({"messages": [{"role": "user", "content": "aaaa bbbb"}], "max_tokens": 2}),
        json!({"prompt": "aaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaab <unk> x", "max_tokens": 2}),
        json!({"prompt": [5, 6], "max_tokens": 2}),
    ];
    let text: String = bodies.iter().map(|body| format!("{body}\n")).collect();
    std::fs::write(&input, text).expect("writable");
    let output = place.path("out.jsonl");
    let _ = std::fs::remove_file(&output);
    let (code, said) = run(model, &input, &output);
    let stderr = std::fs::read_to_string(&output).unwrap_or_default() + &said;
    assert!(
        words.is_empty() || words.iter().any(|word| stderr.contains(word)),
        "{words:?}: {stderr}"
    );
    if code != Some(1) {
        let answers = lines(&output);
        assert_eq!(answers.len(), 3, "{stderr}");
        assert!(answers[2]["error"].is_null(), "{stderr}");
    }
}

#[test]
fn tokenizers_that_made_their_library_panic_or_hang() {
    let place = Place::new();
    let replaced: [(&str, Value); 11] = [
        ("decoder", json!({"type": "Replace", "pattern": {"String": ""}, "content": "a"})),
        (
            "decoder",
            json!({"type": "Sequence", "decoders": [
                {"type": "ByteLevel", "add_prefix_space": true, "trim_offsets": true,
                 "use_regex": true},
                {"type": "Strip", "content": "x", "start": 1, "stop": 1},
            ]}),
        ),
        ("decoder", json!({"type": "Strip", "content": "a", "start": 9, "stop": 9})),
        (
            "decoder",
            json!({"type": "CTC", "pad_token": "", "word_delimiter_token": "",
                           "cleanup": true}),
        ),
        ("normalizer", json!({"type": "Prepend", "prepend": ""})),
        ("normalizer", json!({"type": "Precompiled", "precompiled_charsmap": "AAAA"})),
        ("normalizer", json!({"type": "Precompiled", "precompiled_charsmap": "/////w=="})),
        ("pre_tokenizer", json!({"type": "FixedLength", "length": 0})),
        (
            "pre_tokenizer",
            json!({"type": "Split", "pattern": {"Regex": "(a|a|aa)+$"}, "behavior": "Isolated",
                   "invert": false}),
        ),
        (
            "post_processor",
            json!({"type": "TemplateProcessing",
                   "single": [{"SpecialToken": {"id": "<none>", "type_id": 0}},
                              {"Sequence": {"id": "A", "type_id": 0}}],
                   "pair": [{"Sequence": {"id": "A", "type_id": 0}},
                            {"Sequence": {"id": "B", "type_id": 0}}],
                   "special_tokens": {}}),
        ),
        (
            "post_processor",
            json!({"type": "TemplateProcessing",
                   "single": [{"Sequence": {"id": "B", "type_id": 0}}],
                   "pair": [{"Sequence": {"id": "A", "type_id": 0}}],
                   "special_tokens": {}}),
        ),
    ];
    for (field, value) in replaced {
        let model = copy_of("llama", &place.path("model"));
        changed(&model, "tokenizer.json", |tokenizer| tokenizer[field] = value);
        judged(&model, &place, &[]);
    }
}

#[test]
fn templates_that_ate_memory_or_the_stack() {
    let place = Place::new();
    let doubled = "{% set ns = namespace(a='xxxxxxxxxxxxxxxx') %}{% for i in range(60) %}\
        {% set ns.a = ns.a ~ ns.a %}{% endfor %}{{ ns.a | length }}";
    let multiplied = "{{ 'x' * 100000000000 }}";
    let captured = "{% set a %}{% for i in range(4000000) %}xxxxxxxxxxxxxxxxxxxxxxxxxxxxxxx\
        {% endfor %}{% endset %}{{ a | length }}";
    let recursion = "{% macro m(n) %}{{ m(n + 1) }}{% endmacro %}{{ m(0) }}";
    let centered = "{{ 'a' | center(100000000000) }}";
    let deep = format!("{{{{ {}1{} }}}}", "(".repeat(50_000), ")".repeat(50_000));
    let lists = format!("{{{{ {}1{} }}}}", "[".repeat(50_000), "]".repeat(50_000));
    let refused = ["cannot be rendered", "cannot be used", "Jinja"];
    for template in [doubled, multiplied, captured, recursion, centered, &deep, &lists] {
        let model = copy_of("llama", &place.path("model"));
        changed(&model, "tokenizer_config.json", |config| {
            config["chat_template"] = template.into()
        });
        judged(&model, &place, &refused);
    }
}
