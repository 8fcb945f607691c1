//! Bytes of a single token. Vocabularies spell bytes as characters, in a way that depends on the
//! kind of tokenizer.

use tokenizers::Tokenizer;
use tokenizers::decoders::DecoderWrapper;

/// SentencePiece's spelling of a space.
const SPACE: char = '\u{2581}';

/// Returns the bytes of `token`; empty for an id outside the vocabulary.
pub(super) fn of(tokenizer: &Tokenizer, token: u32) -> Vec<u8> {
    let Some(spelling) = tokenizer.id_to_token(token) else { return Vec::new() };
    if tokenizer.get_added_vocabulary().get_added_tokens_decoder().contains_key(&token) {
        return spelling.into_bytes();
    }
    let Some(decoder) = tokenizer.get_decoder() else { return spelling.into_bytes() };
    if any(decoder, &|one| matches!(one, DecoderWrapper::ByteLevel(_))) {
        return spelling.chars().flat_map(byte_level).collect();
    }
    let falls_back = any(decoder, &|one| matches!(one, DecoderWrapper::ByteFallback(_)));
    match hexadecimal(&spelling).filter(|_| falls_back) {
        Some(byte) => vec![byte],
        None => spelling.replace(SPACE, " ").into_bytes(),
    }
}

/// Returns true if `is` returns true for a decoder or any of its parts.
fn any(decoder: &DecoderWrapper, is: &dyn Fn(&DecoderWrapper) -> bool) -> bool {
    match decoder {
        DecoderWrapper::Sequence(parts) => parts.get_decoders().iter().any(|part| any(part, is)),
        one => is(one),
    }
}

/// Returns the byte that GPT-2's vocabulary spells as `character`. Printable bytes of Latin-1 are
/// spelled as themselves, the others in ascending order as the characters from U+0100. A character
/// that does not represent a byte is returned as is.
fn byte_level(character: char) -> Vec<u8> {
    let printable = |byte: &u8| matches!(byte, b'!'..=b'~' | 0xa1..=0xac | 0xae..=0xff);
    let code = u32::from(character);
    let byte = match code.checked_sub(0x100) {
        None => u8::try_from(code).ok().filter(printable),
        Some(place) => (0..=u8::MAX).filter(|byte| !printable(byte)).nth(place as usize),
    };
    byte.map_or_else(|| character.to_string().into_bytes(), |byte| vec![byte])
}

/// Returns the byte of a spelling such as `<0x0A>`.
fn hexadecimal(spelling: &str) -> Option<u8> {
    let digits = spelling.strip_prefix("<0x")?.strip_suffix('>')?;
    u8::from_str_radix(digits, 16).ok().filter(|_| digits.len() == 2)
}
