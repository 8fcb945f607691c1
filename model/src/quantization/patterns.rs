//! Names of modules as compressed-tensors selects them: a name, an expression after `re:` that
//! matches from the name's beginning, or the class `Linear`.

use std::collections::HashSet;

use fancy_regex::{Regex, RegexBuilder};
use serde_json::Value;

/// Maximum number of entries of a list, and of expressions in it: above those of published files,
/// which may list every module of a layer.
const ENTRIES_MAX: usize = 1 << 18;
const EXPRESSIONS_MAX: usize = 256;
/// Maximum length of an expression, and of the steps in which it may match a name.
const EXPRESSION_BYTES_MAX: usize = 4096;
const STEPS_MAX: usize = 10_000;
/// Maximum number of bytes of a compiled expression.
const COMPILED_BYTES_MAX: usize = 1 << 20;

/// A list of targets or of ignored modules.
#[derive(Debug, Clone, Default)]
pub(super) struct ModulePatterns {
    names: HashSet<String>,
    expressions: Vec<Regex>,
    /// The class of all matrices that can be quantised is in the list.
    has_linears: bool,
}

/// How closely a list describes a module. A name is closer than an expression, and an expression
/// is closer than a class.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub(super) enum PatternMatch {
    Name,
    Expression,
    Class,
}

impl ModulePatterns {
    /// Parses a list of strings; `None` if it is anything else, too long, or has an expression that
    /// is not supported.
    pub(super) fn parse(list: &Value) -> Option<ModulePatterns> {
        let list = list.as_array().filter(|list| list.len() <= ENTRIES_MAX)?;
        let mut patterns = ModulePatterns::default();
        for entry in list {
            match entry.as_str()? {
                "Linear" => patterns.has_linears = true,
                text => match text.strip_prefix("re:") {
                    Some(expression) => patterns.expressions.push(compiled(expression)?),
                    None => {
                        patterns.names.insert(text.to_owned());
                    }
                },
            }
        }
        (patterns.expressions.len() <= EXPRESSIONS_MAX).then_some(patterns)
    }

    /// Returns a list that contains every matrix.
    pub(super) fn all() -> ModulePatterns {
        ModulePatterns { has_linears: true, ..ModulePatterns::default() }
    }

    /// Returns how the list describes the module; `None` if it does not. An expression that takes
    /// too many steps does not match.
    pub(super) fn find(&self, module: &str) -> Option<PatternMatch> {
        if self.names.contains(module) {
            return Some(PatternMatch::Name);
        }
        if self.expressions.iter().any(|regex| regex.is_match(module).unwrap_or(false)) {
            return Some(PatternMatch::Expression);
        }
        self.has_linears.then_some(PatternMatch::Class)
    }
}

impl PartialEq for ModulePatterns {
    fn eq(&self, other: &ModulePatterns) -> bool {
        let texts = |patterns: &ModulePatterns| -> Vec<String> {
            patterns.expressions.iter().map(|regex| regex.as_str().to_owned()).collect()
        };
        (&self.names, self.has_linears, texts(self))
            == (&other.names, other.has_linears, texts(other))
    }
}

impl Eq for ModulePatterns {}

/// Compiles an expression so that it matches from the beginning of a name, as `re.match` does in
/// Python.
fn compiled(expression: &str) -> Option<Regex> {
    if expression.len() > EXPRESSION_BYTES_MAX {
        return None;
    }
    RegexBuilder::new(&format!("^(?:{expression})"))
        .backtrack_limit(STEPS_MAX)
        .delegate_size_limit(COMPILED_BYTES_MAX)
        .delegate_dfa_size_limit(COMPILED_BYTES_MAX)
        .build()
        .ok()
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    const EXPERT: &str = "model.layers.3.mlp.experts.17.up_proj";

    fn find(list: Value, module: &str) -> Option<PatternMatch> {
        ModulePatterns::parse(&list).expect("a good list").find(module)
    }

    #[test]
    fn modules_are_found_by_name_expression_and_class() {
        assert_eq!(find(json!([EXPERT]), EXPERT), Some(PatternMatch::Name));
        assert_eq!(find(json!(["Linear"]), EXPERT), Some(PatternMatch::Class));
        assert_eq!(find(json!(["Linear", EXPERT]), EXPERT), Some(PatternMatch::Name));
        assert_eq!(find(json!(["up_proj", "LlamaAttention"]), EXPERT), None);
        assert_eq!(find(json!([]), EXPERT), None);
        for (expression, is_found) in [
            (r"re:.*mlp\.experts\..*", true),
            (r"re:.*up_proj$", true),
            // From the beginning, but not to the end.
            ("re:model", true),
            ("re:layers", false),
            (r"re:.*mlp\.(gate|up|gate_up|down)_proj.*", false),
            ("re:.*self_attn.*", false),
            // Expressions that look ahead occur in published files.
            ("re:^(?!.*experts).*", false),
            ("re:^(?!.*self_attn).*", true),
        ] {
            let found = is_found.then_some(PatternMatch::Expression);
            assert_eq!(find(json!([expression]), EXPERT), found, "{expression}");
        }
    }

    #[test]
    fn lists_that_are_not_understood_are_none() {
        let long = format!("re:{}", "a".repeat(EXPRESSION_BYTES_MAX + 1));
        let many = vec!["re:a"; EXPRESSIONS_MAX + 1];
        for list in [
            json!("Linear"),
            json!([17]),
            json!(null),
            json!(["re:("]),
            json!(["re:(a{1000}){1000}"]),
            json!([long]),
            json!(many),
        ] {
            assert_eq!(ModulePatterns::parse(&list), None, "{list}");
        }
    }

    #[test]
    fn expressions_end_within_their_steps() {
        let name = "a".repeat(4000);
        assert_eq!(find(json!(["re:(a|a(?=a))*b(?=c)"]), &name), None);
    }
}
