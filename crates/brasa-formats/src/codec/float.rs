//! F32, F16 and BF16: rows of plain floats.

use half::slice::{HalfBitsSliceExt, HalfFloatSliceExt};
use half::{bf16, f16};

/// Widens little-endian f32; bits are kept, NaN payloads included.
pub(super) fn decode_f32(bytes: &[u8], out: &mut [f32]) {
    for (value, stored) in out.iter_mut().zip(bytes.as_chunks::<4>().0) {
        *value = f32::from_le_bytes(*stored);
    }
}

/// Widens halves, exactly.
pub(super) fn decode_f16(bytes: &[u8], out: &mut [f32]) {
    if cfg!(target_endian = "little")
        && let Ok(halves) = bytemuck::try_cast_slice::<u8, u16>(bytes)
    {
        return halves.reinterpret_cast::<f16>().convert_to_f32_slice(out);
    }
    for (value, stored) in out.iter_mut().zip(bytes.as_chunks::<2>().0) {
        *value = f16::from_le_bytes(*stored).to_f32();
    }
}

/// Widens bfloat16, exactly: its bits are the upper half of an f32.
pub(super) fn decode_bf16(bytes: &[u8], out: &mut [f32]) {
    for (value, stored) in out.iter_mut().zip(bytes.as_chunks::<2>().0) {
        *value = bf16::from_le_bytes(*stored).to_f32();
    }
}

/// Stores f32, bit for bit.
pub(super) fn encode_f32(x: &[f32], out: &mut [u8]) {
    for (stored, value) in out.as_chunks_mut::<4>().0.iter_mut().zip(x) {
        *stored = value.to_le_bytes();
    }
}

/// Rounds to the nearest half, ties to even. Finite values beyond ±65504 saturate; infinities and NaN stay.
pub(super) fn encode_f16(x: &[f32], out: &mut [u8]) {
    for (stored, &value) in out.as_chunks_mut::<2>().0.iter_mut().zip(x) {
        let value = if value.is_finite() { value.clamp(-65504.0, 65504.0) } else { value };
        *stored = f16::from_f32(value).to_le_bytes();
    }
}

/// Rounds to the nearest bfloat16, ties to even.
pub(super) fn encode_bf16(x: &[f32], out: &mut [u8]) {
    for (stored, &value) in out.as_chunks_mut::<2>().0.iter_mut().zip(x) {
        *stored = bf16::from_f32(value).to_le_bytes();
    }
}
