//! GGUF files: what is written is read back, whole and in parts.

use std::fs;
use std::path::Path;

use brasa_formats::gguf::{Array, Metadata, TensorPlan, Value, Writer};
use brasa_formats::{Bytes, Checkpoint, Container, FormatError, Inspection, Payload, StorageFormat};

use crate::scratch::Scratch;

fn every_kind_of_value() -> Metadata {
    let mut metadata = Metadata::new();
    metadata.insert("general.architecture", "llama");
    metadata.insert("kind.u8", u8::MAX);
    metadata.insert("kind.i8", i8::MIN);
    metadata.insert("kind.u16", u16::MAX);
    metadata.insert("kind.i16", i16::MIN);
    metadata.insert("kind.u32", u32::MAX);
    metadata.insert("kind.i32", i32::MIN);
    metadata.insert("kind.u64", u64::MAX);
    metadata.insert("kind.i64", i64::MIN);
    metadata.insert("kind.f32", 1.5_f32);
    metadata.insert("kind.f64", 1e300_f64);
    metadata.insert("kind.bool", true);
    metadata.insert("kind.string", "Glut, glühend\n");
    metadata.insert("array.f32", Array::of([0.0_f32, -1.0]));
    metadata.insert("array.bool", Array::of([true, false]));
    metadata.insert("array.empty", Array::of::<u64>([]));
    metadata.insert("array.strings", Array::of_strings([b"a".as_slice(), b"", b"\xff\xfe"]));
    let inner = [Array::of([1_i32, 2]), Array::of_strings(["x"]), Array::of_arrays([Array::of([7_u8])])];
    metadata.insert("array.arrays", Array::of_arrays(inner));
    metadata
}

fn plan(name: &str, shape: &[usize], format: StorageFormat) -> TensorPlan {
    TensorPlan { name: name.into(), shape: shape.into(), format }
}

/// Bytes that tell their tensor and place.
fn content(tensor: usize, len: usize) -> Vec<u8> {
    (0..len).map(|i| (tensor * 37 + i * 11 % 251) as u8).collect()
}

fn write(path: &Path, metadata: &Metadata, plans: &[TensorPlan]) {
    let mut writer = Writer::create(Scratch::output(path), metadata, plans.to_vec()).unwrap();
    for (at, plan) in plans.iter().enumerate() {
        let bytes = content(at, plan.size_bytes().unwrap());
        for piece in bytes.chunks(100) {
            writer.write(&plan.name, piece).unwrap();
        }
    }
    assert_eq!(writer.next_tensor(), None);
    writer.finish().unwrap();
}

fn plans() -> Vec<TensorPlan> {
    vec![
        plan("token_embd.weight", &[5, 64], StorageFormat::Q4_0),
        plan("empty", &[0, 3], StorageFormat::F32),
        plan("scalar", &[], StorageFormat::F32),
        plan("norm", &[3], StorageFormat::F16),
        plan("experts", &[2, 3, 256], StorageFormat::Q6_K),
        plan("four", &[1, 2, 1, 4], StorageFormat::BF16),
    ]
}

#[test]
fn what_is_written_is_read() {
    let scratch = Scratch::new("what_is_written_is_read");
    for alignment in [None, Some(8_u32), Some(256)] {
        let mut metadata = every_kind_of_value();
        if let Some(alignment) = alignment {
            metadata.insert("general.alignment", alignment);
        }
        let path = scratch.path("model.gguf");
        write(&path, &metadata, &plans());

        let from_map = Checkpoint::open(&path).unwrap();
        let from_memory = Checkpoint::from_gguf_bytes(fs::read(&path).unwrap()).unwrap();
        for checkpoint in [from_map, from_memory] {
            assert_eq!(checkpoint.container(), Container::Gguf);
            assert_eq!(checkpoint.file_bytes(), fs::metadata(&path).unwrap().len());
            let brasa_formats::Metadata::Gguf(read) = checkpoint.metadata() else { panic!("not GGUF") };
            assert_eq!(*read, metadata);
            assert_eq!(checkpoint.tensors().len(), plans().len());
            for (at, (tensor, plan)) in checkpoint.tensors().iter().zip(plans()).enumerate() {
                assert_eq!(
                    (&tensor.name, &tensor.shape, tensor.format),
                    (&plan.name, &plan.shape, plan.format)
                );
                let Payload::Blocks(bytes) = &tensor.payload else { panic!("blocks") };
                assert_eq!(**bytes, content(at, plan.size_bytes().unwrap()));
                bytes.release_pages();
                assert_eq!(**bytes, content(at, plan.size_bytes().unwrap()));
            }
        }
    }
}

