//! Tests of randomly changed files of a model.

use std::path::Path;

use serde_json::{Value, json};

use super::mutate::{self, Random};
use super::{copy_of, from_environment, run};
use crate::command::{Place, lines};

/// Default number of mutations over all files.
const CASES: u64 = 140;

/// Fragments of random templates.
const FRAGMENTS: [&str; 18] = [
    "{% for m in messages %}",
    "{% endfor %}",
    "{% if m.role == 'user' %}",
    "{% else %}",
    "{% endif %}",
    "{{ m.content }}",
    "{{ messages[0]['content'] | trim }}",
    "{{ messages | tojson(indent=999) }}",
    "{% set x = x ~ x %}",
    "{% set x = 'ab' * 1000000 %}",
    "{{ range(1000000000) | list | length }}",
    "{{ raise_exception('no') }}",
    "{% macro f(a) %}{{ f(a) }}{% endmacro %}",
    "{{ f(1) }}",
    "{{ messages[-1:1:0] }}",
    "{{ bos_token + eos_token }}",
    "{% generation %}",
    "{{ ''.join(messages) }}",
];

fn template(random: &mut Random) -> String {
    (0..=random.below(12)).map(|_| *random.pick(&FRAGMENTS)).collect()
}

/// Returns a part of a tokenizer, with numbers and strings that may be invalid.
fn component(random: &mut Random) -> (&'static str, Value) {
    let texts = ["", "a", "\u{2581}", "(a+)+$", "[", "<none>", "\u{301}"];
    let text = *random.pick(&texts);
    let number = *random.pick(&[0, 1, 3, 1_000_000_000_u64]);
    let pattern = match random.below(2) {
        0 => json!({"String": text}),
        _ => json!({"Regex": text}),
    };
    match random.below(12) {
        0 => ("decoder", json!({"type": "Replace", "pattern": pattern, "content": text})),
        1 => ("decoder", json!({"type": "Strip", "content": "a", "start": number, "stop": number})),
        2 => (
            "decoder",
            json!({"type": "Metaspace", "replacement": "\u{2581}",
                                "prepend_scheme": "always", "split": true}),
        ),
        3 => ("decoder", json!({"type": "WordPiece", "prefix": text, "cleanup": true})),
        4 => ("decoder", json!({"type": "BPEDecoder", "suffix": text})),
        5 => ("normalizer", json!({"type": "Prepend", "prepend": text})),
        6 => ("normalizer", json!({"type": "Replace", "pattern": pattern, "content": text})),
        7 => (
            "pre_tokenizer",
            json!({"type": "Split", "pattern": pattern,
                                      "behavior": "Isolated", "invert": number == 1}),
        ),
        8 => ("pre_tokenizer", json!({"type": "FixedLength", "length": number})),
        9 => (
            "truncation",
            json!({"direction": "Right", "max_length": number,
                                   "strategy": "LongestFirst", "stride": number}),
        ),
        10 => (
            "padding",
            json!({"strategy": {"Fixed": number}, "direction": "Left",
                                 "pad_to_multiple_of": number, "pad_id": number,
                                 "pad_type_id": 0, "pad_token": text}),
        ),
        _ => (
            "post_processor",
            json!({"type": "TemplateProcessing",
            "single": [{"SpecialToken": {"id": text, "type_id": 0}}], "pair": [],
            "special_tokens": {}}),
        ),
    }
}

