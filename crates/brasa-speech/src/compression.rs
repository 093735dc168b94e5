//! A sign of texts that go round in circles.

use miniz_oxide::deflate::core::{
    CompressionStrategy, CompressorOxide, TDEFLFlush, compress, create_comp_flags_from_zip_params,
};

/// Bytes of `text` for each byte of its compressed form; 0 for an empty text.
///
/// The form is zlib's at level 6, which takes the shorter of its two codes for each block. A window's text is one block.
pub fn compression_ratio(text: &str) -> f64 {
    let codes = [CompressionStrategy::Default, CompressionStrategy::Fixed];
    let shortest = codes.into_iter().map(|code| compressed_bytes(text.as_bytes(), code)).min();
    text.len() as f64 / shortest.unwrap_or(1).max(1) as f64
}

fn compressed_bytes(text: &[u8], code: CompressionStrategy) -> usize {
    const LEVEL: i32 = 6;
    /// Asks for zlib's header and checksum.
    const ZLIB: i32 = 1;
    let flags = create_comp_flags_from_zip_params(LEVEL, ZLIB, code as i32);
    // Never longer than the text beside a few bytes for each block.
    let mut out = vec![0; text.len() + text.len() / 8 + 128];
    compress(&mut CompressorOxide::new(flags), text, &mut out, TDEFLFlush::Finish).2
}
