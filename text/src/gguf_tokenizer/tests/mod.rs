mod unsaid;
mod writer;

use std::path::Path;

use model::source::gguf::GgufSource;
use model::source::gguf::metadata::{MetadataArray, MetadataValue};
use rand_chacha::ChaCha8Rng;
use rand_core::{RngCore, SeedableRng};

use super::*;
use writer::Writer;

fn build(writer: &Writer) -> Result<Option<GgufTokenizer>, GgufTokenizerError> {
    GgufTokenizer::from_metadata(&writer.metadata(), "small.gguf")
}

fn tokenizer(writer: &Writer) -> GgufTokenizer {
    build(writer).expect("a good file").expect("with a tokenizer")
}

fn ids(tokenizer: &GgufTokenizer, text: &str) -> Vec<u32> {
    tokenizer.text.encode(text, true).expect("encodable")
}

/// Returns the spellings of a text's tokens.
fn pieces(tokenizer: &GgufTokenizer, tokens: &[&str], text: &str) -> Vec<String> {
    ids(tokenizer, text).into_iter().map(|id| tokens[id as usize].to_owned()).collect()
}

const CONTROL: i64 = 3;
const USER_DEFINED: i64 = 4;
const BYTE: i64 = 6;

/// Byte-level tokens; `Ġ` represents a space and `Ċ` a newline.
const TOKENS: [&str; 21] = [
    "<|start|>",
    "<|end|>",
    "<tool>",
    "a",
    "b",
    "c",
    "1",
    "2",
    "3",
    "Ġ",
    "Ċ",
    "'",
    "s",
    "S",
    "ab",
    "Ġab",
    "12",
    "123",
    "'s",
    "'S",
    "abc",
];
const MERGES: [&str; 7] = ["a b", "Ġ ab", "1 2", "12 3", "' s", "' S", "Ġ Ġ"];

fn byte_level(pre: &str) -> Writer {
    let mut tokens = TOKENS.to_vec();
    tokens.push("ĠĠ");
    let mut kinds = vec![1; tokens.len()];
    (kinds[0], kinds[1], kinds[2]) = (CONTROL, CONTROL, USER_DEFINED);
    let mut writer = Writer::new();
    writer.text("tokenizer.ggml.model", "gpt2");
    writer.texts("tokenizer.ggml.tokens", &tokens);
    writer.set("tokenizer.ggml.token_type", MetadataValue::Array(MetadataArray::Signed(kinds)));
    writer.texts("tokenizer.ggml.merges", &MERGES);
    writer.integer("tokenizer.ggml.bos_token_id", 0);
    writer.integer("tokenizer.ggml.eos_token_id", 1);
    writer.text("tokenizer.ggml.pre", pre);
    writer
}

#[test]
fn each_pre_tokenizer_splits_its_own_way() {
    // The digits "123", a capital 'S, a run of spaces before a word, a newline.
    let text = "ab 123'S  ab\nabc";
    let split = |pre| {
        let tokenizer = tokenizer(&byte_level(pre));
        let mut tokens = TOKENS.to_vec();
        tokens.push("ĠĠ");
        let prefix = usize::from(pre == "llama-bpe");
        pieces(&tokenizer, &tokens, text)[prefix..].join("|")
    };
    // GPT-2 joins a number with the space before it, and recognises only a lower-case 's.
    assert_eq!(split("gpt-2"), "ab|Ġ|123|'|S|Ġ|Ġab|Ċ|ab|c");
    // SmolLM splits digits one by one before it applies GPT-2's rules.
    assert_eq!(split("smollm"), "ab|Ġ|1|2|3|'|S|Ġ|Ġab|Ċ|ab|c");
    // LLaMA-3 does not join numbers with spaces, and uses whole words that are tokens even though
    // no merge produces them.
    assert_eq!(split("llama-bpe"), "ab|Ġ|123|'S|Ġ|Ġab|Ċ|abc");
    // Qwen2 splits digits one by one.
    assert_eq!(split("qwen2"), "ab|Ġ|1|2|3|'S|Ġ|Ġab|Ċ|ab|c");
}

