//! Chat templates: Jinja, as Hugging Face's tokenizers render them.

use std::io::{self, Write};
use std::time::{SystemTime, UNIX_EPOCH};

use minijinja::value::{Kwargs, Rest};
use minijinja::{Environment, Error, ErrorKind, State, Value, context, filters};
use serde::Serialize;
use serde_json::ser::{Formatter, PrettyFormatter, Serializer};

/// One turn of a conversation.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct Message {
    pub role: String,
    pub content: String,
    /// What else the template is told of it, such as `name` and `tool_calls`.
    #[serde(flatten)]
    pub more: serde_json::Map<String, serde_json::Value>,
}

impl Message {
    /// A turn with further fields, as names and JSON texts; what is no JSON is left out.
    pub fn new(role: String, content: String, more: Vec<(String, String)>) -> Message {
        let more = more.into_iter().filter_map(|(name, text)| {
            let value = serde_json::from_str(&text).ok()?;
            Some((name, value))
        });
        Message { role, content, more: more.collect() }
    }

    /// Bytes of what was given.
    fn given(&self) -> usize {
        let more = self.more.iter().map(|(name, value)| name.len() + value.to_string().len());
        self.role.len() + self.content.len() + more.sum::<usize>()
    }
}

/// Why a conversation cannot be rendered.
#[derive(Debug, thiserror::Error)]
pub enum ChatError {
    #[error("the model's chat template is not valid Jinja: {0}")]
    Template(String),
    /// The template's own words, when it raised them.
    #[error("the model's chat template refuses this conversation: {0}")]
    Render(String),
}

/// A compiled template with the tokens it may write.
#[derive(Debug)]
pub struct ChatTemplate {
    environment: Environment<'static>,
    bos_token: String,
    eos_token: String,
}

const NAME: &str = "chat";

/// Steps that a template may take: some for itself and some for each message.
const STEPS: u64 = 5_000_000;
const STEPS_PER_MESSAGE: u64 = 50_000;

/// Bytes that a template may write: some for itself and some for each byte of the conversation.
const OUTPUT_BYTES: usize = 64 << 20;
const OUTPUT_BYTES_PER_BYTE: usize = 4;

/// The widest indent of `tojson`: each line of its output begins with it.
const MAX_INDENT: usize = 64;

impl ChatTemplate {
    /// Compiles a template.
    ///
    /// # Errors
    /// Text that is no Jinja.
    pub fn new(
        template: &str,
        bos_token: Option<&str>,
        eos_token: Option<&str>,
    ) -> Result<ChatTemplate, ChatError> {
        let mut environment = Environment::new();
        // As transformers configures Jinja.
        environment.set_trim_blocks(true);
        environment.set_lstrip_blocks(true);
        bound_filters(&mut environment);
        environment.add_function("raise_exception", |message: String| -> Result<String, Error> {
            Err(Error::new(ErrorKind::InvalidOperation, message))
        });
        environment.add_filter("tojson", to_json);
        environment
            .add_template_owned(NAME, template.to_owned())
            .map_err(|error| ChatError::Template(error.to_string()))?;
        Ok(ChatTemplate {
            environment,
            bos_token: bos_token.unwrap_or_default().to_owned(),
            eos_token: eos_token.unwrap_or_default().to_owned(),
        })
    }