#[test]
fn values_are_read_as_any_type_that_holds_them() {
    let metadata = every_kind_of_value();
    assert_eq!(metadata.require::<u64>("kind.u8").unwrap(), 255);
    assert_eq!(metadata.require::<i64>("kind.i8").unwrap(), -128);
    assert_eq!(metadata.require::<f32>("kind.i16").unwrap().to_string(), "-32768");
    assert_eq!(metadata.require::<Vec<f64>>("array.f32").unwrap(), [0.0, -1.0]);
    assert_eq!(metadata.require::<Vec<bool>>("array.bool").unwrap(), [true, false]);
    assert_eq!(metadata.require::<Vec<u32>>("array.empty").unwrap(), [0_u32; 0]);
    assert_eq!(metadata.require::<Vec<&[u8]>>("array.strings").unwrap()[2], b"\xff\xfe");
    let arrays: Vec<_> = metadata.require::<&Array>("array.arrays").unwrap().arrays().unwrap().collect();
    assert_eq!(arrays[0], Array::of([1_i32, 2]));
    assert_eq!(arrays[1].strings().unwrap().collect::<Vec<_>>(), [b"x"]);
    let innermost: Vec<_> = arrays[2].arrays().unwrap().collect();
    assert_eq!(innermost[0].scalars().unwrap().collect::<Vec<_>>(), [Value::U8(7)]);
    assert_eq!(metadata.get::<u32>("absent").unwrap(), None);

    let messages: Vec<String> = [
        metadata.require::<u32>("absent").map(drop),
        metadata.get::<u8>("kind.u16").map(drop),
        metadata.get::<u64>("kind.i8").map(drop),
        metadata.get::<f32>("kind.f64").map(drop),
        metadata.get::<u32>("kind.f32").map(drop),
        metadata.get::<&str>("kind.bool").map(drop),
        metadata.get::<Vec<&str>>("array.strings").map(drop),
        metadata.get::<Vec<i8>>("kind.string").map(drop),
    ]
    .into_iter()
    .map(|result| result.unwrap_err().to_string())
    .collect();
    assert_eq!(
        messages,
        [
            "absent: this key is missing",
            "kind.u16: found the u16 65535, expected an integer from 0 to 255",
            "kind.i8: found the i8 -128, expected an integer of 0 or more",
            "kind.f64: found the f64 1e300, expected a number in the range of f32",
            "kind.f32: found the f32 1.5, expected an integer from 0 to 4294967295",
            "kind.bool: found the bool true, expected a string",
            "array.strings: found an array of 3 × string, expected an array of UTF-8 strings",
            "kind.string: found a string, expected an array, each element an integer from -128 to 127",
        ]
    );
}

#[test]
fn keys_keep_their_order() {
    let mut metadata = Metadata::new();
    for key in ["a", "b", "c", "d"] {
        metadata.insert(key, 0_u8);
    }
    metadata.remove("b");
    metadata.insert("c", 1_u8);
    metadata.insert("b", 2_u8);
    let keys: Vec<_> = metadata.iter().map(|(key, _)| key).collect();
    assert_eq!(keys, ["a", "c", "d", "b"]);
    assert_eq!(metadata.value("d"), Some(&Value::U8(0)));
    assert_eq!(metadata.value("b"), Some(&Value::U8(2)));
    assert_eq!(metadata.remove("b"), Some(Value::U8(2)));
    assert_eq!(metadata.remove("b"), None);
}

