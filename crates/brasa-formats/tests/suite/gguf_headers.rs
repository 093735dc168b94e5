//! Odd headers of GGUF files, made here, each with what comes of it.

use brasa_formats::{Bytes, Checkpoint, Inspection};

/// The outcome of reading a file.
enum Outcome {
    /// The file is read.
    Read,
    /// The file is refused with these words.
    Refused(&'static str),
}
use Outcome::{Read, Refused};

/// A file in the making.
struct File {
    version: u32,
    tensor_count: Option<u64>,
    pair_count: Option<u64>,
    /// Pairs, packed.
    pairs: Vec<Vec<u8>>,
    /// Tensor descriptions, packed.
    tensors: Vec<Vec<u8>>,
    alignment: usize,
    data: Vec<u8>,
}

fn string(text: &str) -> Vec<u8> {
    [&(text.len() as u64).to_le_bytes()[..], text.as_bytes()].concat()
}

/// A pair with a value of this type.
fn pair(key: &str, value_type: u32, value: &[u8]) -> Vec<u8> {
    [&string(key)[..], &value_type.to_le_bytes(), value].concat()
}

/// An array that claims `count` elements of a type.
fn array(key: &str, element: u32, count: u64, elements: &[u8]) -> Vec<u8> {
    pair(key, 9, &[&element.to_le_bytes()[..], &count.to_le_bytes(), elements].concat())
}

fn tensor(name: &str, dims: &[u64], type_code: u32, offset: u64) -> Vec<u8> {
    let dims_bytes: Vec<u8> = dims.iter().flat_map(|dim| dim.to_le_bytes()).collect();
    let count = (dims.len() as u32).to_le_bytes();
    [&string(name)[..], &count, &dims_bytes, &type_code.to_le_bytes(), &offset.to_le_bytes()].concat()
}

fn file() -> File {
    File {
        version: 3,
        tensor_count: None,
        pair_count: None,
        pairs: vec![
            pair("general.architecture", 8, &string("llama")),
            pair("llama.block_count", 4, &[1, 0, 0, 0]),
        ],
        tensors: vec![tensor("a", &[8], 0, 0), tensor("b", &[2, 3], 0, 32)],
        alignment: 32,
        data: vec![0; 56],
    }
}

impl File {
    fn with(mut self, pair: Vec<u8>) -> Self {
        self.pairs.push(pair);
        self
    }

    fn of(mut self, tensors: &[Vec<u8>]) -> Self {
        self.tensors = tensors.to_vec();
        self
    }