    /// The text up to where the assistant's answer begins. `now` is what a template that asks for
    /// the date is told.
    ///
    /// # Errors
    /// A conversation that the template refuses.
    pub fn render(&self, messages: &[Message], now: SystemTime) -> Result<String, ChatError> {
        let refused = |error: Error| {
            let detail = error.detail().map_or_else(|| error.to_string(), str::to_owned);
            ChatError::Render(detail)
        };
        let mut environment = self.environment.clone();
        environment.add_function("strftime_now", move |format: String| strftime(&format, now));
        environment.set_fuel(Some(STEPS + STEPS_PER_MESSAGE * messages.len() as u64));
        let template = environment.get_template(NAME).map_err(refused)?;
        let given: usize = messages.iter().map(Message::given).sum();
        let limit = given.saturating_mul(OUTPUT_BYTES_PER_BYTE).saturating_add(OUTPUT_BYTES);
        let mut output = Bounded { text: Vec::new(), limit, exceeded: false };
        let rendered = template.render_captured_to(
            context! {
                messages => messages,
                add_generation_prompt => true,
                bos_token => self.bos_token,
                eos_token => self.eos_token,
                // transformers passes these as None, and templates ask "is not none".
                tools => (),
                documents => (),
            },
            &mut output,
        );
        if output.exceeded {
            return Err(ChatError::Render(format!("it writes more than {limit} bytes")));
        }
        rendered.map_err(|error| match error.kind() {
            ErrorKind::OutOfFuel => {
                ChatError::Render("it takes more steps than a conversation may need".into())
            }
            _ => refused(error),
        })?;
        String::from_utf8(output.text).map_err(|error| ChatError::Render(error.to_string()))
    }
}

/// Text that grows up to a limit.
struct Bounded {
    text: Vec<u8>,
    limit: usize,
    exceeded: bool,
}

impl Write for Bounded {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        if bytes.len() > self.limit - self.text.len() {
            self.exceeded = true;
            return Err(io::Error::other("the output is too long"));
        }
        self.text.extend_from_slice(bytes);
        Ok(bytes.len())
    }

    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}

/// Bounds what Jinja would allocate or loop for without taking a step.
fn bound_filters(environment: &mut Environment<'_>) {
    environment.add_filter("slice", |state: &State<'_, '_>, value: Value, count, fill| {
        filters::slice(state, value, bounded("slice", count)?, fill)
    });
    environment.add_filter("batch", |state: &State<'_, '_>, value: Value, count, fill| {
        filters::batch(state, value, bounded("batch", count)?, fill)
    });
    environment.add_filter("indent", indent);
    environment.add_filter("format", |state: &State<'_, '_>, text: Value, values: Rest<Value>| {
        check_widths(text.as_str().unwrap_or_default())?;
        filters::format(state, &text, values)
    });
    environment.set_unknown_method_callback(|state, value, method, arguments| {
        let empty = arguments.first().and_then(Value::as_str).is_some_and(str::is_empty);
        if method == "count" && empty {
            return Err(refusal("count() of an empty text".to_owned()));
        }
        minijinja_contrib::pycompat::unknown_method_callback(state, value, method, arguments)
    });
}

/// Largest number that a filter takes for a width or for a number of parts.
const FILTER_COUNT_MAX: usize = 1000;

fn refusal(reason: String) -> Error {
    Error::new(ErrorKind::InvalidOperation, reason)
}

fn bounded(filter: &str, count: usize) -> Result<usize, Error> {
    if count <= FILTER_COUNT_MAX {
        return Ok(count);
    }
    Err(refusal(format!("the filter {filter} takes at most {FILTER_COUNT_MAX}, not {count}")))
}

/// Refuses a format whose widths or precisions are large, or come as values.
fn check_widths(text: &str) -> Result<(), Error> {
    let long = |digits: &str| digits.parse().map_or(!digits.is_empty(), |n: usize| n > 1000);
    let large = text.split('%').skip(1).any(|conversion| {
        let spec = conversion.split(|c: char| c.is_ascii_alphabetic()).next().unwrap_or_default();
        spec.contains('*') || spec.split(|c: char| !c.is_ascii_digit()).any(long)
    });
    if large {
        return Err(refusal(format!("the filter format takes widths up to {FILTER_COUNT_MAX}")));
    }
    Ok(())
}

