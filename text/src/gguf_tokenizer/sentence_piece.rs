//! SentencePiece BPE (`tokenizer.ggml.model` = llama): pieces with scores instead of merges.
//!
//! SentencePiece repeatedly joins the two neighbours whose joint piece has the best score, and the
//! leftmost of equals. A list of merges ordered by the score of the joint pieces is therefore
//! equivalent, with one exception that such a list cannot express: if occurrences of the *same*
//! piece that are split differently overlap, or different pieces have the same score, the list
//! alone decides, and not the position in the text. The published `tokenizer.json` of these models
//! differs in the same way.

use tokenizers::decoders::DecoderWrapper;
use tokenizers::decoders::byte_fallback::ByteFallback;
use tokenizers::decoders::fuse::Fuse;
use tokenizers::decoders::sequence::Sequence as DecoderSequence;
use tokenizers::decoders::strip::Strip;
use tokenizers::models::bpe::{BPE, Vocab};
use tokenizers::normalizers::{NormalizerWrapper, Prepend, Replace, Sequence};

use super::{
    Cow, HashMap, Metadata, TokenList, TokenType, Tokenizer, TokenizerProblem, build_error,
    required,
};

/// Character that represents a space inside pieces.
const SPACE: &str = "\u{2581}";

/// Maximum length of a piece that is produced by merges. SentencePiece trains none of more than 16
/// characters, and the search for their parts grows with the square of the length.
const MAX_PIECE_BYTES: usize = 1024;

/// Returns the tokenizer without its added tokens. `merges` are those of the file, if it has some;
/// such files put no space before a text by default.
pub(super) fn tokenizer(
    metadata: &Metadata,
    vocabulary: &TokenList<'_>,
    merges: Option<Vec<(String, String)>>,
) -> Result<Tokenizer, TokenizerProblem> {
    refuse_options(metadata)?;
    let space_prefix =
        metadata.boolean("tokenizer.ggml.add_space_prefix")?.unwrap_or_else(|| merges.is_none());
    let merges = merges.map_or_else(|| merges_of_scores(metadata, vocabulary), Ok)?;
    let unknown = match vocabulary.token_id(metadata, "unknown")? {
        Some(id) => vocabulary.tokens.get(id as usize),
        None => vocabulary.tokens.first(),
    };
    let mut builder = BPE::builder()
        .vocab_and_merges(vocabulary.ids::<Vocab>(), merges)
        .fuse_unk(true)
        .byte_fallback(vocabulary.kinds.contains(&TokenType::Byte));
    if let Some(unknown) = unknown {
        builder = builder.unk_token(unknown.clone());
    }
    let mut tokenizer = Tokenizer::new(builder.build().map_err(build_error)?);

    let spaces = |from: &str, to: &str| Replace::new(from, to).map_err(build_error);
    let mut normalizers: Vec<NormalizerWrapper> = Vec::new();
    let mut decoders: Vec<DecoderWrapper> =
        vec![spaces(SPACE, " ")?.into(), ByteFallback::new().into(), Fuse::new().into()];
    if space_prefix {
        normalizers.push(Prepend::new(SPACE.to_owned()).into());
        decoders.push(Strip::new(' ', 1, 0).into());
    }
    normalizers.push(spaces(" ", SPACE)?.into());
    tokenizer.with_normalizer(Some(Sequence::new(normalizers))).map_err(build_error)?;
    tokenizer.with_decoder(Some(DecoderSequence::new(decoders)));
    Ok(tokenizer)
}

/// Returns the tokens with actual spaces in those that are matched in the raw text, such as Gemma's
/// runs of spaces: some writers represent their spaces as in pieces.
pub(super) fn respelled<'a>(tokens: &'a [String], kinds: &[TokenType]) -> Cow<'a, [String]> {
    let is_misspelled = |(token, kind): (&String, &TokenType)| {
        *kind == TokenType::UserDefined && token.contains(SPACE)
    };
    if !tokens.iter().zip(kinds).any(is_misspelled) {
        return Cow::Borrowed(tokens);
    }
    let respell = |pair: (&String, &TokenType)| {
        if is_misspelled(pair) { pair.0.replace(SPACE, " ") } else { pair.0.clone() }
    };
    tokens.iter().zip(kinds).map(respell).collect::<Vec<_>>().into()
}

/// Refuses normalisation options that no supported model uses.
fn refuse_options(metadata: &Metadata) -> Result<(), TokenizerProblem> {
    let collapse = "tokenizer.ggml.remove_extra_whitespaces";
    if metadata.boolean(collapse)? == Some(true) {
        return Err(TokenizerProblem::Option("remove_extra_whitespaces"));
    }
    if metadata.value("tokenizer.ggml.precompiled_charsmap").is_some() {
        return Err(TokenizerProblem::Option("precompiled_charsmap"));
    }
    Ok(())
}

/// Returns every split of a piece into two others, the best score first. Only normal pieces take
/// part: all others are matched in the raw text or represent bytes.
fn merges_of_scores(
    metadata: &Metadata,
    vocabulary: &TokenList<'_>,
) -> Result<Vec<(String, String)>, TokenizerProblem> {
    let key = "tokenizer.ggml.scores";
    let scores = required(key, metadata.floats(key)?)?;
    let expected = vocabulary.tokens.len();
    if scores.len() != expected {
        return Err(TokenizerProblem::Length { key, found: scores.len(), expected });
    }
    if let Some(token) = scores.iter().position(|score| !score.is_finite()) {
        return Err(TokenizerProblem::Score { token });
    }
    let ordinary: HashMap<&str, u32> = vocabulary
        .iter()
        .filter(|(.., kind)| *kind == TokenType::Normal)
        .map(|(id, piece, _)| (piece, id))
        .collect();
    let mut merges = Vec::new();
    for (&piece, &id) in &ordinary {
        if piece.len() > MAX_PIECE_BYTES {
            continue;
        }
        for (at, _) in piece.char_indices().skip(1) {
            let (left, right) = piece.split_at(at);
            if ordinary.contains_key(left) && ordinary.contains_key(right) {
                merges.push((scores[id as usize], id, left, right));
            }
        }
    }
    // Among the splits of one piece, the longest left part comes first, since text is joined from
    // the left.
    merges.sort_unstable_by(|a, b| {
        b.0.total_cmp(&a.0).then(a.1.cmp(&b.1)).then(b.2.len().cmp(&a.2.len()))
    });
    let pairs = merges.into_iter().map(|(_, _, left, right)| (left.to_owned(), right.to_owned()));
    Ok(pairs.collect())
}
