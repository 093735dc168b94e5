//! Times the opening of files with very many entries:
//! `cargo run --release -p brasa-formats --example entries -- [ENTRIES]`.
//!
//! A header is parsed whole before anything else happens, so a file of a few dozen megabytes decides how long a command waits.

use std::collections::BTreeMap;
use std::fmt::Write;
use std::time::{Duration, Instant};

use brasa_formats::{Bytes, Checkpoint};

/// Runs of each case; the fastest counts.
const RUNS: usize = 5;

fn main() -> Result<(), Box<dyn std::error::Error>> {
    let entries = std::env::args().nth(1).map_or(Ok(1_000_000), |count| count.parse())?;
    let folder = BTreeMap::from([
        ("config.json".to_owned(), Bytes::from(b"{}".to_vec())),
        ("model.safetensors".to_owned(), Bytes::from(safetensors(entries))),
    ]);
    time("safetensors entries", entries, || Checkpoint::from_files(folder.clone()))?;
    let file = Bytes::from(gguf(entries, 0));
    time("GGUF keys", entries, || Checkpoint::from_gguf_bytes(file.clone()))?;
    let file = Bytes::from(gguf(0, entries));
    time("GGUF tensors", entries, || Checkpoint::from_gguf_bytes(file.clone()))?;
    Ok(())
}

fn time<T, E>(what: &str, entries: usize, run: impl Fn() -> Result<T, E>) -> Result<(), E> {
    let mut best = Duration::MAX;
    for _ in 0..RUNS {
        let started = Instant::now();
        let opened = run()?;
        best = best.min(started.elapsed());
        drop(opened);
    }
    println!("{entries} {what}: {:.2} s", best.as_secs_f64());
    Ok(())
}

/// A file of tensors with one element each.
fn safetensors(entries: usize) -> Vec<u8> {
    let mut header = String::from("{");
    for entry in 0..entries {
        let comma = if entry == 0 { "" } else { "," };
        let (begin, end) = (entry * 4, entry * 4 + 4);
        let _ = write!(
            header,
            "{comma}\"layers.{entry}.up.weight\":{{\"dtype\":\"F32\",\"shape\":[1],\"data_offsets\":[{begin},{end}]}}"
        );
    }
    header.push('}');
    let mut file = (header.len() as u64).to_le_bytes().to_vec();
    file.extend(header.into_bytes());
    file.resize(file.len() + 4 * entries, 0);
    file
}

/// A file of `keys` numbers and `tensors` tensors of one element each.
fn gguf(keys: usize, tensors: usize) -> Vec<u8> {
    let text = |file: &mut Vec<u8>, text: String| {
        file.extend((text.len() as u64).to_le_bytes());
        file.extend(text.into_bytes());
    };
    let mut file = b"GGUF\x03\0\0\0".to_vec();
    file.extend((tensors as u64).to_le_bytes());
    file.extend((keys as u64).to_le_bytes());
    for key in 0..keys {
        text(&mut file, format!("llama.some.key.{key}"));
        file.extend([4, 0, 0, 0, 7, 0, 0, 0]);
    }
    for tensor in 0..tensors {
        text(&mut file, format!("blk.{tensor}.ffn_up.weight"));
        file.extend(1_u32.to_le_bytes());
        file.extend(1_u64.to_le_bytes());
        file.extend(0_u32.to_le_bytes());
        file.extend((tensor as u64 * 32).to_le_bytes());
    }
    let data = file.len().next_multiple_of(32) + tensors * 32;
    file.resize(data, 0);
    file
}