#[test]
fn an_abandoned_writer_leaves_nothing() {
    let scratch = Scratch::new("an_abandoned_writer_leaves_nothing");
    let path = scratch.path("model.gguf");
    fs::write(&path, "what was there before").unwrap();
    let metadata = Metadata::new();

    let plans = vec![plan("t", &[4], StorageFormat::F32)];
    let mut writer = Writer::create(Scratch::output(&path), &metadata, plans.clone()).unwrap();
    writer.write("t", &[0; 7]).unwrap();
    let message = writer.write("u", &[0]).unwrap_err().to_string();
    assert!(message.ends_with("u: written out of order: t is due"), "{message}");
    let message = writer.write("t", &[0; 10]).unwrap_err().to_string();
    assert!(message.ends_with("t: 17 bytes, expected 16"), "{message}");
    let message = writer.finish().unwrap_err().to_string();
    assert!(message.ends_with("t: 7 of 16 bytes written"), "{message}");

    drop(Writer::create(Scratch::output(&path), &metadata, plans).unwrap());
    assert_eq!(scratch.names(), ["model.gguf"]);
    assert_eq!(fs::read_to_string(&path).unwrap(), "what was there before");
}

#[test]
fn what_has_no_place_in_gguf_is_not_written() {
    let scratch = Scratch::new("what_has_no_place_in_gguf_is_not_written");
    let path = scratch.path("model.gguf");
    let message = |metadata: &Metadata, plans: Vec<TensorPlan>| {
        let error = Writer::create(Scratch::output(&path), metadata, plans).unwrap_err();
        assert!(matches!(error, FormatError::Unwritable(_)));
        error.to_string()
    };
    let empty = Metadata::new();
    let ragged = message(&empty, vec![plan("t", &[2, 48], StorageFormat::Q4_0)]);
    assert!(ragged.ends_with("t: shape [2, 48] cannot be stored as Q4_0 in GGUF"), "{ragged}");
    let deep = message(&empty, vec![plan("t", &[1, 1, 1, 1, 1], StorageFormat::F32)]);
    assert!(deep.ends_with("t: 5 dimensions, expected at most 4"), "{deep}");
    let twice = message(&empty, vec![plan("t", &[1], StorageFormat::F32); 2]);
    assert!(twice.ends_with("t: this tensor is given twice"), "{twice}");
    let endless = message(&empty, vec![plan(&"t".repeat(65536), &[1], StorageFormat::F32)]);
    assert!(endless.ends_with("…: a name of 65536 bytes, expected at most 65535"), "{endless}");
    let mut metadata = Metadata::new();
    metadata.insert("general.alignment", 33_u32);
    let odd = message(&metadata, vec![]);
    assert!(
        odd.ends_with("general.alignment: found 33, expected a power of two from 8 to 1073741824"),
        "{odd}"
    );
    assert_eq!(scratch.names(), [""; 0]);
}

/// Writes `plans` as two parts.
fn write_split(scratch: &Scratch, plans: &[TensorPlan], cut: usize) {
    for (no, range) in [0..cut, cut..plans.len()].into_iter().enumerate() {
        let mut metadata = if no == 0 { every_kind_of_value() } else { Metadata::new() };
        metadata.insert("split.no", no as u16);
        metadata.insert("split.count", 2_u16);
        metadata.insert("split.tensors.count", plans.len() as i32);
        let path = scratch.path(&format!("model-0000{}-of-00002.gguf", no + 1));
        write(&path, &metadata, &plans[range]);
    }
}

