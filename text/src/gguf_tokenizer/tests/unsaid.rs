//! Properties that a file leaves to convention: its pre-tokenizer, and tokens that absorb the space
//! after them.

use super::*;

#[test]
fn a_file_that_names_no_pre_tokenizer_is_refused_unless_it_is_gpt2s() {
    let mut writer = byte_level("gpt-2");
    writer.remove("tokenizer.ggml.pre");
    let message = build(&writer).expect_err("refused").to_string();
    assert!(message.contains("names no pre-tokenizer (tokenizer.ggml.pre)"), "{message}");
    // The last tokens of GPT-2's vocabulary, which may be followed by others.
    let mut tokens: Vec<String> = (0..50_255).map(|id| format!("t{id}")).collect();
    tokens[3] = "a".to_owned();
    tokens.extend(["Ġgazed", "<|endoftext|>", "<|im_end|>"].map(str::to_owned));
    writer.set("tokenizer.ggml.tokens", MetadataValue::Array(MetadataArray::Texts(tokens)));
    writer.remove("tokenizer.ggml.token_type");
    writer.texts("tokenizer.ggml.merges", &[]);
    assert_eq!(ids(&tokenizer(&writer), "a"), [3]);
}

#[test]
fn names_of_the_same_pre_tokenizer_split_alike() {
    for (name, alias) in [("qwen2", "deepseek-r1-qwen"), ("llama-bpe", "pixtral")] {
        let split = |pre| ids(&tokenizer(&byte_level(pre)), "ab 123'S  ab\nabc");
        assert_eq!(split(alias), split(name));
    }
}

#[test]
fn tokens_of_phi3_take_the_space_behind_them() {
    let of = |architecture: &str, name: &str| {
        let mut writer = sentence_piece(&PIECES);
        let mut tokens: Vec<&str> = vec!["<unk>", "<s>", "</s>", "<0xC3>", "<0xA9>"];
        tokens.extend(PIECES.iter().map(|(piece, _)| *piece));
        tokens.extend(["<|user|>", "<|endoftext|>", "<|tag|>"]);
        let mut kinds = vec![1; tokens.len()];
        kinds[..5].copy_from_slice(&[2, CONTROL, CONTROL, BYTE, BYTE]);
        kinds[13..].copy_from_slice(&[CONTROL, CONTROL, USER_DEFINED]);
        let mut scores = vec![0.0; 5];
        scores.extend(PIECES.iter().map(|(_, score)| *score));
        scores.resize(tokens.len(), -1000.0);
        writer.texts("tokenizer.ggml.tokens", &tokens);
        writer.set("tokenizer.ggml.token_type", MetadataValue::Array(MetadataArray::Signed(kinds)));
        writer.set("tokenizer.ggml.scores", MetadataValue::Array(MetadataArray::Floats(scores)));
        writer.text("general.architecture", architecture);
        writer.text("general.name", name);
        tokenizer(&writer)
    };
    for tokenizer in [of("phi3", "Tuned"), of("llama", "Phi-3.5 mini")] {
        assert_eq!(ids(&tokenizer, "<|user|>\n ab"), [1, 13, 12]);
        assert_eq!(ids(&tokenizer, "<|tag|> ab</s> ab"), [1, 15, 12, 2, 12]);
        assert_eq!(ids(&tokenizer, "<|endoftext|> ab"), [1, 14, 5, 12]);
    }
    assert_eq!(ids(&of("llama", "Tuned"), "<|user|> ab"), [1, 13, 5, 12]);
}

/// Gemma 4's files have the merges of a vocabulary in which spaces are spelled as in SentencePiece.
#[test]
fn pieces_are_joined_by_the_merges_of_a_file() {
    let tokens = [
        "<pad>", "<eos>", "<bos>", "<unk>", "<0xC3>", "<0xA9>", "▁", "a", "b", "▁a", "▁ab", "\n",
        "\n\n", "<|turn>",
    ];
    let mut kinds = vec![1; tokens.len()];
    (kinds[2], kinds[3], kinds[13]) = (CONTROL, 2, CONTROL);
    (kinds[4], kinds[5]) = (BYTE, BYTE);
    let mut writer = Writer::new();
    writer.text("tokenizer.ggml.model", "gemma4");
    writer.texts("tokenizer.ggml.tokens", &tokens);
    writer.set("tokenizer.ggml.token_type", MetadataValue::Array(MetadataArray::Signed(kinds)));
    writer.texts("tokenizer.ggml.merges", &["▁ a", "▁a b", "\n \n"]);
    writer.integer("tokenizer.ggml.bos_token_id", 2);
    writer.integer("tokenizer.ggml.unknown_token_id", 3);
    let tokenizer = tokenizer(&writer);
    // No space precedes the text, and no piece was trained with scores.
    let text = "ab ab\n\né<|turn>a";
    assert_eq!(ids(&tokenizer, text), [2, 7, 8, 10, 12, 4, 5, 13, 7]);
    assert_eq!(tokenizer.text.decode(&[10, 12, 4, 5]).expect("decodable"), " ab\n\né");
    writer.texts("tokenizer.ggml.merges", &["ab"]);
    let message = build(&writer).expect_err("refused").to_string();
    assert!(message.contains("merge 0 is not two tokens"), "{message}");
}
