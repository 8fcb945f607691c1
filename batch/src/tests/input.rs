//! Tests of every rule of the input, one line each.

use engine_api::codec::TextCodec;
use engine_api::request::{Penalties, Sampling};
use openai::input_line::{CompletionRequest, Endpoint, ErrorCode, InputLine, LineError};
use openai::prompt::ModelLimits;

use super::fake::{TestJob, read_items};
use testkit::byte_codec::{BOS, ByteCodec};

use crate::error::JobError;
use crate::input::{InputFormat, InputOptions};
use crate::kind::line_number;

const CODEC: ByteCodec = ByteCodec::CHAT;

fn options(codec: Option<&dyn TextCodec>) -> InputOptions<'_> {
    InputOptions {
        format: InputFormat::JsonLines,
        chat: false,
        chat_rules: Box::leak(Box::default()),
        max_tokens: None,
        seed: 7,
        now_s: 0,
        defaults: Box::leak(Box::default()),
        unknown_fields: Box::leak(Box::default()),
        codec,
        limits: ModelLimits { context: 64, vocab_size: 300, unsupported_tokenizer: None },
        bounds: None,
    }
}

fn read(bytes: &[u8]) -> Vec<InputLine> {
    read_items(bytes, &options(Some(&CODEC)))
}

pub(super) fn request(line: &str) -> CompletionRequest {
    match read(line.as_bytes()).pop().expect("one item") {
        InputLine::Request(request) => request,
        InputLine::Error(error) => panic!("{line}: {error:?}"),
    }
}

fn error_in(items: Vec<InputLine>) -> LineError {
    match items.into_iter().last().expect("one item") {
        InputLine::Error(error) => error,
        InputLine::Request(request) => panic!("{request:?}"),
    }
}

/// Asserts that the line is an error with `code` and a message that contains `words`.
#[track_caller]
pub(super) fn refused(line: &str, code: ErrorCode, words: &str) {
    let error = error_in(read(line.as_bytes()));
    assert_eq!(error.rejection.code, code, "{line}: {}", error.rejection.message);
    assert!(error.rejection.message.contains(words), "{line}: {}", error.rejection.message);
    assert!(error.rejection.message.ends_with('.'), "{line}: {}", error.rejection.message);
}

fn tokens(text: &str) -> Vec<u32> {
    text.bytes().map(u32::from).collect()
}

fn with_bos(text: &str) -> Vec<u32> {
    std::iter::once(BOS).chain(tokens(text)).collect()
}

