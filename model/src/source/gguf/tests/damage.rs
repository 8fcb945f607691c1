//! Tests that damaged or hostile files cause an error, but never a panic or unbounded memory use.

use rand_chacha::ChaCha8Rng;
use rand_core::{RngCore, SeedableRng};

use super::super::metadata::{MetadataArray, MetadataValue};
use super::super::parse::ParseError;
use super::*;

/// Returns the small model's file with a value of every kind in its head.
fn rich_model() -> Writer {
    let mut writer = small_model("llama");
    writer.set("x.signed", MetadataValue::Signed(-3));
    writer.set("x.flag", MetadataValue::Bool(true));
    writer.set("x.flags", MetadataValue::Array(MetadataArray::Bools(vec![true, false])));
    writer.set("x.floats", MetadataValue::Array(MetadataArray::Floats(vec![0.5, -1.5])));
    writer.set("x.signeds", MetadataValue::Array(MetadataArray::Signed(vec![-1, 7])));
    let inner =
        vec![MetadataArray::Unsigned(vec![1, 2]), MetadataArray::Texts(vec!["a".to_owned()])];
    writer.set("x.nested", MetadataValue::Array(MetadataArray::Arrays(inner)));
    writer
}

fn parse_bytes(bytes: &[u8]) -> Result<parse::GgufHeader, ParseError> {
    parse::parse(bytes, bytes.len() as u64)
}

#[test]
fn every_kind_of_value_is_read_back() {
    for version in [2, 3] {
        let mut writer = rich_model();
        writer.version = version;
        let parsed = parse_bytes(&writer.bytes()).expect("a good file");
        for (key, value) in &writer.values {
            assert_eq!(parsed.metadata.value(key), Some(value), "{key}");
        }
        assert_eq!(parsed.tensors.len(), writer.tensors.len());
    }
}

/// Tests the narrow types, which the writer does not use, with bytes written by hand.
#[test]
fn every_width_of_number_is_read() {
    let cases: [(u32, &[u8], MetadataValue); 12] = [
        (0, &[200], MetadataValue::Unsigned(200)),
        (1, &[200], MetadataValue::Signed(-56)),
        (2, &[0x34, 0x12], MetadataValue::Unsigned(0x1234)),
        (3, &[0xfe, 0xff], MetadataValue::Signed(-2)),
        (4, &[1, 0, 0, 0x80], MetadataValue::Unsigned(0x8000_0001)),
        (5, &[0xff; 4], MetadataValue::Signed(-1)),
        (6, &[0, 0, 0x80, 0x3f], MetadataValue::Float(1.0)),
        (7, &[1], MetadataValue::Bool(true)),
        (8, &[2, 0, 0, 0, 0, 0, 0, 0, b'o', b'k'], MetadataValue::Text("ok".to_owned())),
        (10, &[0xff; 8], MetadataValue::Unsigned(u64::MAX)),
        (11, &[0xff; 8], MetadataValue::Signed(-1)),
        (12, &[0, 0, 0, 0, 0, 0, 0xf0, 0xbf], MetadataValue::Float(-1.0)),
    ];
    for (code, bytes, value) in cases {
        let parsed = parse_bytes(&one_value(code, bytes)).expect("a good file");
        assert_eq!(parsed.metadata.value("k"), Some(&value), "type {code}");
        let mut array = Vec::from(code.to_le_bytes());
        array.extend(1u64.to_le_bytes());
        array.extend(bytes);
        let parsed = parse_bytes(&one_value(9, &array)).expect("a good file");
        match parsed.metadata.value("k") {
            Some(MetadataValue::Array(array)) => assert_eq!(array.len(), 1, "array of type {code}"),
            other => panic!("type {code}: {other:?}"),
        }
    }
}

/// Returns a file without tensors and with the key `k`, whose value is given as bytes.
fn one_value(code: u32, value: &[u8]) -> Vec<u8> {
    let mut bytes = b"GGUF\x03\0\0\0".to_vec();
    bytes.extend(0u64.to_le_bytes());
    bytes.extend(1u64.to_le_bytes());
    bytes.extend(1u64.to_le_bytes());
    bytes.push(b'k');
    bytes.extend(code.to_le_bytes());
    bytes.extend(value);
    bytes
}

#[test]
fn a_file_cut_anywhere_is_an_error() {
    let writer = rich_model();
    let bytes = writer.bytes();
    // A cut in the head truncates a field; a cut after the head truncates some tensor's data.
    for length in 0..bytes.len() {
        let error = parse_bytes(&bytes[..length]).expect_err("cut files are refused").to_string();
        assert!(
            error.contains("incomplete") || error.contains("past the end"),
            "cut at {length}: {error}"
        );
    }
    parse_bytes(&bytes).expect("the whole file is good");
}

#[test]
fn a_reader_that_ends_before_its_size_is_an_error() {
    let bytes = rich_model().bytes();
    let head = rich_model().head().len();
    let error = parse::parse(&bytes[..head - 9], bytes.len() as u64).expect_err("ends early");
    assert!(matches!(error, ParseError::Truncated { .. }), "{error}");
}

