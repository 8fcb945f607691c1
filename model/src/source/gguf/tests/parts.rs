//! Tests of models in several files.

use std::path::PathBuf;

use super::*;

/// The parts of a small model in a folder: tensors are distributed in turn, and the metadata is in
/// the first part.
struct Split {
    folder: tempfile::TempDir,
    writers: Vec<Writer>,
}

impl Split {
    fn new(count: usize) -> Split {
        let whole = small_model("llama");
        let mut writers = vec![Writer::new(); count];
        writers[0].values.clone_from(&whole.values);
        for (index, tensor) in whole.tensors.iter().enumerate() {
            writers[index % count].tensors.push(tensor.clone());
        }
        for (number, writer) in writers.iter_mut().enumerate() {
            writer.integer("split.no", number as u64);
            writer.integer("split.count", count as u64);
            writer.integer("split.tensors.count", whole.tensors.len() as u64);
        }
        Split { folder: tempfile::tempdir().expect("a temporary folder"), writers }
    }

    fn path(&self, number: usize) -> PathBuf {
        self.folder.path().join(format!("m-{:05}-of-{:05}.gguf", number + 1, self.writers.len()))
    }

    fn write(&self) {
        for (number, writer) in self.writers.iter().enumerate() {
            std::fs::write(self.path(number), writer.bytes()).expect("a test file can be written");
        }
    }

    fn refusal(&self) -> String {
        self.write();
        GgufSource::open(&self.path(0)).expect_err("the parts must be refused").to_string()
    }
}

#[test]
fn any_part_opens_the_whole_model() {
    let whole = open(&small_model("llama")).expect("a good file");
    for count in [2, 3, 7] {
        let split = Split::new(count);
        split.write();
        for number in 0..count {
            let source = GgufSource::open(&split.path(number)).expect("all parts are there");
            assert_eq!(source.files(), (0..count).map(|n| split.path(n)).collect::<Vec<_>>());
            assert_eq!(source.config().name, "m");
            for id in layout::tensor_ids(whole.config()) {
                assert_eq!(read_f32(&source, id), read_f32(&whole, id), "{id:?}");
            }
        }
    }
}

#[test]
fn the_first_part_may_have_no_tensors_and_one_part_may_be_all() {
    let mut split = Split::new(2);
    let moved = std::mem::take(&mut split.writers[0].tensors);
    split.writers[1].tensors.extend(moved);
    split.write();
    GgufSource::open(&split.path(0)).expect("all tensors are in the second");

    let single = Split::new(1);
    single.write();
    let source = GgufSource::open(&single.path(0)).expect("one of one");
    assert_eq!((source.files().len(), source.config().name.as_str()), (1, "m"));
}

#[test]
fn a_rope_table_in_another_part_is_read_there() {
    let mut split = Split::new(2);
    split.writers[1].tensor_f32("rope_freqs.weight", &[HEAD_DIM / 2], &[1.0; HEAD_DIM / 2]);
    for writer in &mut split.writers {
        writer.remove("split.tensors.count");
    }
    split.write();
    // Factors of 1 mean no scaling.
    let source = GgufSource::open(&split.path(0)).expect("a good table");
    assert_eq!(source.config(), GgufSource::open(&split.path(1)).expect("the same").config());
}

#[test]
fn parts_that_are_missing_or_foreign_are_named() {
    let split = Split::new(3);
    split.write();
    std::fs::remove_file(split.path(1)).expect("removed");
    let error = GgufSource::open(&split.path(2)).expect_err("the second is missing").to_string();
    assert!(error.contains("m-00002-of-00003.gguf") && error.contains("part 2 of 3"), "{error}");

    let mut split = Split::new(3);
    split.writers[2].integer("split.count", 4);
    let error = split.refusal();
    assert!(error.contains("m-00003-of-00003.gguf") && error.contains("one part of 4"), "{error}");

    let mut split = Split::new(3);
    split.writers[2].remove("split.count");
    assert!(split.refusal().contains("marked as no part"));

    let mut split = Split::new(3);
    split.writers.swap(1, 2);
    let error = split.refusal();
    assert!(error.contains("named as part 2") && error.contains("it is part 3"), "{error}");

    let mut split = Split::new(3);
    let again = split.writers[0].tensors[0].clone();
    let name = again.0.clone();
    split.writers[2].tensors.push(again);
    let error = split.refusal();
    for part in [&name, "m-00001-of-00003.gguf", "m-00003-of-00003.gguf"] {
        assert!(error.contains(part), "{error}");
    }

    let mut split = Split::new(3);
    split.writers[1].tensors.pop();
    assert!(split.refusal().contains("the first specifies"), "a part lost a tensor");

    let split = Split::new(3);
    let file = TestFile::new(&split.writers[0].bytes());
    let error = GgufSource::open(&file.path).expect_err("not named as a part").to_string();
    assert!(error.contains("one part of 3") && error.contains("00001-of-00003"), "{error}");
}

#[test]
fn a_part_cut_anywhere_is_an_error_that_names_it() {
    let split = Split::new(2);
    split.write();
    for number in 0..2 {
        let whole = split.writers[number].bytes();
        let head = split.writers[number].head().len();
        let cuts = (0..head).step_by(7).chain((head..whole.len()).step_by(97));
        for length in cuts.chain([whole.len() - 1]) {
            std::fs::write(split.path(number), &whole[..length]).expect("written");
            let error = GgufSource::open(&split.path(0)).expect_err("a cut part").to_string();
            let name = format!("m-0000{}-of-00002.gguf", number + 1);
            assert!(error.contains(&name), "cut at {length}: {error}");
        }
        std::fs::write(split.path(number), whole).expect("written");
    }
    GgufSource::open(&split.path(0)).expect("whole again");
}

#[test]
fn names_of_parts() {
    let paths = |path: &str| part_paths(Path::new(path));
    assert_eq!(
        paths("/d/a-b-00002-of-00003.gguf"),
        [1, 2, 3].map(|n| PathBuf::from(format!("/d/a-b-0000{n}-of-00003.gguf")))
    );
    for plain in ["m.gguf", "m-1-of-3.gguf", "m-00004-of-00003.gguf", "m-00000-of-00003.gguf", "m"]
    {
        assert_eq!(paths(plain), [PathBuf::from(plain)], "{plain}");
        assert_eq!(first_part(Path::new(plain)), PathBuf::from(plain));
    }
    assert_eq!(first_part(Path::new("m-00003-of-00003.gguf")), Path::new("m-00001-of-00003.gguf"));
    assert_eq!(model_name(Path::new("/d/m-Q4_K-00003-of-00003.gguf")), "m-Q4_K");
    assert_eq!(model_name(Path::new("/d/m-1.5B.gguf")), "m-1.5B");
}
