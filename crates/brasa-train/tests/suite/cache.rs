//! Token ids that are kept for later runs.

use std::path::PathBuf;

use brasa_tokenizer::Tokenizer;
use brasa_train::data::{DataOptions, Dataset, Examples, Learned, Long, TokenCache};

const ROWS: &str = r#"{"messages": [{"role": "user", "content": "one"}, {"role": "assistant", "content": "two three"}]}
{"tokens": [5, 6, 7, 8], "weights": [0, 0.5, 0, 2]}
{"text": "four and five and six and seven and eight and nine and ten and eleven and twelve and thirteen"}
"#;

#[test]
fn token_ids_are_kept_for_the_same_examples_alone() {
    let folder = brasa_golden::folder("tiny-qwen2");
    let tokenizer = Tokenizer::from_directory(&folder).expect("a tokenizer");
    let template = tokenizer.chat_template().expect("a template");
    let examples = Examples { tokenizer: &tokenizer, template: Some(&template), vocab_size: 4096 };
    let options = DataOptions { max_rows: 30, long: Long::Cut, ..DataOptions::default() };
    let scratch = tempfile::tempdir().expect("a folder");
    let path = scratch.path().join("train.jsonl");
    std::fs::write(&path, ROWS).expect("a file");
    let cache = TokenCache::new(scratch.path().join("cache"), "qwen").expect("a cache");
    let files = || -> Vec<PathBuf> {
        let entries = std::fs::read_dir(scratch.path().join("cache")).expect("a folder");
        entries.map(|entry| entry.expect("an entry").path()).collect()
    };
    let fresh = Dataset::read(&path, &examples, &options).expect("examples");
    let same = |read: &Dataset| {
        (&read.documents, &read.fields, &read.report) == (&fresh.documents, &fresh.fields, &fresh.report)
    };
    for is_cached in [false, true, true] {
        let (data, found) = cache.read(&path, &examples, &options).expect("examples");
        assert_eq!((found, same(&data)), (is_cached, true));
    }
    assert_eq!(files().len(), 1);
    // A damaged file, one that was cut off and one of another program are made anew, whatever bytes they have.
    let kept = files().remove(0);
    let bytes = std::fs::read(&kept).expect("a file");
    for at in (0..bytes.len()).step_by(7) {
        let mut damaged = bytes.clone();
        damaged[at] ^= 1;
        let damaged = if at % 2 == 0 { damaged } else { bytes[..at].to_vec() };
        std::fs::write(&kept, damaged).expect("a file");
        let (data, found) = cache.read(&path, &examples, &options).expect("examples");
        assert_eq!((found, same(&data)), (false, true), "byte {at}");
    }
    assert_eq!(std::fs::read(&kept).expect("a file"), bytes);
    // Other options, another tokenizer and other examples have files of their own.
    let other = DataOptions { learned: Learned::Everything, ..options };
    assert!(!cache.read(&path, &examples, &other).expect("examples").1);
    let llama = TokenCache::new(scratch.path().join("cache"), "llama").expect("a cache");
    assert!(!llama.read(&path, &examples, &options).expect("examples").1);
    std::fs::write(&path, ROWS.replace("two", "to")).expect("a file");
    let (data, found) = cache.read(&path, &examples, &options).expect("examples");
    assert_eq!((found, same(&data), files().len()), (false, false, 4));
}