#[test]
fn short_lines_and_their_defaults() {
    let request = request(r#"{"prompt": "ab"}"#);
    let id = openai::fingerprint::content_id(br#"{"prompt": "ab"}"#);
    assert_eq!(request.custom_id, format!("line-{id}"));
    assert_eq!(request.endpoint, Endpoint::Completions);
    assert_eq!(request.prompts.len(), 1);
    assert_eq!(request.prompts[0].tokens[..], with_bos("ab"));
    assert_eq!(request.prompts[0].max_new, 16);
    assert_eq!((request.sampling, request.seed), (Sampling::GREEDY, 7));
    assert_eq!((request.n, request.logprobs), (1, None));
    assert!(request.stop.is_empty());
}

#[test]
fn batch_lines_of_both_endpoints() {
    let text = request(
        r#"{"custom_id": "x", "method": "POST", "url": "/v1/completions", "body":
            {"model": "m", "prompt": "ab", "max_tokens": 3, "temperature": 0.5, "top_p": 0.9,
             "top_k": 40, "min_p": 0.1, "top_n_sigma": 1.5, "repetition_penalty": 1.5,
             "presence_penalty": -2,
             "frequency_penalty": 0.5, "min_tokens": 2, "n": 3, "logprobs": 2, "seed": 11, "stop": "\n", "user": "u", "metadata": {"a": "b"}, "store": true}}"#
            .replace('\n', " ")
            .as_str(),
    );
    assert_eq!((text.custom_id.as_str(), text.prompts[0].max_new), ("x", 3));
    let penalties = Penalties { repetition: 1.5, presence: -2.0, frequency: 0.5 };
    let (temperature, top_p, top_k, min_p, top_n_sigma) = (0.5, 0.9, 40, 0.1, 1.5);
    let min_tokens = 2;
    let sampling =
        Sampling { temperature, top_p, top_k, min_p, top_n_sigma, penalties, min_tokens };
    assert_eq!((text.sampling, text.seed, text.n), (sampling, 11, 3));
    assert_eq!((text.logprobs, text.logprobs_per_token()), (Some(2), 3));
    assert_eq!(text.stop[..], ["\n"]);
    let chat = request(
        r#"{"custom_id": "y", "method": "POST", "url": "/v1/chat/completions", "body": {"messages": [{"role": "system", "content": "s"}, {"role": "user", "content": [{"type": "text", "text": "a"}, {"type": "text", "text": "b"}]}], "max_completion_tokens": 5, "stop": ["a", "b"]}}"#,
    );
    assert_eq!(chat.endpoint, Endpoint::ChatCompletions);
    assert_eq!(chat.prompts[0].tokens[..], tokens("<system>s<user>ab"));
    assert_eq!(chat.prompts[0].max_new, 5);
    assert_eq!(chat.stop[..], ["a", "b"]);
    let short = request(r#"{"messages": [{"role": "user", "content": "hi"}]}"#);
    assert_eq!(short.endpoint, Endpoint::ChatCompletions);
}

#[test]
fn prompts_in_all_four_forms() {
    let prompts = |line: &str| -> Vec<Vec<u32>> {
        request(line).prompts.into_iter().map(|prompt| prompt.tokens.to_vec()).collect()
    };
    assert_eq!(prompts(r#"{"prompt": "a"}"#), [with_bos("a")]);
    assert_eq!(prompts(r#"{"prompt": [5, 6]}"#), [vec![5, 6]]);
    assert_eq!(prompts(r#"{"prompt": ["a", "bc"]}"#), [with_bos("a"), with_bos("bc")]);
    assert_eq!(prompts(r#"{"prompt": [[5], [6, 7]]}"#), [vec![5], vec![6, 7]]);
    for wrong in ["5", "{}", "[5, \"a\"]", "[\"a\", 5]", "[[5], \"a\"]", "[true]", "[1.5]"] {
        refused(&format!(r#"{{"prompt": {wrong}}}"#), ErrorCode::InvalidValue, "'prompt'");
    }
}

#[test]
fn blank_lines_crlf_and_bom() {
    let items = read(b"\xef\xbb\xbf{\"prompt\": \"a\"}\r\n\r\n  \t\n{\"prompt\": \"b\"}\r\n\n");
    let lines: Vec<usize> = items.iter().map(line_number).collect();
    assert_eq!(lines, [1, 4]);
    assert!(items.iter().all(|item| matches!(item, InputLine::Request(_))), "{items:?}");
    assert!(read(b"").is_empty() && read(b"\n\r\n").is_empty());
}

#[test]
fn a_bad_line_names_its_line_and_leaves_the_others() {
    let items = read(
        b"{\"prompt\": \"a\"}\n{\"prompt\": \n{\"prompt\": \"\xff\"}\n[1]\n{\"prompt\": \"b\"}",
    );
    let codes: Vec<Option<ErrorCode>> = items
        .iter()
        .map(|item| match item {
            InputLine::Error(error) => Some(error.rejection.code),
            InputLine::Request(_) => None,
        })
        .collect();
    let (json, utf8) = (Some(ErrorCode::InvalidJson), Some(ErrorCode::InvalidUtf8));
    assert_eq!(codes, [None, json, utf8, json, None]);
    let InputLine::Error(error) = &items[1] else { panic!("an error") };
    assert_eq!(error.line, 2);
    assert!(error.rejection.message.contains("column"), "{error:?}");
}

#[test]
fn duplicate_ids_are_errors_of_the_later_line() {
    let items = read(
        b"{\"custom_id\": \"a\", \"prompt\": \"x\"}\n{\"custom_id\": \"a\", \"prompt\": \"y\"}",
    );
    assert!(matches!(items[0], InputLine::Request(_)));
    let error = error_in(items);
    assert_eq!(error.rejection.code, ErrorCode::DuplicateCustomId);
    assert!(error.rejection.message.contains("\"a\" was already used in line 1"), "{error:?}");
    // A given ID also collides with a generated one.
    let made_up = request(r#"{"prompt": "y"}"#).custom_id;
    let lines =
        format!("{{\"custom_id\": \"{made_up}\", \"prompt\": \"x\"}}\n{{\"prompt\": \"y\"}}");
    let items = read(lines.as_bytes());
    assert_eq!(error_in(items).rejection.code, ErrorCode::DuplicateCustomId);
}

#[test]
fn chats_are_not_cut_at_the_few_tokens_of_a_completion() {
    let wide = InputOptions {
        limits: ModelLimits { context: 8192, ..options(Some(&CODEC)).limits },
        ..options(Some(&CODEC))
    };
    let max_new = |line: &[u8], options: &InputOptions<'_>| {
        let InputLine::Request(request) = read_items(line, options).remove(0) else {
            panic!("runs")
        };
        request.prompts[0].max_new
    };
    let chat = br#"{"messages": [{"role": "user", "content": "a"}]}"#;
    let completion = br#"{"prompt": "a"}"#;
    assert_eq!((max_new(chat, &wide), max_new(completion, &wide)), (1024, 16));
    assert_eq!(max_new(completion, &InputOptions { chat: true, ..wide }), 1024);
    let limits = ModelLimits { context: 100, ..wide.limits };
    let narrow = InputOptions { limits, ..wide };
    assert_eq!(max_new(chat, &narrow), 100 - tokens("<user>a").len() as u32);
    let given = InputOptions { max_tokens: Some(40), ..wide };
    assert_eq!((max_new(chat, &given), max_new(completion, &given)), (40, 40));
}

#[test]
fn ids_that_are_made_up_follow_the_content() {
    let ids = |bytes: &[u8], format: InputFormat| -> Vec<String> {
        let options = InputOptions { format, ..options(Some(&CODEC)) };
        let custom_id = |item: InputLine| match item {
            InputLine::Request(request) => request.custom_id,
            InputLine::Error(error) => error.custom_id,
        };
        read_items(bytes, &options).into_iter().map(custom_id).collect()
    };
    for format in [InputFormat::JsonLines, InputFormat::Text] {
        let before =
            ids(b"{\"prompt\": \"a\"}\n{\"prompt\": \"b\"}\n{\"prompt\": \"a\"}\n", format);
        assert!(before[0] != before[1] && before[2] == format!("{}-2", before[0]), "{before:?}");
        let after = ids(
            b"{\"prompt\": \"new\"}\n{\"prompt\": \"a\"}\n{\"prompt\": \
             \"b\"}\n{\"prompt\": \"a\"}\n",
            format,
        );
        assert_eq!(after[1..], before, "a line that is inserted changes no other");
    }
}

#[test]
fn envelopes_that_are_wrong() {
    let line = |method: &str, url: &str, rest: &str| {
        format!(r#"{{"custom_id": "a", "method": {method}, "url": {url}, {rest}}}"#)
    };
    let body = r#""body": {"prompt": "a"}"#;
    let url = r#""/v1/completions""#;
    refused(&line("\"GET\"", url, body), ErrorCode::UnsupportedMethod, "POST");
    refused(
        &line("\"POST\"", "\"/v1/messages\"", body),
        ErrorCode::UnsupportedUrl,
        "/v1/completions",
    );
    refused(
        &line("\"POST\"", "\"/v1/embeddings\"", body),
        ErrorCode::UnsupportedUrl,
        "a file of their own",
    );
    refused(&line("\"POST\"", "7", body), ErrorCode::UnsupportedUrl, "/v1/completions");
    refused(&line("\"POST\"", url, r#""body": 3"#), ErrorCode::InvalidValue, "'body'");
    refused(&line("\"POST\"", url, r#""body": {}"#), ErrorCode::MissingField, "'prompt'");
    refused(
        &line("\"POST\"", url, r#""n": 2, "body": {"prompt": "a"}"#),
        ErrorCode::UnsupportedField,
        "'n'",
    );
    refused(r#"{"url": "/v1/completions", "body": {}}"#, ErrorCode::MissingField, "'method'");
    refused(r#"{"method": "POST", "body": {}}"#, ErrorCode::MissingField, "'url'");
    refused(r#"{"method": "POST", "url": "/v1/completions"}"#, ErrorCode::MissingField, "'body'");
    refused(r#"{"custom_id": 5, "prompt": "a"}"#, ErrorCode::InvalidValue, "'custom_id'");
    refused(r#"{"custom_id": "", "prompt": "a"}"#, ErrorCode::InvalidValue, "'custom_id'");
    let error = error_in(read(line("\"GET\"", url, body).as_bytes()));
    assert_eq!(error.custom_id, "a");
}

#[test]
fn unimplemented_fields_pass_only_with_their_defaults() {
    for (field, default, other) in [
        ("best_of", "1", "3"),
        ("stream", "false", "true"),
        ("functions", "[]", r#"[{"name": "f"}]"#),
        ("suffix", "\"\"", "\"end\""),
        ("modalities", "[\"text\"]", "[\"audio\"]"),
        ("reasoning_effort", "null", "\"high\""),
    ] {
        let line = |value: &str| format!(r#"{{"prompt": "a", "{field}": {value}}}"#);
        assert_eq!(request(&line(default)).prompts.len(), 1, "{field}");
        assert_eq!(request(&line("null")).prompts.len(), 1, "{field}");
        refused(&line(other), ErrorCode::UnsupportedField, &format!("'{field}'"));
    }
}

#[test]
fn log_probabilities_as_either_endpoint_asks_for_them() {
    let completion = |fields: &str| request(&format!(r#"{{"prompt": "a", {fields}}}"#)).logprobs;
    assert_eq!(completion(r#""logprobs": 0"#), Some(0));
    assert_eq!(completion(r#""logprobs": 20"#), Some(20));
    assert_eq!(completion(r#""logprobs": false"#), None);
    assert_eq!(completion(r#""logprobs": null"#), None);
    refused(r#"{"prompt": "a", "top_logprobs": 2}"#, ErrorCode::UnsupportedField, "top_logprobs");
    let line =
        |fields: &str| format!(r#"{{"messages": [{{"role": "user", "content": "a"}}], {fields}}}"#);
    let chat = |fields: &str| request(&line(fields)).logprobs;
    assert_eq!(chat(r#""logprobs": true"#), Some(0));
    assert_eq!(chat(r#""logprobs": true, "top_logprobs": 5"#), Some(5));
    assert_eq!(chat(r#""logprobs": false, "top_logprobs": 0"#), None);
    for wrong in
        [r#""logprobs": 2"#, r#""top_logprobs": 5"#, r#""logprobs": true, "top_logprobs": 21"#]
    {
        refused(&line(wrong), ErrorCode::InvalidValue, "logprobs");
    }
}

#[test]
fn values_out_of_range() {
    for (field, wrong) in [
        ("max_tokens", "0"),
        ("max_tokens", "-1"),
        ("max_tokens", "1.5"),
        ("max_tokens", "\"5\""),
        ("max_completion_tokens", "0"),
        ("temperature", "-0.1"),
        ("temperature", "2.1"),
        ("temperature", "\"hot\""),
        ("top_p", "0"),
        ("top_p", "1.01"),
        ("top_k", "-2"),
        ("top_k", "0.5"),
        ("min_p", "-0.1"),
        ("min_p", "1.1"),
        ("top_n_sigma", "-0.5"),
        ("repetition_penalty", "0"),
        ("presence_penalty", "2.5"),
        ("frequency_penalty", "\"a\""),
        ("min_tokens", "-1"),
        ("n", "0"),
        ("n", "129"),
        ("n", "true"),
        ("logprobs", "21"),
        ("logprobs", "-1"),
        ("logprobs", "true"),
        ("seed", "1.5"),
        ("stop", "\"\""),
        ("stop", "[\"a\", \"\"]"),
        ("stop", "[1]"),
        ("stop", "7"),
    ] {
        let line = format!(r#"{{"prompt": "a", "{field}": {wrong}}}"#);
        refused(&line, ErrorCode::InvalidValue, &format!("'{field}'"));
    }
    let both = r#"{"prompt": "a", "max_tokens": 2, "max_completion_tokens": 3}"#;
    refused(both, ErrorCode::InvalidValue, "differ");
    assert_eq!(request(r#"{"prompt": "a", "seed": -1}"#).seed, u64::MAX);
    assert!(request(r#"{"prompt": "a", "top_p": 1e-300}"#).sampling.top_p > 0.0);
    assert_eq!(request(r#"{"prompt": "a", "top_k": -1}"#).sampling.top_k, 0);
    refused(r#"{"prompt": "a", "messages": []}"#, ErrorCode::UnsupportedField, "'prompt'");
}

#[test]
fn empty_prompts_in_every_form() {
    for prompt in ["\"\"", "[]", "[[]]", "[[5], []]", "[\"a\", \"\"]"] {
        refused(&format!(r#"{{"prompt": {prompt}}}"#), ErrorCode::EmptyPrompt, "empty");
    }
    refused(r#"{"messages": []}"#, ErrorCode::EmptyPrompt, "empty");
    refused(r#"{"prompt": null}"#, ErrorCode::MissingField, "'prompt'");
}

#[test]
fn messages_that_are_wrong() {
    let refuse = |messages: &str, code, words: &str| {
        refused(&format!(r#"{{"messages": {messages}}}"#), code, words);
    };
    refuse("5", ErrorCode::InvalidValue, "'messages'");
    refuse("[5]", ErrorCode::InvalidValue, "'messages'");
    refuse(r#"[{"content": "a"}]"#, ErrorCode::InvalidValue, "'role'");
    refuse(r#"[{"role": "user"}]"#, ErrorCode::InvalidValue, "'content'");
    refuse(r#"[{"role": "user", "content": 5}]"#, ErrorCode::InvalidValue, "'content'");
    let image = r#"[{"role": "user", "content": [{"type": "image_url", "image_url": {}}]}]"#;
    refuse(image, ErrorCode::UnsupportedField, "image_url");
    refuse(r#"[{"role": "user", "content": "a", "mood": 1}]"#, ErrorCode::UnsupportedField, "mood");
    let misplaced = r#"{"method": "POST", "url": "/v1/chat/completions", "body": {"messages": [{"role": "user", "content": "a"}], "prompt": "b"}}"#;
    refused(misplaced, ErrorCode::UnsupportedField, "'prompt'");
}

#[test]
fn context_and_vocabulary() {
    let ids = |count: usize| format!("{:?}", vec![5; count]);
    let cut = request(&format!(r#"{{"prompt": {}, "max_tokens": 1000}}"#, ids(60)));
    assert_eq!(cut.prompts[0].max_new, 4);
    let huge = request(r#"{"prompt": [5], "max_tokens": 99999999999999}"#);
    assert_eq!(huge.prompts[0].max_new, 63);
    for count in [64, 65, 1000] {
        let prompt = format!(r#"{{"prompt": {}}}"#, ids(count));
        refused(&prompt, ErrorCode::ContextLengthExceeded, "maximum context length is 64 tokens");
    }
    refused(r#"{"prompt": [5, 300]}"#, ErrorCode::TokenOutOfVocabulary, "300");
    refused(r#"{"prompt": [99999999999]}"#, ErrorCode::TokenOutOfVocabulary, "vocabulary");
    refused(r#"{"prompt": [5, -1]}"#, ErrorCode::TokenOutOfVocabulary, "-1");
    assert_eq!(request(r#"{"prompt": [299]}"#).prompts[0].tokens[..], [299]);
}

#[test]
fn without_tokenizer_only_token_ids_run() {
    let code = |line: &[u8]| match &read_items(line, &options(None))[0] {
        InputLine::Error(error) => Some(error.rejection.code),
        InputLine::Request(_) => None,
    };
    assert_eq!(code(br#"{"prompt": [5, 6]}"#), None);
    let none = Some(ErrorCode::NoTokenizer);
    assert_eq!(code(br#"{"prompt": "a"}"#), none);
    assert_eq!(code(br#"{"messages": [{"role": "user", "content": "a"}]}"#), none);
    assert_eq!(code(br#"{"prompt": [5], "stop": "a"}"#), none);
}

#[test]
fn a_tokenizer_that_cannot_be_read_is_named() {
    let sentence = |line: &[u8], unread_tokenizer| {
        let mut options = options(None);
        options.limits.unsupported_tokenizer = unread_tokenizer;
        error_in(read_items(line, &options)).rejection.message
    };
    let prompt = br#"{"prompt": "a"}"#;
    assert_eq!(
        sentence(prompt, None),
        "This model has no tokenizer; specify the prompt as an array of token ids."
    );
    let tekken = sentence(prompt, Some("tekken.json"));
    for words in
        ["tekken.json", "cannot be read", "array of token ids", "tokenizer.json next to it"]
    {
        assert!(tekken.contains(words), "{tekken}");
    }
    let stop = sentence(br#"{"prompt": [5], "stop": "a"}"#, Some("tokenizer.model"));
    assert!(stop.contains("tokenizer.model") && stop.contains("'stop'"), "{stop}");
}

#[test]
fn text_that_the_model_refuses() {
    let long = format!(r#"{{"prompt": "{}"}}"#, "a".repeat(1000));
    refused(&long, ErrorCode::ContextLengthExceeded, "1000 tokens");
    refused(r#"{"prompt": "\u0001"}"#, ErrorCode::Tokenizer, "no such character");
    let plain = ByteCodec::PLAIN;
    let line = br#"{"messages": [{"role": "user", "content": "a"}]}"#;
    let error = error_in(read_items(line, &options(Some(&plain))));
    assert_eq!(error.rejection.code, ErrorCode::ChatTemplate);
}

#[test]
fn text_files_and_chat() {
    let text = InputOptions { format: InputFormat::Text, ..options(Some(&CODEC)) };
    let prompts = |bytes: &[u8], options: &InputOptions<'_>| -> Vec<(usize, Vec<u32>)> {
        let items = read_items(bytes, options);
        items
            .into_iter()
            .map(|item| match item {
                InputLine::Request(request) => (request.line, request.prompts[0].tokens.to_vec()),
                InputLine::Error(error) => panic!("{error:?}"),
            })
            .collect()
    };
    let bytes = b"\xef\xbb\xbf{\"not\": json\r\n\n  two \nlast";
    let expected =
        [(1, with_bos("{\"not\": json")), (3, with_bos("  two ")), (4, with_bos("last"))];
    assert_eq!(prompts(bytes, &text), expected);
    let chat = InputOptions { chat: true, ..text };
    assert_eq!(prompts(b"hi\n", &chat), [(1, tokens("<user>hi"))]);
    let lines = InputOptions { format: InputFormat::JsonLines, ..chat };
    let mixed = b"{\"prompt\": \"hi\"}\n{\"prompt\": [5]}\n{\"messages\": \
     [{\"role\": \"user\", \"content\": \"yo\"}]}";
    let expected = [(1, tokens("<user>hi")), (2, vec![5]), (3, tokens("<user>yo"))];
    assert_eq!(prompts(mixed, &lines), expected);
    let error = error_in(read_items(b"\xff\n", &text));
    assert_eq!(error.rejection.code, ErrorCode::InvalidUtf8);
}

#[test]
fn requests_in_another_wrapping_are_refused_as_a_whole() {
    let array = b" [{\"prompt\": \"a\"},\n {\"prompt\": \"b\"}]\n";
    let refused = |test_job: TestJob| test_job.prepare().expect_err("refused");
    assert!(matches!(refused(TestJob::new(array)), JobError::ArrayInput { .. }));
    for name in ["in.jsonl", "in.txt"] {
        let gzip = TestJob::named(name, b"\x1f\x8b\x08\x00and so on");
        assert!(matches!(refused(gzip), JobError::CompressedInput { .. }));
    }
    // A text may begin with a bracket, and a line that is not an object is an error of that line
    // only.
    assert!(TestJob::named("in.txt", array).prepare().is_ok());
    assert!(TestJob::new(b"[5, 6]\n{\"prompt\": \"b\"}\n").prepare().is_ok());
}

#[test]
fn rules_about_tokens_are_within_the_vocabulary_and_bounds() {
    let line = |fields: &str| format!(r#"{{"prompt": "a", {fields}}}"#);
    let given = request(&line(r#""logit_bias": {"7": -100, "5": 1.5}, "stop_token_ids": [9, 3]"#));
    let rules = given.token_rules.expect("they are given");
    assert_eq!(rules.logit_bias, [(7, -100.0), (5, 1.5)]);
    assert_eq!(rules.stop_token_ids, [9, 3]);
    let none = line(r#""logit_bias": {}, "stop_token_ids": []"#);
    assert_eq!(request(&none).token_rules, None);
    for wrong in [r#"{"a": 1}"#, r#"{"7": 101}"#, r#"{"7": "1"}"#, r#"{"-7": 1}"#, "[]"] {
        let fields = format!(r#""logit_bias": {wrong}"#);
        refused(&line(&fields), ErrorCode::InvalidValue, "'logit_bias'");
    }
    for wrong in ["7", "[-1]", "[4294967296]", "[\"7\"]"] {
        let fields = format!(r#""stop_token_ids": {wrong}"#);
        refused(&line(&fields), ErrorCode::InvalidValue, "'stop_token_ids'");
    }
    let many: Vec<String> = (0..1025).map(|token| format!(r#""{token}": 1"#)).collect();
    let fields = format!(r#""logit_bias": {{{}}}"#, many.join(","));
    refused(&line(&fields), ErrorCode::InvalidValue, "at most 1024");
    let fields = format!(r#""stop_token_ids": {:?}"#, [0; 129]);
    refused(&line(&fields), ErrorCode::InvalidValue, "at most 128");
    for outside in [r#""logit_bias": {"100000": 1}"#, r#""stop_token_ids": [100000]"#] {
        refused(&line(outside), ErrorCode::TokenOutOfVocabulary, "100000");
    }
}