/// Jinja's `indent`: all lines but the first and blank ones, unless told otherwise.
fn indent(
    text: String,
    width: Option<usize>,
    first: Option<bool>,
    blank: Option<bool>,
    options: Kwargs,
) -> Result<String, Error> {
    let width = width.or(options.get("width")?).unwrap_or(4);
    let first = first.or(options.get("first")?).unwrap_or(false);
    let blank = blank.or(options.get("blank")?).unwrap_or(false);
    options.assert_all_used()?;
    let spaces = " ".repeat(bounded("indent", width)?);
    let lines = text.split('\n').enumerate().map(|(index, line)| {
        let indented = if index == 0 { first } else { blank || !line.trim().is_empty() };
        if indented { format!("{spaces}{line}") } else { line.to_owned() }
    });
    Ok(lines.collect::<Vec<_>>().join("\n"))
}

/// Python's `json.dumps(value, ensure_ascii=False)`. Jinja's own filter, made for HTML, would
/// escape `<`, `>`, `&` and `'`.
fn to_json(value: Value, options: Kwargs) -> Result<String, Error> {
    let indent: Option<usize> = options.get("indent")?;
    options.assert_all_used()?;
    if indent.is_some_and(|indent| indent > MAX_INDENT) {
        let reason = format!("tojson indents by at most {MAX_INDENT} spaces");
        return Err(Error::new(ErrorKind::InvalidOperation, reason));
    }
    let mut text = Vec::new();
    let written = match indent {
        Some(indent) => {
            let spaces = " ".repeat(indent);
            let format = PrettyFormatter::with_indent(spaces.as_bytes());
            value.serialize(&mut Serializer::with_formatter(&mut text, format))
        }
        None => value.serialize(&mut Serializer::with_formatter(&mut text, OneLine)),
    };
    written.map_err(|error| Error::new(ErrorKind::BadSerialization, error.to_string()))?;
    String::from_utf8(text)
        .map_err(|error| Error::new(ErrorKind::BadSerialization, error.to_string()))
}

/// Python's separators: `", "` and `": "`.
struct OneLine;

impl Formatter for OneLine {
    fn begin_array_value<W: ?Sized + Write>(
        &mut self,
        writer: &mut W,
        first: bool,
    ) -> io::Result<()> {
        if first { Ok(()) } else { writer.write_all(b", ") }
    }

    fn begin_object_key<W: ?Sized + Write>(
        &mut self,
        writer: &mut W,
        first: bool,
    ) -> io::Result<()> {
        if first { Ok(()) } else { writer.write_all(b", ") }
    }

    fn begin_object_value<W: ?Sized + Write>(&mut self, writer: &mut W) -> io::Result<()> {
        writer.write_all(b": ")
    }
}

/// The directives that published templates use: `%d %b %B %m %Y`.
fn strftime(format: &str, now: SystemTime) -> String {
    const MONTHS: [&str; 12] = [
        "January",
        "February",
        "March",
        "April",
        "May",
        "June",
        "July",
        "August",
        "September",
        "October",
        "November",
        "December",
    ];
    let seconds = now.duration_since(UNIX_EPOCH).map_or(0, |time| time.as_secs());
    let (year, month, day) = civil(seconds / 86400);
    let name = MONTHS[month as usize - 1];
    format
        .replace("%d", &format!("{day:02}"))
        .replace("%m", &format!("{month:02}"))
        .replace("%Y", &year.to_string())
        .replace("%b", &name[..3])
        .replace("%B", name)
}

