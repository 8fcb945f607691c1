//! Tests of answers with details of their prompts, with the whole program.

use serde_json::{Value, json};

use crate::command::Place;
use crate::serve::Served;

/// A batch line that requests details of its prompt gets the same answer as a client's request,
/// whatever the placement; the answers to other lines of the job do not change.
#[test]
fn batch_lines_ask_of_their_prompts_as_clients_do() {
    let prompt: Vec<u32> = (0..60).map(|i| 5 + i * 13 % 300).collect();
    let echo = json!({"prompt": prompt, "max_tokens": 4, "echo": true, "logprobs": 3});
    let alone = json!({"prompt": prompt, "max_tokens": 0, "echo": true, "logprobs": 0});
    let told = json!({"prompt": prompt, "max_tokens": 2, "prompt_logprobs": 2});
    let served = Served::start(&["--slots", "2"]);
    let bodies = [echo, alone, told].map(|mut body| {
        body["temperature"] = json!(0);
        body
    });
    let choice_of = |answer: &Value| answer["choices"].clone();
    let asked = bodies.each_ref().map(|body| {
        let (status, reply) = served.post("/v1/completions", body);
        assert_eq!(status, 200, "{reply}");
        choice_of(&serde_json::from_str(&reply).expect("JSON"))
    });
    let plain = json!({"prompt": prompt[..9], "max_tokens": 5, "custom_id": "plain",
        "temperature": 1});
    let place = Place::new();
    let before = place.answered(std::slice::from_ref(&plain), &[]);
    let lines = [bodies.to_vec(), vec![plain]].concat();
    for options in [&[][..], &["--device", "emulated"], &["--batches", "1x1"]] {
        let answers = place.answered(&lines, options);
        for (answer, asked) in answers.iter().zip(&asked) {
            assert_eq!(&choice_of(&answer["response"]["body"]), asked, "{options:?}");
        }
        let of_line = |line: &Value| choice_of(&line["response"]["body"]);
        assert_eq!(of_line(&answers[3]), of_line(&before[0]), "{options:?}");
    }
}
