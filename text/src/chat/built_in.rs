//! Templates of models that are published without one.

use model::config::Family;

/// Template of DeepSeek V4, which is published with a description of its prompts (`encoding/`).
const DEEPSEEK_V4: &str = include_str!("deepseek_v4.jinja");

/// Returns the template of a family whose files have none.
pub fn template_of(family: Family) -> Option<&'static str> {
    (family == Family::DeepseekV4).then_some(DEEPSEEK_V4)
}

#[cfg(test)]
mod tests {
    use std::time::UNIX_EPOCH;

    use super::*;
    use crate::chat::{ChatMessage, ChatTemplate};

    const TOOL: &str = r#"{"type": "function", "function": {"name": "sum"}}"#;

    fn turn(role: &str, content: &str, more: &[(&str, &str)]) -> ChatMessage {
        let more = more.iter().map(|(name, text)| ((*name).to_owned(), (*text).to_owned()));
        ChatMessage::new(role.to_owned(), content.to_owned(), more.collect())
    }

    /// Renders a conversation with some variables, up to the start of an answer.
    fn rendered(turns: &[ChatMessage], tools: &[&str], variables: &[(&str, &str)]) -> String {
        let (bos, eos) = (Some("<bos>"), Some("<eos>"));
        let text = template_of(Family::DeepseekV4).expect("a template");
        let template = ChatTemplate::new(text, bos, eos).expect("valid");
        let tools: Vec<String> = tools.iter().map(|&tool| tool.to_owned()).collect();
        let pair = |(name, text): &(&str, &str)| ((*name).to_owned(), (*text).to_owned());
        let variables: Vec<_> = variables.iter().map(pair).collect();
        template.render(turns, &tools, &variables, UNIX_EPOCH).expect("rendered")
    }

    #[test]
    fn only_families_without_templates_have_one() {
        assert_eq!(template_of(Family::DeepseekV3), None);
        assert_eq!(template_of(Family::Llama), None);
    }

    #[test]
    fn turns_of_deepseek_v4_follow_the_tokens_of_their_roles() {
        let thought = [("reasoning_content", "\"hm\"")];
        let turns = [
            turn("system", "Be good.", &[]),
            turn("user", "Hi", &[]),
            turn("assistant", "Yo", &thought),
            turn("user", "2", &[]),
        ];
        let start =
            "<bos>Be good.<｜User｜>Hi<｜Assistant｜></think>Yo<eos><｜User｜>2<｜Assistant｜>";
        assert_eq!(rendered(&turns, &[], &[]), format!("{start}</think>"));
        // Earlier reasoning is left out.
        for variable in
            [("thinking", "true"), ("enable_thinking", "true"), ("reasoning_effort", "\"high\"")]
        {
            assert_eq!(rendered(&turns, &[], &[variable]), format!("{start}<think>"));
        }
        let effort = [("reasoning_effort", "\"none\"")];
        assert_eq!(rendered(&turns, &[], &effort), format!("{start}</think>"));
        let most = rendered(&turns, &[], &[("reasoning_effort", "\"max\"")]);
        assert!(most.starts_with("<bos>Reasoning Effort: Absolute maximum"), "{most}");
        assert!(most.ends_with("<｜User｜>2<｜Assistant｜><think>"), "{most}");
    }

    #[test]
    fn answers_of_deepseek_v4_follow_their_token_after_every_role() {
        let thought = [("reasoning_content", "\"hm\"")];
        let turns = [
            turn("system", "S", &[]),
            turn("assistant", "A", &[]),
            turn("assistant", "B", &thought),
            turn("user", "U", &[]),
            turn("system", "T", &[]),
            turn("assistant", "C", &thought),
            turn("user", "V", &[]),
        ];
        let expected = "<bos>S<｜Assistant｜></think>A<eos>B<eos><｜User｜>U\
            T<｜Assistant｜></think>C<eos><｜User｜>V<｜Assistant｜><think>";
        assert_eq!(rendered(&turns, &[], &[("thinking", "true")]), expected);
    }

    #[test]
    fn calls_of_deepseek_v4_and_their_results_are_markup_within_turns() {
        let call = r#"[{"id": "1", "type": "function", "function": {"name": "sum",
            "arguments": {"text": "a \"b\"", "n": 7, "list": [1, "é"]}}}]"#;
        let turns = [
            turn("user", "Add.", &[]),
            turn("assistant", "", &[("reasoning_content", "\"hm\""), ("tool_calls", call)]),
            turn("tool", "42", &[("tool_call_id", "\"1\"")]),
            turn("tool", "43", &[]),
        ];
        let prompt = rendered(&turns, &[TOOL], &[("thinking", "true")]);
        let (described, said) = prompt.split_once("<｜User｜>").expect("a user");
        assert!(described.starts_with("<bos>\n\n## Tools\n\nYou have access to"), "{described}");
        assert!(described.contains("### Available Tool Schemas\n\n{\"name\": \"sum\"}\n\n"));
        assert!(described.ends_with("schemas to invoke tool calls.\n"), "{described}");
        let expected = "Add.<｜Assistant｜><think>hm</think>\n\n<｜DSML｜tool_calls>\n\
            <｜DSML｜invoke name=\"sum\">\n\
            <｜DSML｜parameter name=\"text\" string=\"true\">a \"b\"</｜DSML｜parameter>\n\
            <｜DSML｜parameter name=\"n\" string=\"false\">7</｜DSML｜parameter>\n\
            <｜DSML｜parameter name=\"list\" string=\"false\">[1, \"é\"]</｜DSML｜parameter>\n\
            </｜DSML｜invoke>\n</｜DSML｜tool_calls><eos>\
            <｜User｜><tool_result>42</tool_result>\n\n<tool_result>43</tool_result>\
            <｜Assistant｜><think>";
        assert_eq!(said, expected);
    }
}