#[test]
fn pre_tokenizers_differ_where_their_expressions_do() {
    let split = |pre: &str, text: &str| {
        let tokenizer = tokenizer(&byte_level(pre));
        let prefix = usize::from(pre == "llama-bpe");
        ids(&tokenizer, text)[prefix..].to_vec()
    };
    let id = |token: &str| TOKENS.iter().position(|known| *known == token).expect("a token") as u32;
    // GPT-2 is case-sensitive: 'S is punctuation followed by a letter, so no merge joins them.
    assert_eq!(split("gpt-2", "b'S"), [id("b"), id("'"), id("S")]);
    assert_eq!(split("smollm", "b'S"), [id("b"), id("'"), id("S")]);
    assert_eq!(split("llama-bpe", "b'S"), [id("b"), id("'S")]);
    assert_eq!(split("qwen2", "b'S"), [id("b"), id("'S")]);
    assert_eq!(split("gpt-2", "b's"), [id("b"), id("'s")]);
    // Groups of three digits, starting from the left.
    assert_eq!(split("llama-bpe", "1231"), [id("123"), id("1")]);
    assert_eq!(split("qwen2", "12"), [id("1"), id("2")]);
}

#[test]
fn added_tokens_are_found_in_the_text_and_only_special_ones_vanish() {
    let tokenizer = tokenizer(&byte_level("smollm"));
    let found = ids(&tokenizer, "<|start|>ab<tool>c<|end|>");
    assert_eq!(found, [0, 14, 2, 5, 1]);
    assert_eq!(tokenizer.text.decode(&found).expect("decodable"), "ab<tool>c");
    assert_eq!(tokenizer.text.decode(&[15, 10, 15]).expect("decodable"), " ab\n ab");
}

#[test]
fn bos_is_added_as_file_and_scheme_say() {
    let begins = |pre, wish: Option<bool>| {
        let mut writer = byte_level(pre);
        if let Some(wish) = wish {
            writer.set("tokenizer.ggml.add_bos_token", MetadataValue::Bool(wish));
        }
        let tokenizer = tokenizer(&writer);
        let with = ids(&tokenizer, "ab");
        assert_eq!(tokenizer.text.encode("ab", false).expect("encodable"), [14]);
        assert_eq!(tokenizer.config.add_bos_token, Some(with.len() == 2));
        with.first() == Some(&0)
    };
    assert!(!begins("gpt-2", None) && !begins("qwen2", None) && begins("llama-bpe", None));
    assert!(begins("gpt-2", Some(true)) && !begins("llama-bpe", Some(false)));
}

#[test]
fn special_tokens_and_the_chat_template_are_told() {
    let mut writer = byte_level("smollm");
    writer.text("tokenizer.chat_template", "{{ messages }}");
    let config = tokenizer(&writer).config;
    assert_eq!(config.bos_token.as_deref(), Some("<|start|>"));
    assert_eq!(config.eos_token.as_deref(), Some("<|end|>"));
    assert_eq!(config.chat_template.as_deref(), Some("{{ messages }}"));
    assert_eq!((config.unk_token, config.pad_token), (None, None));

    // A file with several templates contains one of them without a name, or names all of them.
    writer.text("tokenizer.chat_template.tool_use", "{{ tools }}");
    let of = |writer: &Writer| tokenizer(writer).config.chat_template;
    assert_eq!(of(&writer).as_deref(), Some("{{ messages }}"));
    writer.remove("tokenizer.chat_template");
    assert_eq!(of(&writer), None);
    writer.text("tokenizer.chat_template.default", "{{ bos_token }}");
    assert_eq!(of(&writer).as_deref(), Some("{{ bos_token }}"));
}

