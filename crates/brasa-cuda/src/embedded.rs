//! Kernels compiled ahead, within this crate.
//!
//! `cargo xtask cuda` compiles them and writes the files below; it also notes the sources that they were made from, and a test
//! compares the note with the sources that are there. Images are deflated.

use crate::driver::DriverError;

/// Machine code of compute capability 9.0.
const CUBIN: &[u8] = include_bytes!("../kernels/embedded/plain.sm_90a.cubin.deflate");
/// Machine code of the interpreter, compute capability 9.0.
const DECODE: &[u8] = include_bytes!("../kernels/embedded/decode.sm_90a.cubin.deflate");
/// Code for every later capability than 8.0, which the driver compiles when it is loaded.
const PTX: &[u8] = include_bytes!("../kernels/embedded/plain.compute_80.ptx.deflate");
/// Matrix products of many rows, for compute capability 9.0.
const GEMM: &[u8] = include_bytes!("../kernels/embedded/gemm.sm_90a.cubin.deflate");
/// Products of rows sorted by expert, for compute capability 9.0.
const EXPERTS: &[u8] = include_bytes!("../kernels/embedded/experts.sm_90a.cubin.deflate");
/// Attention of many rows, for compute capability 9.0.
const FLASH: &[u8] = include_bytes!("../kernels/embedded/flash.sm_90a.cubin.deflate");

/// More than any image is long; a damaged one cannot ask for more.
const LONGEST_BYTES: usize = 64 << 20;

/// The plain kernels for a device of this compute capability.
pub(crate) fn plain(capability: (i32, i32)) -> Result<Vec<u8>, DriverError> {
    let mut image = unpack(if capability == (9, 0) { CUBIN } else { PTX })?;
    // PTX is text that ends with a zero byte.
    image.push(0);
    Ok(image)
}

/// Matrix products of many rows; `None` if a device of this compute capability lacks the tensor cores that they were written for.
pub(crate) fn gemm(capability: (i32, i32)) -> Option<Result<Vec<u8>, DriverError>> {
    (capability == (9, 0)).then(|| unpack(GEMM))
}

/// Products of rows sorted by expert; `None` if a device of this compute capability lacks the tensor cores that they were written for.
pub(crate) fn experts(capability: (i32, i32)) -> Option<Result<Vec<u8>, DriverError>> {
    (capability == (9, 0)).then(|| unpack(EXPERTS))
}

/// Attention of many rows; `None` if a device of this compute capability lacks the tensor cores that it was written for.
pub(crate) fn flash(capability: (i32, i32)) -> Option<Result<Vec<u8>, DriverError>> {
    (capability == (9, 0)).then(|| unpack(FLASH))
}

/// The interpreter for a device of this compute capability; `None` if there is none.
pub(crate) fn decode(capability: (i32, i32)) -> Option<Result<Vec<u8>, DriverError>> {
    (capability == (9, 0)).then(|| unpack(DECODE))
}

fn unpack(packed: &[u8]) -> Result<Vec<u8>, DriverError> {
    let unpacked = miniz_oxide::inflate::decompress_to_vec_with_limit(packed, LONGEST_BYTES);
    unpacked.map_err(|error| DriverError::Kernels { what: error.to_string() })
}

#[cfg(test)]
mod tests {
    use std::path::{Path, PathBuf};

    /// A number that differs where any source does: FNV-1a over names and contents. Sources of one folder include those of the other.
    fn fingerprint(kernels: &Path) -> u64 {
        let mut fingerprint = 0xcbf2_9ce4_8422_2325_u64;
        for folder in ["hopper", "plain"] {
            let entries = std::fs::read_dir(kernels.join(folder)).expect("the kernels' sources");
            let mut files: Vec<PathBuf> = entries.map(|entry| entry.expect("an entry").path()).collect();
            files.sort();
            for file in files {
                let name = file.file_name().expect("a name").to_string_lossy().into_owned();
                let bytes = std::fs::read(&file).expect("a source");
                for byte in name.bytes().chain(bytes) {
                    fingerprint = (fingerprint ^ u64::from(byte)).wrapping_mul(0x0000_0100_0000_01b3);
                }
            }
        }
        fingerprint
    }

    #[test]
    fn the_embedded_kernels_are_current() {
        let kernels = Path::new(env!("CARGO_MANIFEST_DIR")).join("kernels");
        let note = kernels.join("embedded/sources");
        let expected = format!("{:016x}\n", fingerprint(&kernels));
        if std::env::var_os("BRASA_UPDATE").is_some() {
            std::fs::write(&note, &expected).expect("the note can be written");
        }
        let found = std::fs::read_to_string(&note).expect("the note is there");
        assert_eq!(found, expected, "the sources of kernels changed: run cargo xtask cuda");
    }

    #[test]
    fn images_unpack() {
        let fast = [super::gemm((9, 0)), super::experts((9, 0)), super::flash((9, 0))]
            .map(|image| image.expect("it unpacks").expect("a cubin"));
        for cubin in fast.into_iter().chain([super::plain((9, 0)).expect("a cubin")]) {
            assert_eq!(&cubin[..4], b"\x7fELF");
        }
        let ptx = super::plain((12, 0)).expect("PTX");
        assert!(ptx.ends_with(b"\0") && String::from_utf8_lossy(&ptx).contains(".target sm_80"));
    }
}
