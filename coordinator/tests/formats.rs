//! Tests of every example of `docs/formats.md` with the code that reads and writes the real files.

use std::ops::ControlFlow;

use batch::input::{InputFormat, InputOptions};
use batch::read::parse_input;
use batch::score::line::{LineOptions, parse_line};
use batch::score::output::ScoreLine;
use batch::score::summary::ScoreSummary;
use batch::score::tokens::PrefixToken;
use engine_api::codec::{CodecError, Conversation, TextCodec, TextContext, TextStream};
use openai::body::defaults::Defaults;
use openai::body::unknown_fields::UnknownFieldPolicy;
use openai::chats::ChatRules;
use openai::input_line::InputLine;
use openai::output::OutputLine;
use openai::prompt::ModelLimits;
use report::file::Report;

const FORMATS: &str = include_str!("../../docs/formats.md");

/// Returns the blocks of the document whose fence has the info string `kind`, at least one.
fn blocks(kind: &str) -> Vec<String> {
    let mut blocks = Vec::new();
    let mut open: Option<(bool, String)> = None;
    for line in FORMATS.lines() {
        match (&mut open, line.strip_prefix("```")) {
            (None, Some(info)) => open = Some((info == kind, String::new())),
            (Some(_), Some(_)) => {
                blocks.extend(open.take().and_then(|(wanted, text)| wanted.then_some(text)));
            }
            (Some((_, text)), None) => {
                text.push_str(line);
                text.push('\n');
            }
            (None, None) => {}
        }
    }
    assert!(!blocks.is_empty(), "no example of {kind}");
    blocks
}

#[derive(Debug)]
struct OneTokenPerByte;

impl TextCodec for OneTokenPerByte {
    fn encode(&self, text: &str, _max_tokens: usize) -> Result<Vec<u32>, CodecError> {
        Ok(text.bytes().map(u32::from).collect())
    }

    fn encode_part(&self, text: &str) -> Result<Vec<u32>, CodecError> {
        self.encode(text, usize::MAX)
    }

    fn encode_chat(
        &self,
        chat: &Conversation,
        _now_s: u64,
        max_tokens: usize,
    ) -> Result<Vec<u32>, CodecError> {
        let text: String = chat.turns.iter().map(|turn| turn.content.as_str()).collect();
        self.encode(&text, max_tokens)
    }

    fn tools_template(&self) -> Result<Option<String>, CodecError> {
        Ok(Some("tools: <tool_call>arguments</tool_call>".to_owned()))
    }

    fn special_token(&self, _text: &str) -> Result<Option<u32>, CodecError> {
        Ok(None)
    }

    fn bytes(&self, token: u32) -> Vec<u8> {
        u8::try_from(token).into_iter().collect()
    }

    fn pieces(&self, _context: &TextContext, tokens: &[u32]) -> Result<Vec<String>, CodecError> {
        Ok(vec![String::new(); tokens.len() + 1])
    }

    fn stream(&self, _context: &TextContext) -> Box<dyn TextStream + '_> {
        Box::new(NoText)
    }
}

/// Decoder without text: inputs are only read here, nothing is generated.
struct NoText;

impl TextStream for NoText {
    fn push(&mut self, _token: u32) -> Result<String, CodecError> {
        Ok(String::new())
    }
}

fn all_are_requests(text: &str, format: InputFormat) {
    let options = InputOptions {
        format,
        chat: false,
        chat_rules: &ChatRules::default(),
        max_tokens: None,
        seed: 0,
        now_s: 0,
        defaults: &Defaults::default(),
        unknown_fields: &UnknownFieldPolicy::default(),
        codec: Some(&OneTokenPerByte),
        limits: ModelLimits { context: 4096, vocab_size: 50_000, unsupported_tokenizer: None },
        bounds: None,
    };
    let items = parse_input(text.as_bytes(), &options, &mut |_, _| ControlFlow::Continue(()));
    let items = items.expect("read to the end");
    assert_eq!(items.len(), text.lines().count());
    for item in items {
        assert!(matches!(item, InputLine::Request(_)), "{item:?}");
    }
}