#[test]
fn qwen2_composes_characters_first() {
    // "e" and a combining acute accent become one character with the bytes c3 a9.
    let mut writer = byte_level("qwen2");
    writer.texts("tokenizer.ggml.tokens", &["Ã", "©", "e", "Ì", "ģ"]);
    writer.remove("tokenizer.ggml.token_type");
    writer.texts("tokenizer.ggml.merges", &[]);
    writer.integer("tokenizer.ggml.bos_token_id", 0);
    writer.integer("tokenizer.ggml.eos_token_id", 0);
    assert_eq!(ids(&tokenizer(&writer), "e\u{301}"), [0, 1]);
    writer.text("tokenizer.ggml.pre", "gpt-2");
    assert_eq!(ids(&tokenizer(&writer), "e\u{301}"), [2, 3, 4]);
}

/// A SentencePiece vocabulary: unknown, BOS, EOS, the bytes of U+00E9, then `pieces` with scores.
fn sentence_piece(pieces: &[(&str, f64)]) -> Writer {
    let mut tokens = vec!["<unk>", "<s>", "</s>", "<0xC3>", "<0xA9>"];
    let mut kinds = vec![2, CONTROL, CONTROL, BYTE, BYTE];
    let mut scores = vec![0.0; tokens.len()];
    tokens.extend(pieces.iter().map(|(piece, _)| *piece));
    scores.extend(pieces.iter().map(|(_, score)| *score));
    kinds.resize(tokens.len(), 1);
    let mut writer = Writer::new();
    writer.text("tokenizer.ggml.model", "llama");
    writer.texts("tokenizer.ggml.tokens", &tokens);
    writer.set("tokenizer.ggml.token_type", MetadataValue::Array(MetadataArray::Signed(kinds)));
    writer.set("tokenizer.ggml.scores", MetadataValue::Array(MetadataArray::Floats(scores)));
    for (name, id) in [("unknown", 0), ("bos", 1), ("eos", 2)] {
        writer.integer(&format!("tokenizer.ggml.{name}_token_id"), id);
    }
    writer
}

const PIECES: [(&str, f64); 8] = [
    ("▁", -10.0),  // 5
    ("a", -11.0),  // 6
    ("b", -12.0),  // 7
    ("c", -13.0),  // 8
    ("bc", -1.0),  // 9
    ("ab", -2.0),  // 10
    ("▁a", -3.0),  // 11
    ("▁ab", -4.0), // 12
];

#[test]
fn pieces_are_joined_by_score_not_by_place() {
    let tokenizer = tokenizer(&sentence_piece(&PIECES));
    // "▁abc": "bc" has the best score, so "ab" has lost its b; then "▁a".
    assert_eq!(ids(&tokenizer, "abc"), [1, 11, 9]);
    // "▁ab▁a": "ab" before "▁a", which then remains only at the end; "▁ab" last.
    assert_eq!(ids(&tokenizer, "ab a"), [1, 12, 11]);
    // A character that is not a piece becomes its bytes; one without bytes becomes <unk>.
    assert_eq!(ids(&tokenizer, "aé"), [1, 11, 3, 4]);
    assert_eq!(ids(&tokenizer, "a€"), [1, 11, 0]);
    // The spelling of a byte token in the text is not that byte.
    assert!(!ids(&tokenizer, "<0xC3>").contains(&3));
    assert_eq!(ids(&tokenizer, "b</s>"), [1, 5, 7, 2]);
}

#[test]
fn sentence_piece_text_comes_back() {
    let tokenizer = tokenizer(&sentence_piece(&PIECES));
    for text in ["abc", " ab", "ab  aé c", ""] {
        assert_eq!(tokenizer.text.decode(&ids(&tokenizer, text)).expect("decodable"), text);
    }
    assert!(tokenizer.config.add_prefix_space);
}

#[test]
fn the_space_before_the_text_can_be_left_out() {
    let mut writer = sentence_piece(&PIECES);
    writer.set("tokenizer.ggml.add_space_prefix", MetadataValue::Bool(false));
    writer.set("tokenizer.ggml.add_bos_token", MetadataValue::Bool(false));
    let tokenizer = tokenizer(&writer);
    assert_eq!(ids(&tokenizer, "a ab"), [6, 12]);
    assert_eq!(tokenizer.text.decode(&[12, 6]).expect("decodable"), " aba");
}

