//! Tests of codecs and containers, with an allocator that counts what each thread holds.

#![allow(clippy::unwrap_used, reason = "a test fails by panicking")]

mod adapters;
mod changed;
mod codec_decode;
mod codec_encode;
mod fuzz;
mod gguf;
mod gguf_headers;
mod golden_containers;
mod hostile;
mod npz;
mod output_file;
mod round_trips;
mod scratch;
#[cfg(unix)]
mod shrunk;
mod sidecars;
mod whisper_bin;

use brasa_fuzz::MeteredAllocator;

#[global_allocator]
static ALLOCATOR: MeteredAllocator = MeteredAllocator;