#[test]
fn inputs_are_requests() {
    for block in blocks("jsonl input") {
        all_are_requests(&block, InputFormat::JsonLines);
    }
    for block in blocks("text input") {
        all_are_requests(&block, InputFormat::Text);
    }
}

#[test]
fn outputs_read_and_write_as_they_stand() {
    for block in blocks("jsonl output") {
        for line in block.lines() {
            let parsed: OutputLine = serde_json::from_str(line).expect(line);
            assert_eq!(serde_json::to_string(&parsed).expect("serialises"), line);
        }
    }
}

#[test]
fn scores_read_and_write_as_they_stand() {
    let options = LineOptions {
        limits: ModelLimits { context: 4096, vocab_size: 50_000, unsupported_tokenizer: None },
        prefix: PrefixToken(None),
        codec: Some(&OneTokenPerByte),
    };
    for line in blocks("jsonl score").iter().flat_map(|block| block.lines()) {
        parse_line(line.as_bytes(), 1, &options).result.expect(line);
    }
    for line in blocks("jsonl scores").iter().flat_map(|block| block.lines()) {
        let parsed: ScoreLine = serde_json::from_str(line).expect(line);
        assert_eq!(serde_json::to_string(&parsed).expect("serialises"), line);
    }
    for line in blocks("json summary") {
        let parsed: ScoreSummary = serde_json::from_str(&line).expect(&line);
        assert_eq!(serde_json::to_string(&parsed).expect("serialises"), line.trim());
    }
}

/// The examples of tables and machine files are those that `plan` prints, and every field is
/// documented.
#[test]
fn tables_and_machine_files_are_the_templates() {
    use coordinator::cli::request::Template;
    use coordinator::commands::plan::templates::template_text;
    assert_eq!(blocks("toml machine"), [template_text(Template::Machine)]);
    assert_eq!(blocks("json table"), [template_text(Template::Table)]);
    let toml = template_text(Template::Machine).lines().filter_map(|line| line.split_once(" = "));
    let json = template_text(Template::Table).split('"').filter(|word| word.ends_with("_ms"));
    for field in toml.map(|(field, _)| field).chain(json) {
        assert!(FORMATS.contains(&format!("`{field}`")), "{field}");
    }
}

/// The examples are complete: the code that reads the real files accepts them, and every section is
/// known or documented.
#[test]
fn tables_and_machine_files_are_read() {
    for block in blocks("toml machine") {
        let machine = planner::machine::Machine::from_toml(&block).expect("a machine");
        assert!(machine.running.is_some() && machine.cpu.bf16.four_bit.is_some());
        for section in block.lines().filter(|line| line.starts_with('[')) {
            let name = section.trim_matches(['[', ']']);
            let known = ["cpu", "gpu", "link", "memory", "tier", "nvme"].contains(&name);
            assert!(known || FORMATS.contains(&format!("`[{name}]`")), "{section}");
        }
    }
    for block in blocks("json table") {
        planner::layer::table::OperationTable::from_json(&block).expect("a table");
    }
}

#[test]
fn every_error_code_is_listed() {
    use openai::input_line::ErrorCode;
    for code in ErrorCode::ALL {
        assert!(FORMATS.contains(&format!("`{}`", code.name())), "{}", code.name());
    }
}

/// The example contains the names that the report guarantees.
#[test]
fn the_report_is_one_object_with_the_promised_names() {
    for block in blocks("json report") {
        let report: serde_json::Value = serde_json::from_str(&block).expect("JSON");
        let read: Report = serde_json::from_str(&block).expect("a report");
        assert_eq!(serde_json::to_value(read).expect("serialises"), report);
        for name in [
            "version",
            "model",
            "batches",
            "batch_size",
            "prompt_len",
            "gen_len",
            "device",
            "policy",
            "device_map",
            "threads",
            "kernel_variants",
            "prefill_s",
            "decode_s",
            "total_s",
            "prefill_tokens_per_s",
            "decode_tokens_per_s",
            "total_tokens_per_s",
            "predicted",
            "lanes",
            "overlap",
            "time_outside",
            "peak_pss_bytes",
        ] {
            assert!(report.get(name).is_some(), "{name}");
        }
    }
}