#[test]
fn any_part_opens_all() {
    let scratch = Scratch::new("any_part_opens_all");
    write_split(&scratch, &plans(), 2);
    for path in ["model-00001-of-00002.gguf", "model-00002-of-00002.gguf", ""] {
        let checkpoint = Checkpoint::open(scratch.path(path)).unwrap();
        let names: Vec<_> = checkpoint.tensors().iter().map(|tensor| tensor.name.clone()).collect();
        assert_eq!(names, plans().into_iter().map(|plan| plan.name).collect::<Vec<_>>());
        let brasa_formats::Metadata::Gguf(metadata) = checkpoint.metadata() else { panic!("not GGUF") };
        assert_eq!(*metadata, every_kind_of_value());
    }

    // Renamed, a part is found to be one.
    fs::copy(scratch.path("model-00002-of-00002.gguf"), scratch.path("other.gguf")).unwrap();
    let error = Checkpoint::open(scratch.path("other.gguf")).unwrap_err().to_string();
    assert!(error.contains("other.gguf: part 2 of 2, without the others"), "{error}");

    fs::remove_file(scratch.path("model-00002-of-00002.gguf")).unwrap();
    let error = Checkpoint::open(scratch.path("model-00001-of-00002.gguf")).unwrap_err().to_string();
    assert!(error.contains("part 2 of 2 cannot be read"), "{error}");

    let inspection = Inspection::open(scratch.path("model-00001-of-00002.gguf")).unwrap();
    assert_eq!((inspection.tensors().len(), inspection.files().len()), (2, 1));

    fs::copy(scratch.path("model-00001-of-00002.gguf"), scratch.path("model-00002-of-00002.gguf")).unwrap();
    let error = Checkpoint::open(scratch.path("model-00001-of-00002.gguf")).unwrap_err().to_string();
    assert!(error.contains("split.no: found 0, expected 1"), "{error}");
}

#[test]
fn unsupported_types_are_refused_but_inspected() {
    let scratch = Scratch::new("unsupported_types_are_refused_but_inspected");
    let path = scratch.path("model.gguf");
    write(&path, &Metadata::new(), &[plan("blk.0.ffn_up.weight", &[2, 32], StorageFormat::Q4_0)]);
    let mut bytes = fs::read(&path).unwrap();
    // The type follows the name, the count of dimensions and two dimensions.
    let at = bytes.windows(6).position(|window| window == b"weight").unwrap() + 6 + 4 + 16;
    assert_eq!(bytes[at], 2);
    bytes[at] = 39;
    fs::write(&path, &bytes).unwrap();

    let error = Checkpoint::open(&path).unwrap_err();
    assert!(matches!(error, FormatError::Unsupported(_)));
    let text = error.to_string();
    assert!(
        text.contains("model.gguf: blk.0.ffn_up.weight: stored as MXFP4, which is not read\nhint: "),
        "{text}"
    );

    let inspection = Inspection::open(&path).unwrap();
    assert_eq!(inspection.gguf_version(), Some(3));
    let info = &inspection.tensors()[0];
    assert_eq!((&*info.type_name, info.format, info.size_bytes), ("MXFP4", None, Some(34)));
    assert_eq!(info.shape, [2, 32]);
    assert_eq!(inspection.problems().len(), 1);
}

#[test]
fn a_cut_off_file_is_refused_but_inspected() {
    let scratch = Scratch::new("a_cut_off_file_is_refused_but_inspected");
    let path = scratch.path("model.gguf");
    write(&path, &every_kind_of_value(), &plans());
    let bytes = fs::read(&path).unwrap();
    let cut = bytes.len() - 100;
    fs::write(&path, &bytes[..cut]).unwrap();
    let text = Checkpoint::open(&path).unwrap_err().to_string();
    assert!(text.contains(&format!("{cut} bytes, but its tensors need {}", bytes.len() - 16)), "{text}");
    assert!(text.ends_with("hint: the file is incomplete; download it again"), "{text}");
    let inspection = Inspection::open(&path).unwrap();
    assert_eq!(inspection.tensors().len(), plans().len());
    assert!(inspection.metadata().is_some());

    // Every shorter file is an error too, never a panic; and with the metadata whole, it can be inspected.
    let whole = Bytes::from(bytes);
    for len in 0..whole.len() - 32 {
        assert!(Checkpoint::from_gguf_bytes(whole.slice(0..len).unwrap()).is_err(), "{len} bytes");
    }
}