#[test]
fn hostile_numbers_are_refused_before_anything_is_allocated() {
    let huge = u64::MAX.to_le_bytes();
    // The given size is huge too, since a large sparse file must not make large counts acceptable.
    let message = |bytes: &[u8]| {
        parse::parse(bytes, u64::MAX).expect_err("hostile files are refused").to_string()
    };
    let mut tensors = b"GGUF\x03\0\0\0".to_vec();
    tensors.extend(huge);
    tensors.extend(0u64.to_le_bytes());
    assert!(message(&tensors).contains("limit of 65536"));
    let mut keys = b"GGUF\x03\0\0\0".to_vec();
    keys.extend(0u64.to_le_bytes());
    keys.extend(huge);
    assert!(message(&keys).contains("limit of 65536"));
    assert!(message(&one_value(8, &huge)).contains("a metadata string has"));
    let array = |code: u32, count: u64| [&code.to_le_bytes()[..], &count.to_le_bytes()].concat();
    assert!(message(&one_value(9, &array(0, u64::MAX))).contains("all metadata arrays"));
    let mut nested = Vec::new();
    for _ in 0..100 {
        nested.extend(array(9, 1));
    }
    assert!(message(&one_value(9, &nested)).contains("levels"));
    // Below every limit, but larger than the file.
    let bytes = one_value(9, &array(10, 1 << 23));
    assert!(matches!(parse_bytes(&bytes), Err(ParseError::Truncated { .. })));
    assert!(message(&one_value(13, &[])).contains("13 is not a metadata value type"));
    assert!(message(&one_value(9, &array(13, 1))).contains("13 is not a metadata value type"));
    assert!(message(&one_value(7, &[2])).contains("neither 0 nor 1"));
    assert!(message(&one_value(8, b"\x01\0\0\0\0\0\0\0\xff")).contains("not valid UTF-8"));
}

#[test]
fn headers_of_other_formats_are_told_apart() {
    let message = |bytes: &[u8]| parse_bytes(bytes).expect_err("refused").to_string();
    assert!(message(b"{\"model\": \"no\"}").contains("not a GGUF file"));
    assert!(message(b"GGUF\x01\0\0\0").contains("version 1"));
    assert!(message(b"GGUF\x04\0\0\0").contains("version 4"));
    assert!(message(b"GGUF\0\0\0\x03").contains("big-endian"));
}

#[test]
fn a_directory_that_contradicts_itself_is_refused() {
    let message = |change: &dyn Fn(&mut Writer)| {
        let mut writer = small_model("llama");
        change(&mut writer);
        parse_bytes(&writer.bytes()).expect_err("refused").to_string()
    };
    let dimensions = |sizes: &'static [u64]| {
        message(&|writer| {
            writer.tensors[0].1 = sizes.to_vec();
        })
    };
    assert!(dimensions(&[]).contains("0 dimensions"));
    assert!(dimensions(&[1, 1, 1, 1, 1]).contains("5 dimensions"));
    assert!(dimensions(&[u64::MAX, u64::MAX]).contains("has shape"));
    assert!(dimensions(&[1 << 62]).contains("past the end"));
    let quantised = message(&|writer| {
        writer.tensors[0].1 = vec![33, 2];
        writer.tensors[0].2 = 8;
    });
    assert!(quantised.contains("blocks of 32 do not divide"), "{quantised}");
    let twice = message(&|writer| {
        let again = writer.tensors[0].clone();
        writer.tensors.push(again);
    });
    assert!(twice.contains("occurs twice"), "{twice}");
    let twice = message(&|writer| {
        let again = writer.values[0].clone();
        writer.values.push(again);
    });
    assert!(twice.contains("\"general.architecture\" occurs twice"), "{twice}");
    for alignment in [0, 24, 1 << 21] {
        let refused = message(&|writer| writer.integer("general.alignment", alignment));
        assert!(refused.contains("not a power of two"), "{refused}");
    }
    // The writer aligns to 32 bytes, so some tensor is not aligned to 4096.
    let refused = message(&|writer| writer.integer("general.alignment", 4096));
    assert!(refused.contains("off the alignment of 4096"), "{refused}");
}

/// Tests valid files with random changes: a file that is still accepted can be read completely.
#[test]
fn changed_bytes_never_panic() {
    let mut rng = ChaCha8Rng::seed_from_u64(4711);
    let mut accepted = 0;
    for architecture in ["llama", "qwen2"] {
        let writer = small_model(architecture);
        let (good, head) = (writer.bytes(), writer.head().len());
        for _ in 0..1500 {
            let mut bytes = good.clone();
            for _ in 0..=rng.next_u32() % 4 {
                let at = rng.next_u64() as usize % head;
                bytes[at] = match rng.next_u32() % 4 {
                    0 => 0,
                    1 => 0xff,
                    2 => bytes[at] ^ (1 << (rng.next_u32() % 8)),
                    _ => rng.next_u32() as u8,
                };
            }
            let file = TestFile::new(&bytes);
            let Ok(source) = GgufSource::open(&file.path) else {
                continue;
            };
            accepted += 1;
            for id in layout::tensor_ids(source.config()) {
                read_f32(&source, id);
            }
        }
    }
    assert!(accepted > 0, "some changes are harmless, or the test tests nothing");
}