#[test]
fn runs_of_spaces_are_tokens_however_they_are_spelled() {
    // As in Gemma's files: no space before the text, and runs of spaces that are matched directly.
    for spelled in ["▁▁", "  "] {
        let mut writer = sentence_piece(&PIECES);
        let mut tokens: Vec<&str> = vec!["<unk>", "<s>", "</s>", "<0xC3>", "<0xA9>"];
        tokens.extend(PIECES.iter().map(|(piece, _)| *piece));
        let three = spelled.repeat(2)[..spelled.len() / 2 * 3].to_owned();
        tokens.extend([spelled, three.as_str(), "\n\n"]);
        let mut kinds = vec![1; tokens.len()];
        kinds[..5].copy_from_slice(&[2, CONTROL, CONTROL, BYTE, BYTE]);
        kinds[13..].fill(USER_DEFINED);
        writer.texts("tokenizer.ggml.tokens", &tokens);
        writer.set("tokenizer.ggml.token_type", MetadataValue::Array(MetadataArray::Signed(kinds)));
        let mut scores = vec![0.0; 5];
        scores.extend(PIECES.iter().map(|(_, score)| *score));
        scores.resize(tokens.len(), -1000.0);
        writer.set("tokenizer.ggml.scores", MetadataValue::Array(MetadataArray::Floats(scores)));
        writer.set("tokenizer.ggml.add_space_prefix", MetadataValue::Bool(false));
        let tokenizer = tokenizer(&writer);
        assert_eq!(ids(&tokenizer, "a b"), [1, 6, 5, 7], "{spelled:?}");
        assert_eq!(ids(&tokenizer, "a  b   c"), [1, 6, 13, 7, 14, 8], "{spelled:?}");
        assert_eq!(ids(&tokenizer, "a    ab\n\nb"), [1, 6, 14, 12, 15, 7], "{spelled:?}");
        for text in ["a b", "a  b   c", "a    ab\n\nb"] {
            assert_eq!(tokenizer.text.decode(&ids(&tokenizer, text)).expect("decodable"), text);
        }
    }
}

/// Applies SentencePiece's rule as defined: joins the neighbours with the best joint score, the
/// leftmost of equals, until none can be joined.
fn join_by_score(vocabulary: &[(String, f64)], text: &str) -> Vec<String> {
    let score = |piece: &str| vocabulary.iter().find(|(known, _)| known == piece).map(|(_, s)| *s);
    let mut symbols: Vec<String> = text.chars().map(String::from).collect();
    loop {
        let mut best: Option<(f64, usize)> = None;
        for at in 1..symbols.len() {
            let joint = [symbols[at - 1].as_str(), &symbols[at]].concat();
            if let Some(score) = score(&joint)
                && best.is_none_or(|(known, _)| score > known)
            {
                best = Some((score, at));
            }
        }
        let Some((_, at)) = best else {
            return symbols;
        };
        let right = symbols.remove(at);
        symbols[at - 1].push_str(&right);
    }
}