    fn bytes(self) -> Vec<u8> {
        let mut bytes = b"GGUF".to_vec();
        bytes.extend(self.version.to_le_bytes());
        bytes.extend(self.tensor_count.unwrap_or(self.tensors.len() as u64).to_le_bytes());
        bytes.extend(self.pair_count.unwrap_or(self.pairs.len() as u64).to_le_bytes());
        bytes.extend(self.pairs.concat());
        bytes.extend(self.tensors.concat());
        bytes.resize(bytes.len().next_multiple_of(self.alignment), 0);
        bytes.extend(self.data);
        bytes
    }
}

#[test]
fn every_header_is_read_or_refused() {
    let aligned = |to: u32, file: File| file.with(pair("general.alignment", 4, &to.to_le_bytes()));
    let cases: Vec<(&str, Vec<u8>, Outcome)> = vec![
        ("as it should be", file().bytes(), Read),
        ("version 2", File { version: 2, ..file() }.bytes(), Read),
        ("version 1", File { version: 1, ..file() }.bytes(), Refused("GGUF version 1")),
        ("version 4", File { version: 4, ..file() }.bytes(), Refused("GGUF version 4, expected 2 or 3")),
        (
            "another order of bytes",
            File { version: 3 << 24, ..file() }.bytes(),
            Refused("a big-endian GGUF file"),
        ),
        ("no pairs", File { pairs: Vec::new(), ..file() }.bytes(), Read),
        ("no tensors", file().of(&[]).bytes(), Read),
        ("2^63 pairs", File { pair_count: Some(1 << 63), ..file() }.bytes(), Refused("key-value pairs")),
        ("2^63 tensors", File { tensor_count: Some(1 << 63), ..file() }.bytes(), Refused("tensors")),
        (
            "a tensor too many",
            File { tensor_count: Some(3), ..file() }.bytes(),
            Refused("the file is incomplete"),
        ),
        (
            "a key twice",
            file().with(pair("llama.block_count", 4, &[1, 0, 0, 0])).bytes(),
            Refused("this key appears twice"),
        ),
        ("an empty key", file().with(pair("", 4, &[1, 0, 0, 0])).bytes(), Read),
        (
            "an unknown value",
            file().with(pair("x", 99, &[0; 8])).bytes(),
            Refused("unknown value type 99, expected 0 to 12"),
        ),
        ("a bool of 7", file().with(pair("x", 7, &[7])).bytes(), Refused("a bool of 7, expected 0 or 1")),
        ("a string without end", file().with(pair("x", 8, &u64::MAX.to_le_bytes())).bytes(), Refused("x")),
        (
            "a string that is no text",
            file().with(pair("x", 8, &[1, 0, 0, 0, 0, 0, 0, 0, 0xff])).bytes(),
            Refused("x"),
        ),
        ("an empty array", file().with(array("x", 4, 0, &[])).bytes(), Read),
        ("an array of 2^62", file().with(array("x", 4, 1 << 62, &[])).bytes(), Refused("x: ")),
        ("an array of 2^64 - 1 bytes", file().with(array("x", 0, u64::MAX, &[])).bytes(), Refused("x: ")),
        ("an array too short", file().with(array("x", 4, 1000, &[0; 8])).bytes(), Refused("x: ")),
        (
            "an array of strings too short",
            file().with(array("x", 8, 30, &string("a"))).bytes(),
            Refused("x: "),
        ),
        (
            "an array of an unknown type",
            file().with(array("x", 13, 1, &[0; 8])).bytes(),
            Refused("unknown value type 13"),
        ),
        ("an array of bools of 2", file().with(array("x", 7, 2, &[1, 2])).bytes(), Refused("a bool of 2")),
        (
            "arrays in arrays",
            file()
                .with(array(
                    "x",
                    9,
                    1,
                    &[&4_u32.to_le_bytes()[..], &1_u64.to_le_bytes(), &[7, 0, 0, 0]].concat(),
                ))
                .bytes(),
            Read,
        ),
        (
            "arrays without bottom",
            file()
                .with(array("x", 9, 1, &[&9_u32.to_le_bytes()[..], &1_u64.to_le_bytes()].concat().repeat(20)))
                .bytes(),
            Refused("nested deeper than 8"),
        ),
        (
            "alignment 0",
            aligned(0, file()).bytes(),
            Refused("general.alignment: found 0, expected a power of two"),
        ),
        ("alignment 24", aligned(24, file()).bytes(), Refused("general.alignment: found 24")),
        ("alignment 2^31", aligned(1 << 31, file()).bytes(), Refused("general.alignment: found 2147483648")),
        (
            "alignment as text",
            file().with(pair("general.alignment", 8, &string("32"))).bytes(),
            Refused("general.alignment: found"),
        ),
        (
            "alignment below 0",
            file().with(pair("general.alignment", 5, &(-32_i32).to_le_bytes())).bytes(),
            Refused("general.alignment: found the i32 -32"),
        ),
        ("alignment 8", aligned(8, File { alignment: 8, ..file() }).bytes(), Read),
        (
            "a tensor twice",
            file().of(&[tensor("a", &[8], 0, 0), tensor("a", &[8], 0, 32)]).bytes(),
            Refused("this tensor appears twice"),
        ),
        (
            "five dimensions",
            file().of(&[tensor("a", &[1; 5], 0, 0)]).bytes(),
            Refused("5 dimensions, expected at most 4"),
        ),
        ("no dimensions", file().of(&[tensor("a", &[], 0, 0)]).bytes(), Read),
        ("a dimension of 0", file().of(&[tensor("a", &[8, 0], 0, 0)]).bytes(), Read),
        (
            "too large for 64 bits",
            file().of(&[tensor("a", &[1 << 40, 1 << 40], 0, 0)]).bytes(),
            Refused("overflow 64 bits"),
        ),
        ("an unknown type", file().of(&[tensor("a", &[8], 1000, 0)]).bytes(), Refused("a: ")),
        ("a type that is gone", file().of(&[tensor("a", &[32], 4, 0)]).bytes(), Refused("a: ")),
        (
            "half a block",
            file().of(&[tensor("a", &[16], 2, 0)]).bytes(),
            Refused("rows of 16 elements, expected a multiple of 32"),
        ),
        (
            "an offset between",
            file().of(&[tensor("a", &[8], 0, 7)]).bytes(),
            Refused("offset 7, expected a multiple of 32"),
        ),
        (
            "an offset behind the end",
            file().of(&[tensor("a", &[8], 0, 1 << 40)]).bytes(),
            Refused("but its tensors need"),
        ),
        (
            "the last offset of all",
            file().of(&[tensor("a", &[8], 0, u64::MAX - 31)]).bytes(),
            Refused("overflow 64 bits"),
        ),
        (
            "one on the other",
            File { data: vec![0; 64], ..file() }
                .of(&[tensor("a", &[16], 0, 0), tensor("b", &[8], 0, 32)])
                .bytes(),
            Refused("its data overlaps that of \"a\""),
        ),
        (
            "cut off",
            {
                let mut bytes = file().bytes();
                bytes.pop();
                bytes
            },
            Refused("the file is incomplete"),
        ),
        ("more behind", [file().bytes(), vec![9; 100]].concat(), Read),
        (
            "a name that is no text",
            file().of(&[[&1_u64.to_le_bytes()[..], &[0xff], &tensor("", &[8], 0, 0)[8..]].concat()]).bytes(),
            Refused("name"),
        ),
    ];
    assert!(cases.len() >= 40);
    for (name, bytes, outcome) in cases {
        let bytes: Bytes = bytes.into();
        // Whoever only looks hears the same.
        let inspected = match Inspection::of_gguf_bytes(&bytes) {
            Ok(inspection) => inspection.problems().iter().map(ToString::to_string).next(),
            Err(error) => Some(error.to_string()),
        };
        let found = Checkpoint::from_gguf_bytes(bytes).err().map(|error| error.to_string());
        assert_eq!(inspected, found, "{name}");
        match (outcome, found) {
            (Read, None) => {}
            (Refused(words), Some(error)) => assert!(error.contains(words), "{name}: {error}"),
            (_, found) => panic!("{name}: {found:?}"),
        }
    }
}
