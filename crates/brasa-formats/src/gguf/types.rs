//! Every tensor type code that GGUF files have used: its name and block size.

use std::borrow::Cow;

/// A tensor type of the public format, whether Brasa reads it or not.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct TensorType {
    /// The code in the file.
    pub code: u32,
    /// The name llama.cpp gives it.
    pub name: &'static str,
    /// Elements per block.
    pub block_len: u64,
    /// Bytes per block.
    pub block_bytes: u64,
}

impl TensorType {
    /// The type of a code, if the public format defines or once defined it.
    pub fn from_code(code: u32) -> Option<Self> {
        TYPES.iter().copied().find(|known| known.code == code)
    }

    /// Why a tensor of this code is not read, for a message.
    pub(crate) fn unread(code: u32) -> String {
        match Self::from_code(code) {
            Some(known) => format!("stored as {}, which is not read", known.name),
            None => format!("stored as unknown tensor type {code}"),
        }
    }

    /// The name of a code, which may be unknown.
    pub(crate) fn shown(code: u32) -> Cow<'static, str> {
        Self::from_code(code).map_or_else(|| format!("type {code}").into(), |known| known.name.into())
    }

    /// Bytes of a tensor of these dimensions (fastest first); `None` if a row is no whole number of blocks,
    /// or size or dimensions overflow 64 bits.
    pub fn size_bytes(self, dims: &[u64]) -> Option<u64> {
        let row_len = dims.first().copied().unwrap_or(1);
        if !row_len.is_multiple_of(self.block_len) {
            return None;
        }
        // Dimensions of an empty tensor have to be multipliable in any order too.
        let rows = dims.iter().skip(1).try_fold(1_u64, |rows, &dim| rows.checked_mul(dim.max(1)))?;
        let row_bytes = (row_len / self.block_len).checked_mul(self.block_bytes)?;
        let bytes = rows.checked_mul(row_bytes.max(1))?;
        Some(if dims.contains(&0) { 0 } else { bytes })
    }
}

const fn tensor_type(code: u32, name: &'static str, block_len: u64, block_bytes: u64) -> TensorType {
    TensorType { code, name, block_len, block_bytes }
}

const TYPES: [TensorType; 41] = [
    tensor_type(0, "F32", 1, 4),
    tensor_type(1, "F16", 1, 2),
    tensor_type(2, "Q4_0", 32, 18),
    tensor_type(3, "Q4_1", 32, 20),
    // Codes 4 and 5 left the format in 2023.
    tensor_type(4, "Q4_2", 16, 10),
    tensor_type(5, "Q4_3", 16, 12),
    tensor_type(6, "Q5_0", 32, 22),
    tensor_type(7, "Q5_1", 32, 24),
    tensor_type(8, "Q8_0", 32, 34),
    tensor_type(9, "Q8_1", 32, 36),
    tensor_type(10, "Q2_K", 256, 84),
    tensor_type(11, "Q3_K", 256, 110),
    tensor_type(12, "Q4_K", 256, 144),
    tensor_type(13, "Q5_K", 256, 176),
    tensor_type(14, "Q6_K", 256, 210),
    tensor_type(15, "Q8_K", 256, 292),
    tensor_type(16, "IQ2_XXS", 256, 66),
    tensor_type(17, "IQ2_XS", 256, 74),
    tensor_type(18, "IQ3_XXS", 256, 98),
    tensor_type(19, "IQ1_S", 256, 50),
    tensor_type(20, "IQ4_NL", 32, 18),
    tensor_type(21, "IQ3_S", 256, 110),
    tensor_type(22, "IQ2_S", 256, 82),
    tensor_type(23, "IQ4_XS", 256, 136),
    tensor_type(24, "I8", 1, 1),
    tensor_type(25, "I16", 1, 2),
    tensor_type(26, "I32", 1, 4),
    tensor_type(27, "I64", 1, 8),
    tensor_type(28, "F64", 1, 8),
    tensor_type(29, "IQ1_M", 256, 56),
    tensor_type(30, "BF16", 1, 2),
    // Codes 31 to 33 and 36 to 38 were repacked forms of Q4_0 and IQ4_NL, and left the format in 2024.
    tensor_type(31, "Q4_0_4_4", 32, 18),
    tensor_type(32, "Q4_0_4_8", 32, 18),
    tensor_type(33, "Q4_0_8_8", 32, 18),
    tensor_type(34, "TQ1_0", 256, 54),
    tensor_type(35, "TQ2_0", 256, 66),
    tensor_type(36, "IQ4_NL_4_4", 32, 18),
    tensor_type(37, "IQ4_NL_4_8", 32, 18),
    tensor_type(38, "IQ4_NL_8_8", 32, 18),
    tensor_type(39, "MXFP4", 32, 17),
    tensor_type(40, "NVFP4", 64, 36),
];

#[cfg(test)]
mod tests {
    use super::*;
    use crate::StorageFormat;

    #[test]
    fn sizes_agree_with_the_formats_that_are_read() {
        for format in StorageFormat::GGUF {
            let code = format.gguf_code().unwrap();
            let known = TensorType::from_code(code).unwrap();
            assert_eq!(known.name, format.to_string());
            assert_eq!(known.block_len, format.block_len() as u64);
            assert_eq!(known.block_bytes, format.block_bytes() as u64);
        }
    }

    #[test]
    fn sizes_are_checked() {
        let q4_0 = TensorType::from_code(2).unwrap();
        assert_eq!(q4_0.size_bytes(&[4096, 4096]), Some(9_437_184));
        assert_eq!(q4_0.size_bytes(&[48, 4]), None);
        assert_eq!(q4_0.size_bytes(&[1 << 40, 1 << 40]), None);
        assert_eq!(q4_0.size_bytes(&[32, 0]), Some(0));
        assert_eq!(q4_0.size_bytes(&[0, 1 << 40, 1 << 40]), None);
        assert_eq!(q4_0.size_bytes(&[]), None);
    }
}