#[test]
fn random_vocabularies_are_joined_as_sentence_piece_does() {
    let mut rng = ChaCha8Rng::seed_from_u64(99);
    let mut joined = 0;
    for _ in 0..200 {
        let mut vocabulary: Vec<(String, f64)> = Vec::new();
        for letter in ["▁", "a", "b", "c", "d"] {
            vocabulary.push((letter.to_owned(), -100.0));
        }
        // Pieces that are made of others. A piece that begins and ends with the same text could
        // overlap itself, for which a list of merges may differ (see `sentence_piece`).
        while vocabulary.len() < 25 {
            let part = |rng: &mut ChaCha8Rng| {
                vocabulary[rng.next_u32() as usize % vocabulary.len()].0.clone()
            };
            let piece = part(&mut rng) + &part(&mut rng);
            let overlaps = piece.chars().next() == piece.chars().next_back();
            if piece.chars().count() <= 6
                && (!overlaps || piece.chars().count() == 2)
                && !has_border(&piece)
                && vocabulary.iter().all(|(known, _)| *known != piece)
            {
                // Distinct scores in an order that is unrelated to that of the pieces.
                let rank = f64::from(rng.next_u32() % 1_000_000) + vocabulary.len() as f64 / 64.0;
                vocabulary.push((piece, -rank));
            }
        }
        let pieces: Vec<(&str, f64)> = vocabulary.iter().map(|(p, s)| (p.as_str(), *s)).collect();
        let tokenizer = tokenizer(&sentence_piece(&pieces));
        for _ in 0..10 {
            let length = rng.next_u32() % 40 + 1;
            let text: String = (0..length)
                .map(|_| [' ', 'a', 'b', 'c', 'd'][rng.next_u32() as usize % 5])
                .collect();
            let normalised = format!("▁{}", text.replace(' ', "▁"));
            let expected = join_by_score(&vocabulary, &normalised);
            joined += normalised.chars().count() - expected.len();
            let found: Vec<&str> =
                ids(&tokenizer, &text)[1..].iter().map(|id| pieces[*id as usize - 5].0).collect();
            assert_eq!(found, expected, "{text:?} with {pieces:?}");
        }
    }
    assert!(joined > 1000, "the texts must contain pieces");
}

/// Returns true if a piece of at least three characters has a proper prefix that is also a suffix.
fn has_border(piece: &str) -> bool {
    let letters: Vec<char> = piece.chars().collect();
    letters.len() > 2 && (1..letters.len()).any(|n| letters[..n] == letters[letters.len() - n..])
}

#[test]
fn what_is_not_known_or_contradicts_itself_is_refused_by_name() {
    let bpe = |change: &dyn Fn(&mut Writer)| {
        let mut writer = byte_level("gpt-2");
        change(&mut writer);
        build(&writer).expect_err("refused").to_string()
    };
    let scored = |change: &dyn Fn(&mut Writer)| {
        let mut writer = sentence_piece(&PIECES);
        change(&mut writer);
        build(&writer).expect_err("refused").to_string()
    };
    let floats = |values: Vec<f64>| MetadataValue::Array(MetadataArray::Floats(values));
    let types = |kinds: Vec<i64>| MetadataValue::Array(MetadataArray::Signed(kinds));
    let cases = [
        (bpe(&|w| w.text("tokenizer.ggml.model", "bert")), "\"bert\" is not supported"),
        (bpe(&|w| w.text("tokenizer.ggml.pre", "deepseek-llm")), "\"deepseek-llm\" is not"),
        (bpe(&|w| w.remove("tokenizer.ggml.merges")), "tokenizer.ggml.merges is missing"),
        (bpe(&|w| w.texts("tokenizer.ggml.merges", &["ab"])), "merge 0 is not two tokens"),
        (bpe(&|w| w.texts("tokenizer.ggml.merges", &["a x"])), "do not make a tokenizer"),
        (bpe(&|w| w.set("tokenizer.ggml.token_type", types(vec![1]))), "1 entries for 22 tokens"),
        (bpe(&|w| w.set("tokenizer.ggml.token_type", types(vec![9; 22]))), "type 9"),
        (bpe(&|w| w.integer("tokenizer.ggml.eos_token_id", 22)), "eos_token_id is 22"),
        (
            bpe(&|w| {
                w.remove("tokenizer.ggml.bos_token_id");
                w.set("tokenizer.ggml.add_bos_token", MetadataValue::Bool(true));
            }),
            "names no BOS token",
        ),
        (scored(&|w| w.remove("tokenizer.ggml.scores")), "tokenizer.ggml.scores is missing"),
        (scored(&|w| w.set("tokenizer.ggml.scores", floats(vec![0.0]))), "1 entries for 13"),
        (scored(&|w| w.set("tokenizer.ggml.scores", floats(vec![f64::NAN; 13]))), "token 0"),
        (
            scored(&|w| {
                w.set("tokenizer.ggml.remove_extra_whitespaces", MetadataValue::Bool(true))
            }),
            "remove_extra_whitespaces",
        ),
    ];
    for (message, part) in cases {
        assert!(message.contains(part), "{message:?} does not say {part:?}");
        assert!(message.starts_with("small.gguf: "), "{message:?} does not name the file");
    }
}

