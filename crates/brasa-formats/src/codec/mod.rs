//! Exact codecs of every storage format: stored bytes to f32 and back.
//!
//! One file per format. A file holds the block's layout as it lies on disk, as a plain structure that may be
//! viewed in place ([`Block`]), and the arithmetic of its elements. All structures have alignment 1, so any byte
//! offset of a mapped file can be viewed; integers and halves are little-endian.
//!
//! Decoding multiplies in the order of the public Python decoders (`gguf`, `mlx`), so that results agree with
//! them bit for bit. [`decode_row`] is for tests, embeddings and reference runs: kernels read the blocks.
//!
//! ```
//! use brasa_formats::{StorageFormat, codec};
//!
//! let mut stored = vec![0x00, 0x38]; // the half 0.5
//! stored.extend([0xA3; 16]); // element j in the low nibble of byte j, element j + 16 in the high one
//! let mut row = [0.0; 32];
//! codec::decode_row(StorageFormat::Q4_0, &stored, &mut row)?;
//! assert_eq!((row[0], row[16]), (-2.5, 1.0));
//! # Ok::<(), codec::CodecError>(())
//! ```

mod encode;
mod error;
mod fit;
mod fit_block;
mod float;
mod half;
mod iq4_nl;
mod iq4_xs;
mod k_scales;
pub mod mlx;
mod q2_k;
mod q3_k;
mod q4_0;
mod q4_1;
mod q4_k;
mod q5_0;
mod q5_1;
mod q5_k;
mod q6_k;
mod q8_0;
mod tensor;

use bytemuck::Pod;

pub use encode::encode_row;
pub use error::CodecError;
pub use half::Half;
pub use iq4_nl::{BlockIQ4NL, IQ4_NL_VALUES};
pub use iq4_xs::BlockIQ4XS;
pub use k_scales::{pack_k4_scales, unpack_k4_scales};
pub use q2_k::BlockQ2K;
pub use q3_k::BlockQ3K;
pub use q4_0::BlockQ4_0;
pub use q4_1::BlockQ4_1;
pub use q4_k::BlockQ4K;
pub use q5_0::BlockQ5_0;
pub use q5_1::BlockQ5_1;
pub use q5_k::BlockQ5K;
pub use q6_k::BlockQ6K;
pub use q8_0::BlockQ8_0;

use crate::StorageFormat;
use encode::prepare;

/// The result of functions in this module.
pub type Result<T> = std::result::Result<T, CodecError>;

/// A stored block: the bytes of a file, viewable in place at any address.
pub trait Block: Pod {
    /// The format that this block belongs to.
    const FORMAT: StorageFormat;

    /// Elements of one block.
    const LEN: usize;

    /// Writes the [`LEN`](Self::LEN) elements of this block to `out`.
    ///
    /// # Panics
    ///
    /// If `out` is not exactly `LEN` long.
    fn decode(&self, out: &mut [f32]);

    /// The block that differs least from the [`LEN`](Self::LEN) elements of `x`, weighted by `importance`.
    ///
    /// Values are finite, because [`encode_row`] checks them.
    ///
    /// # Panics
    ///
    /// If `x` or `importance` is not exactly `LEN` long.
    fn encode(x: &[f32], importance: Option<&[f32]>) -> Self;
}

/// Views stored bytes as blocks, without a copy.
///
/// # Errors
///
/// [`CodecError::StoredLen`] if `bytes` is no whole number of blocks.
pub fn blocks<B: Block>(bytes: &[u8]) -> Result<&[B]> {
    if !bytes.len().is_multiple_of(size_of::<B>()) {
        return Err(CodecError::StoredLen {
            format: B::FORMAT,
            found: bytes.len(),
            expected: bytes.len() / size_of::<B>() * size_of::<B>(),
        });
    }
    Ok(bytemuck::cast_slice(bytes))
}

/// Decodes one row, or several that lie one after the other: `bytes` holds exactly `out.len()` elements.
///
/// # Errors
///
/// [`CodecError::RowLen`] if `out` is no whole number of blocks, [`CodecError::StoredLen`] if `bytes` has
/// another size than `out` asks for, [`CodecError::ThreeArrays`] for MLX, which [`mlx::decode_row`] decodes.
/// `out` is then untouched.
pub fn decode_row(format: StorageFormat, bytes: &[u8], out: &mut [f32]) -> Result<()> {
    if let StorageFormat::MlxAffine(_) = format {
        return Err(CodecError::ThreeArrays { format });
    }
    let expected = format.row_bytes(out.len()).ok_or(CodecError::RowLen { format, row_len: out.len() })?;
    if bytes.len() != expected {
        return Err(CodecError::StoredLen { format, found: bytes.len(), expected });
    }
    match format {
        StorageFormat::F32 => float::decode_f32(bytes, out),
        StorageFormat::F16 => float::decode_f16(bytes, out),
        StorageFormat::BF16 => float::decode_bf16(bytes, out),
        StorageFormat::Q4_0 => decode_blocks::<BlockQ4_0>(bytes, out)?,
        StorageFormat::Q4_1 => decode_blocks::<BlockQ4_1>(bytes, out)?,
        StorageFormat::Q5_0 => decode_blocks::<BlockQ5_0>(bytes, out)?,
        StorageFormat::Q5_1 => decode_blocks::<BlockQ5_1>(bytes, out)?,
        StorageFormat::Q8_0 => decode_blocks::<BlockQ8_0>(bytes, out)?,
        StorageFormat::Q2_K => decode_blocks::<BlockQ2K>(bytes, out)?,
        StorageFormat::Q3_K => decode_blocks::<BlockQ3K>(bytes, out)?,
        StorageFormat::Q4_K => decode_blocks::<BlockQ4K>(bytes, out)?,
        StorageFormat::Q5_K => decode_blocks::<BlockQ5K>(bytes, out)?,
        StorageFormat::Q6_K => decode_blocks::<BlockQ6K>(bytes, out)?,
        StorageFormat::IQ4_NL => decode_blocks::<BlockIQ4NL>(bytes, out)?,
        StorageFormat::IQ4_XS => decode_blocks::<BlockIQ4XS>(bytes, out)?,
        StorageFormat::MlxAffine(_) => return Err(CodecError::ThreeArrays { format }),
    }
    Ok(())
}

fn decode_blocks<B: Block>(bytes: &[u8], out: &mut [f32]) -> Result<()> {
    for (block, elements) in blocks::<B>(bytes)?.iter().zip(out.chunks_exact_mut(B::LEN)) {
        block.decode(elements);
    }
    Ok(())
}