/// Year, month and day of a day counted from 1970-01-01, in the Gregorian calendar.
fn civil(days: u64) -> (u64, u64, u64) {
    let shifted = days + 719_468;
    let era = shifted / 146_097;
    let day_of_era = shifted % 146_097;
    let year_of_era =
        (day_of_era - day_of_era / 1460 + day_of_era / 36_524 - day_of_era / 146_096) / 365;
    let day_of_year = day_of_era - (365 * year_of_era + year_of_era / 4 - year_of_era / 100);
    let shifted_month = (5 * day_of_year + 2) / 153;
    let day = day_of_year - (153 * shifted_month + 2) / 5 + 1;
    let month = if shifted_month < 10 { shifted_month + 3 } else { shifted_month - 9 };
    (year_of_era + era * 400 + u64::from(month <= 2), month, day)
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use super::*;

    const CHATML: &str = "{% for message in messages %}{{'<|im_start|>' + message['role'] + '\n' + \
     message['content'] + '<|im_end|>' + '\n'}}{% endfor %}{% if add_generation_prompt %}{{ \
    '<|im_start|>assistant\n' }}{% endif %}";
    const LLAMA3: &str = "{% set loop_messages = messages %}{% for message in loop_messages \
     %}{% set content = '<|start_header_id|>' + message['role'] + '<|end_header_id|>\n\n'+ \
     message['content'] | trim + '<|eot_id|>' %}{% if loop.index0 == 0 %}{% set content = \
     bos_token + content %}{% endif %}{{ content }}{% endfor %}{% if add_generation_prompt \
     %}{{ '<|start_header_id|>assistant<|end_header_id|>\n\n' }}{% endif %}";

    fn turns(turns: &[(&str, &str)]) -> Vec<Message> {
        turns
            .iter()
            .map(|(role, content)| Message::new((*role).into(), (*content).into(), Vec::new()))
            .collect()
    }

    #[test]
    fn chatml_and_llama3() {
        let chatml = ChatTemplate::new(CHATML, None, None).expect("a template");
        assert_eq!(
            chatml.render(&turns(&[("user", "Hi")]), UNIX_EPOCH).expect("rendered"),
            "<|im_start|>user\nHi<|im_end|>\n<|im_start|>assistant\n"
        );
        let llama3 = ChatTemplate::new(LLAMA3, Some("<bos>"), Some("<eos>")).expect("a template");
        assert_eq!(
            llama3
                .render(&turns(&[("system", "Be brief. "), ("user", "Hi")]), UNIX_EPOCH)
                .expect("rendered"),
            "<bos><|start_header_id|>system<|end_header_id|>\n\nBe brief.<|eot_id|>\
             <|start_header_id|>user<|end_header_id|>\n\nHi<|eot_id|>\
             <|start_header_id|>assistant<|end_header_id|>\n\n"
        );
    }

    #[test]
    fn python_methods_and_refusals() {
        let template = "{% if messages[0].role != 'user' %}{{ raise_exception('user first') }}{% \
         endif %}{{ messages[0].content.strip().startswith('a') }}";
        let template = ChatTemplate::new(template, None, None).expect("a template");
        assert_eq!(
            template.render(&turns(&[("user", " abc")]), UNIX_EPOCH).expect("rendered"),
            "True"
        );
        let error = template.render(&turns(&[("system", "x")]), UNIX_EPOCH).expect_err("refused");
        assert!(error.to_string().contains("user first"), "{error}");
        assert!(matches!(ChatTemplate::new("{% for %}", None, None), Err(ChatError::Template(_))));
    }

    #[test]
    fn templates_are_told_other_fields_in_their_order() {
        let calls =
            r#"[{"type": "function", "id": "c", "function": {"name": "f", "arguments": "{}"}}]"#;
        let more = vec![("name".into(), "\"Ada\"".into()), ("tool_calls".into(), calls.into())];
        let message = Message::new("assistant".into(), String::new(), more);
        let template = "{{ messages[0].name }} {{ messages[0].tool_calls | tojson }}\
                        {% if messages[0].tool_call_id is defined %}!{% endif %}";
        let template = ChatTemplate::new(template, None, None).expect("a template");
        assert_eq!(
            template.render(&[message], UNIX_EPOCH).expect("rendered"),
            format!("Ada {calls}")
        );
    }

    #[test]
    fn the_environment_is_that_of_transformers() {
        let render = |template: &str| {
            ChatTemplate::new(template, None, None)
                .and_then(|template| {
                    template.render(&turns(&[("user", "a<b>'é"), ("x", "y")]), UNIX_EPOCH)
                })
                .expect(template)
        };
        assert_eq!(render("{{ tools is none }} {{ documents is none }}"), "True True");
        assert_eq!(render("{{ messages[0].content | tojson }}"), r#""a<b>'é""#);
        assert_eq!(render("{{ {'a': [1, none, true]} | tojson }}"), r#"{"a": [1, null, true]}"#);
        assert_eq!(render("{{ messages[1:] | tojson }}"), r#"[{"role": "x", "content": "y"}]"#);
        assert_eq!(render("{{ {'a': 1} | tojson(indent=4) }}"), "{\n    \"a\": 1\n}");
        let skip = "{% for m in messages %}{% if m.role == 'user' %}{% continue %}{% endif %}\
                    {{ m.content }}{% break %}{% endfor %}";
        assert_eq!(render(skip), "y");
        // Blocks take their line with them.
        assert_eq!(render("a\n  {% if true %}\nb\n  {% endif %}\nc\n"), "a\nb\nc");
    }

    #[test]
    fn hostile_templates_are_refused() {
        let doubled = "{% for a in range(9000) %}{{ messages[0].content }}{% endfor %}";
        let endless =
            "{% for a in range(9999) %}{% for b in range(9999) %}{% endfor %}{% endfor %}";
        for (template, reason) in [
            (doubled, "bytes"),
            (endless, "steps"),
            ("{{ 1 | tojson(indent=9223372036854775807) }}", "64 spaces"),
            ("{{ range(5) | slice(4000000000) }}", "slice"),
            ("{{ range(5) | batch(4000000000, 1) }}", "batch"),
            ("{{ 'a' | indent(4000000000) }}", "indent"),
            ("{{ '%1000000000s' | format('a') }}", "format"),
            ("{{ 'aaa'.count('') }}", "count"),
        ] {
            let error = ChatTemplate::new(template, None, None)
                .and_then(|template| {
                    template.render(&turns(&[("user", &"x".repeat(10_000))]), UNIX_EPOCH)
                })
                .expect_err(template);
            assert!(error.to_string().contains(reason), "{template}: {error}");
        }
    }

    #[test]
    fn harmless_filters_do_what_jinja_does() {
        for (template, expected) in [
            ("{{ [1, 2, 3] | slice(2) | list }}", "[[1, 2], [3]]"),
            ("{{ [1, 2, 3] | batch(2, 0) | list }}", "[[1, 2], [3, 0]]"),
            ("{{ 'a\nb\n\nc' | indent }}", "a\n    b\n\n    c"),
            ("{{ 'a\nb' | indent(2, true) }}", "  a\n  b"),
            ("{{ 'a\n\nb' | indent(width=1, blank=true) }}", "a\n \n b"),
            ("{{ '%5s|%.2f' | format('a', 0.5) }}", "    a|0.50"),
            ("{{ '100%% of 5000000 s' | format() }}", "100% of 5000000 s"),
            ("{{ 'banana'.count('an') }}", "2"),
        ] {
            let template_made = ChatTemplate::new(template, None, None).expect(template);
            assert_eq!(
                template_made.render(&turns(&[]), UNIX_EPOCH).expect(template),
                expected,
                "{template}"
            );
        }
    }

    #[test]
    fn dates() {
        let template = ChatTemplate::new("{{ strftime_now('%d %b %Y') }}", None, None);
        let now = UNIX_EPOCH + Duration::from_secs(19_782 * 86400);
        assert_eq!(template.and_then(|it| it.render(&[], now)).expect("a date"), "29 Feb 2024");
        let at = |days: u64| UNIX_EPOCH + Duration::from_secs(days * 86400 + 3600);
        assert_eq!(strftime("%d %b %Y", at(0)), "01 Jan 1970");
        assert_eq!(strftime("%d %B %Y", at(19_782)), "29 February 2024");
        assert_eq!(strftime("%Y-%m-%d", at(20_819)), "2027-01-01");
    }
}