#[test]
fn a_file_without_tokenizer_is_no_error() {
    assert!(build(&Writer::new()).expect("no error").is_none());
    let mut writer = byte_level("gpt-2");
    writer.text("tokenizer.ggml.model", "no_vocab");
    assert!(build(&writer).expect("no error").is_none());
}

/// Tests that changed metadata causes an error or creates some tokenizer, but never panics.
#[test]
fn random_changes_of_the_metadata_never_panic() {
    let mut rng = ChaCha8Rng::seed_from_u64(5);
    let mut built = 0;
    for writer in [byte_level("llama-bpe"), byte_level("gpt-2"), sentence_piece(&PIECES)] {
        let keys: Vec<String> = writer.values.iter().map(|(key, _)| key.clone()).collect();
        for _ in 0..200 {
            let mut writer = writer.clone();
            let key = &keys[rng.next_u32() as usize % keys.len()];
            match rng.next_u32() % 5 {
                0 => writer.remove(key),
                1 => writer.integer(key, u64::from(rng.next_u32() % 30)),
                2 => writer.texts(key, &["", "a", "a", " ", "▁▁", "é", "Ġ a"]),
                3 => writer.set(key, MetadataValue::Array(MetadataArray::Floats(vec![0.5; 13]))),
                _ => writer.set(key, MetadataValue::Array(MetadataArray::Signed(vec![4; 13]))),
            }
            if let Ok(Some(tokenizer)) = build(&writer) {
                built += 1;
                let found = ids(&tokenizer, "ab <|end|> é▁ </s>1234\u{0}");
                tokenizer.text.decode(&found).expect("decodable");
            }
        }
    }
    assert!(built > 0, "some changes are harmless, or the test tests nothing");
}

/// Compares with ids that the model's published tokenizer.json produces.
#[test]
fn the_real_model_is_tokenised_as_published() {
    let path = Path::new(env!("CARGO_MANIFEST_DIR"))
        .join("../.cache/models/smollm2-135m-instruct-q4_1.gguf");
    if !path.exists() {
        println!(
            "SKIP the_real_model_is_tokenised_as_published: no model; scripts/model.sh fetches it"
        );
        return;
    }
    let source = GgufSource::open(&path).expect("the file is good");
    let tokenizer = GgufTokenizer::from_metadata(source.metadata(), source.path())
        .expect("a good file")
        .expect("with a tokenizer");
    let cases: [(&str, &[u32]); 4] = [
        ("Hello, world! It's 2024.", &[19556, 28, 905, 17, 657, 506, 216, 34, 32, 34, 36, 30]),
        ("  two spaces\n\tand naïve café", &[216, 827, 5600, 198, 197, 397, 15486, 46494, 37366]),
        ("日本語 🙂", &[23274, 115, 40993, 179, 120, 248, 47526]),
        ("<|im_start|>user\nHi<|im_end|>\n", &[1, 4093, 198, 26843, 2, 198]),
    ];
    for (text, expected) in cases {
        assert_eq!(ids(&tokenizer, text), expected, "{text:?}");
        let whole = tokenizer.text.decode(expected).expect("decodable");
        let visible = text.replace("<|im_start|>", "").replace("<|im_end|>", "");
        assert_eq!(whole, visible);
    }
    assert_eq!(tokenizer.config.bos_token.as_deref(), Some("<|im_start|>"));
    assert!(tokenizer.config.chat_template.is_some_and(|template| template.contains("im_start")));
}
