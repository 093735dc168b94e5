//! Encodes a file of raw f32 and reports the time: `encode FORMAT ROW_LEN IN.f32 OUT.bin`.
//!
//! FORMAT is a GGUF name such as `Q4_K`. `tools/compare_quantisers.py` uses it.

use std::error::Error;
use std::time::Instant;

use brasa_formats::{StorageFormat, codec};

fn main() -> Result<(), Box<dyn Error>> {
    let args: Vec<String> = std::env::args().skip(1).collect();
    let [format, row_len, input, output] = &args[..] else {
        return Err("usage: encode FORMAT ROW_LEN IN.f32 OUT.bin".into());
    };
    let format = StorageFormat::GGUF.into_iter().find(|known| known.to_string() == *format);
    let format = format.ok_or("an unknown format")?;
    let row_len: usize = row_len.parse()?;
    let stored = std::fs::read(input)?;
    let mut x = vec![0.0; stored.len() / 4];
    codec::decode_row(StorageFormat::F32, &stored, &mut x)?;
    let row_bytes = format.row_bytes(row_len).ok_or("a ragged row")?;
    let mut out = vec![0; x.len() / row_len * row_bytes];
    let start = Instant::now();
    for (x, out) in x.chunks_exact(row_len).zip(out.chunks_exact_mut(row_bytes)) {
        codec::encode_row(format, x, None, out)?;
    }
    println!("{:.3}", start.elapsed().as_secs_f64() * 1e9 / x.len() as f64);
    std::fs::write(output, out)?;
    Ok(())
}