/// Changes one file of the model and returns its name.
fn mutate_one(model: &Path, random: &mut Random) -> &'static str {
    let names = [
        "config.json",
        "generation_config.json",
        "tokenizer.json",
        "tokenizer.json",
        "tokenizer_config.json",
        "model.safetensors.index.json",
        "model-00002-of-00003.safetensors",
    ];
    let name = *random.pick(&names);
    let path = model.join(name);
    let mut bytes = std::fs::read(&path).expect("a file of the model");
    let read = serde_json::from_slice::<Value>(&bytes);
    match (read, random.below(5)) {
        (Ok(mut value), 0..4) => {
            match (name, random.below(2)) {
                ("tokenizer_config.json", 0) => value["chat_template"] = template(random).into(),
                ("tokenizer.json", 0) => {
                    let (field, part) = component(random);
                    value[field] = part;
                }
                _ => mutate::json(&mut value, random),
            }
            bytes = value.to_string().into_bytes();
        }
        (Err(_), 0..4) => {
            // The header of a safetensors file.
            let length = u64::from_le_bytes(bytes[..8].try_into().expect("eight bytes")) as usize;
            let mut header = bytes[8..8 + length].to_vec();
            match serde_json::from_slice::<Value>(&header) {
                Ok(mut value) if random.below(2) == 0 => {
                    mutate::json(&mut value, random);
                    header = value.to_string().into_bytes();
                }
                _ => mutate::bytes(&mut header, random),
            }
            let data = bytes.split_off(8 + length);
            bytes = (header.len() as u64).to_le_bytes().to_vec();
            bytes.extend(header);
            bytes.extend(data);
        }
        _ => mutate::bytes(&mut bytes, random),
    }
    std::fs::write(&path, bytes).expect("writable");
    name
}

/// Runs one of `of` equal parts of the cases, so that tests in parallel use every core.
fn share(number: u64, of: u64) {
    let cases = from_environment("TANDEM_FUZZ_CASES").unwrap_or(CASES) / of;
    let begin = from_environment("TANDEM_FUZZ_SEED").unwrap_or(1);
    let place = Place::new();
    let (input, output) = (place.path("in.jsonl"), place.path("out.jsonl"));
    let bodies = [
        json!({"prompt": [5, 6, 7], "max_tokens": 3}),
        json!({"prompt": "ab cd", "max_tokens": 3}),
        json!({"messages": [{"role": "user", "content": "x"}], "max_tokens": 3}),
    ];
    let text: String = bodies.iter().map(|body| format!("{body}\n")).collect();
    std::fs::write(&input, text).expect("writable");
    let clean = copy_of("llama3", &place.path("clean"));
    // The sharded fixture has weights, that of `llama` a tokenizer.
    for name in ["tokenizer.json", "tokenizer_config.json"] {
        std::fs::copy(crate::command::fixture("llama").join(name), clean.join(name))
            .expect("writable");
    }
    // Its vocabulary is smaller than its tokenizer's, so texts may be refused.
    assert!(matches!(run(&clean, &input, &output).0, Some(0 | 3)));
    let alone = lines(&output).remove(0);
    for case in 0..cases {
        let seed = begin.wrapping_mul(1_000_003).wrapping_add(number * 1_000_000 + case);
        let mut random = Random(seed);
        let model = place.path("model");
        for entry in std::fs::read_dir(&clean).expect("a folder").flatten() {
            std::fs::create_dir_all(&model).expect("writable");
            std::fs::copy(entry.path(), model.join(entry.file_name())).expect("writable");
        }
        let name = mutate_one(&model, &mut random);
        // Printed if the test fails: the last seed is the one that failed.
        eprintln!("seed {seed}, {name}");
        let _ = std::fs::remove_file(&output);
        let (code, said) = run(&model, &input, &output);
        if code == Some(1) {
            continue;
        }
        let answers = lines(&output);
        assert_eq!(answers.len(), bodies.len(), "seed {seed}, {name}: {said}");
        if name.starts_with("tokenizer") {
            let ids = |line: &Value| line["response"]["body"]["choices"][0]["token_ids"].clone();
            assert_eq!(ids(&answers[0]), ids(&alone), "seed {seed}, {name}: {said}");
        }
    }
}

#[test]
fn files_of_a_model_1() {
    share(0, 2);
}

#[test]
fn files_of_a_model_2() {
    share(1, 2);
}
