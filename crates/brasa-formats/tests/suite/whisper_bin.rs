//! Files of whisper.cpp: what is read of them, and how broken ones are refused.

use std::collections::BTreeMap;
use std::path::Path;

use brasa_formats::{Bytes, Checkpoint, Container, Inspection, Metadata, StorageFormat};
use serde_json::Value;

/// A file in the making.
pub struct Bin(Vec<u8>);

impl Bin {
    /// Header and filter bank of a model of this vocabulary.
    pub fn new(vocab: u32, file_type: u32) -> Self {
        let mut bin = Self(b"lmgg".to_vec());
        bin.numbers(&[vocab, 1500, 384, 6, 4, 448, 384, 6, 4, 2, file_type]);
        bin.numbers(&[2, 3]);
        bin.0.extend((0..6).flat_map(|value| (value as f32).to_le_bytes()));
        bin
    }

    fn numbers(&mut self, numbers: &[u32]) {
        self.0.extend(numbers.iter().flat_map(|number| number.to_le_bytes()));
    }

    /// Adds the vocabulary.
    pub fn tokens<T: AsRef<[u8]>>(mut self, tokens: &[T]) -> Self {
        self.numbers(&[tokens.len() as u32]);
        for token in tokens {
            self.numbers(&[token.as_ref().len() as u32]);
            self.0.extend(token.as_ref());
        }
        self
    }

    /// Adds a tensor of these dimensions, fastest first.
    pub fn tensor(mut self, name: &str, dims: &[u32], type_code: u32, data: &[u8]) -> Self {
        self.numbers(&[dims.len() as u32, name.len() as u32, type_code]);
        self.numbers(dims);
        self.0.extend(name.as_bytes());
        self.0.extend(data);
        self
    }

    /// Bytes of the file.
    pub fn bytes(self) -> Vec<u8> {
        self.0
    }

    fn open(self) -> Result<Checkpoint, brasa_formats::FormatError> {
        let files = BTreeMap::from([("ggml-tiny.bin".to_owned(), Bytes::from(self.0))]);
        Checkpoint::from_files(files)
    }
}

/// The tokenizer of a trained Whisper, in the form of Hugging Face's tokenizers.
fn tokenizer() -> Value {
    let path = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../models/tiny-whisper/tokenizer.json");
    serde_json::from_slice(&std::fs::read(path).unwrap()).unwrap()
}

/// The bytes of a token that is spelled with a character for each.
fn raw(token: &str) -> Vec<u8> {
    let mut hidden = (0..=255_u8).filter(|byte| !matches!(byte, 33..=126 | 161..=172 | 174..=255));
    let table: BTreeMap<char, u8> = (0..=255_u8)
        .filter(|byte| matches!(byte, 33..=126 | 161..=172 | 174..=255))
        .map(|byte| (char::from(byte), byte))
        .chain((256..).map_while(|code| Some((char::from_u32(code)?, hidden.next()?))))
        .collect();
    token.chars().map(|character| table[&character]).collect()
}

#[test]
fn the_vocabulary_is_that_of_the_published_tokenizer() {
    let tokenizer = tokenizer();
    let mut vocabulary: Vec<(String, u64)> = tokenizer["model"]["vocab"]
        .as_object()
        .unwrap()
        .iter()
        .map(|(token, id)| (token.clone(), id.as_u64().unwrap()))
        .collect();
    vocabulary.sort_by_key(|(_, id)| *id);
    let text: Vec<Vec<u8>> = vocabulary[..50_257].iter().map(|(token, _)| raw(token)).collect();
    let checkpoint = Bin::new(51_865, 1).tokens(&text).open().unwrap();
    assert_eq!(checkpoint.container(), Container::Gguf);
    let Metadata::Gguf(metadata) = checkpoint.metadata() else { panic!("a Whisper has GGUF's keys") };
    let mut expected: Vec<String> = vocabulary[..50_257].iter().map(|(token, _)| token.clone()).collect();
    let mut added: Vec<(u64, String)> = tokenizer["added_tokens"]
        .as_array()
        .unwrap()
        .iter()
        .map(|token| (token["id"].as_u64().unwrap(), token["content"].as_str().unwrap().to_owned()))
        .collect();
    added.sort();
    expected.extend(added.into_iter().map(|(_, content)| content));
    let found: Vec<&str> = metadata.require("tokenizer.ggml.tokens").unwrap();
    assert_eq!(found.len(), 51_865);
    for (id, (found, expected)) in found.iter().zip(&expected).enumerate() {
        assert_eq!(found, expected, "token {id}");
    }
    let merges: Vec<&str> = metadata.require("tokenizer.ggml.merges").unwrap();
    let published = tokenizer["model"]["merges"].as_array().unwrap();
    assert_eq!(merges.len(), published.len());
    for (found, published) in merges.iter().zip(published) {
        let pair = published.as_array().map_or_else(
            || published.as_str().unwrap().to_owned(),
            |pair| format!("{} {}", pair[0].as_str().unwrap(), pair[1].as_str().unwrap()),
        );
        assert_eq!(*found, pair);
    }
    assert_eq!(metadata.require::<usize>("tokenizer.ggml.eos_token_id").unwrap(), 50_257);
}

fn empty_tokens(count: usize) -> Vec<&'static [u8]> {
    vec![b"".as_slice(); count]
}

#[test]
fn numbers_and_tensors_are_read() {
    let q8_0 = [7_u8; 34];
    let checkpoint = Bin::new(51_864, 2007)
        .tokens(&empty_tokens(50_256))
        .tensor("encoder.conv1.bias", &[1, 2], 0, &[0, 0, 0x80, 0x3f, 0, 0, 0, 0x40])
        .tensor("encoder.blocks.0.mlp.0.weight", &[32, 1], 8, &q8_0)
        .open()
        .unwrap();
    let Metadata::Gguf(metadata) = checkpoint.metadata() else { panic!("a Whisper has GGUF's keys") };
    assert_eq!(metadata.require::<&str>("general.architecture").unwrap(), "whisper");
    assert_eq!(metadata.require::<usize>("whisper.encoder.context_length").unwrap(), 1500);
    assert_eq!(metadata.require::<usize>("whisper.decoder.attention.head_count").unwrap(), 6);
    let tokens: Vec<&str> = metadata.require("tokenizer.ggml.tokens").unwrap();
    assert_eq!(
        (tokens[50_256], tokens[50_257], tokens[50_258]),
        ("<|endoftext|>", "<|startoftranscript|>", "<|en|>")
    );
    assert_eq!((tokens[50_361], tokens[50_363], tokens[51_863]), ("<|nospeech|>", "<|0.00|>", "<|30.00|>"));
    let bias = checkpoint.tensor("encoder.conv1.bias").unwrap();
    let mut values = [0.0; 2];
    bias.decode_rows(0..1, &mut values).unwrap();
    assert_eq!((&bias.shape[..], values), (&[2][..], [1.0, 2.0]));
    let matrix = checkpoint.tensor("encoder.blocks.0.mlp.0.weight").unwrap();
    assert_eq!((&matrix.shape[..], matrix.format), (&[1, 32][..], StorageFormat::Q8_0));
    let filters = checkpoint.tensor("mel_filters").unwrap();
    let mut values = [0.0; 6];
    filters.decode_rows(0..2, &mut values).unwrap();
    assert!(
        values.iter().zip(0_u8..).all(|(found, expected)| found.to_bits() == f32::from(expected).to_bits()),
        "{values:?}"
    );
}

#[test]
fn broken_files_are_refused_with_the_reason() {
    let whole = || Bin::new(51_864, 1).tokens(&empty_tokens(50_256));
    let cut = |bin: Bin, bytes: usize| Bin(bin.0[..bin.0.len() - bytes].to_vec());
    let mut no_bank = Bin::new(51_864, 1);
    no_bank.0[48] = 3;
    let mut wide_bank = Bin::new(51_864, 1);
    wide_bank.0[52..56].copy_from_slice(&u32::MAX.to_le_bytes());
    let mut many_tokens = Bin::new(51_864, 1);
    many_tokens.numbers(&[51_000]);
    let mut long_token = Bin::new(51_864, 1);
    long_token.numbers(&[1, 1 << 20, 0]);
    let cases: [(&str, Bin); 13] = [
        ("no Whisper", no_bank),
        ("frequencies", wide_bank),
        ("the 0 bytes left hold at most 0", many_tokens),
        ("a token of 1048576 bytes", long_token),
        ("expected 51864, 51865 or 51866", Bin::new(32_000, 1).tokens(&empty_tokens(3))),
        ("3 tokens of text, expected 50257", Bin::new(51_865, 1).tokens(&empty_tokens(3))),
        ("quantised formats of version 1", Bin::new(51_864, 1002).tokens(&empty_tokens(50_256))),
        ("the file ends inside the vocabulary", cut(Bin::new(51_864, 1).tokens(&["four"; 1]), 1)),
        ("5 dimensions", whole().tensor("x", &[1; 5], 0, &[0; 4])),
        ("unknown tensor type 99", whole().tensor("x", &[1], 99, &[0; 4])),
        ("whose blocks have 32 elements", whole().tensor("x", &[31], 8, &[0; 34])),
        ("x: byte", cut(whole().tensor("x", &[2], 0, &[0; 8]), 1)),
        ("appears twice", whole().tensor("x", &[1], 0, &[0; 4]).tensor("x", &[1], 0, &[0; 4])),
    ];
    for (expected, bin) in cases {
        let error = bin.open().expect_err(expected).to_string();
        assert!(error.contains(expected), "{expected:?} is not in: {error}");
    }
}

#[test]
fn one_of_several_files_has_to_be_named() {
    let file = || Bytes::from(Bin::new(51_864, 1).0);
    let files = ["ggml-base.bin", "ggml-tiny.bin", "notes.bin"].map(|name| (name.to_owned(), file()));
    let error = Inspection::of_files(BTreeMap::from(files)).expect_err("two models").to_string();
    assert!(error.contains("2 GGML files: ggml-base.bin, ggml-tiny.bin"), "{error}");
}
