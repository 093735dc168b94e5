//! Tests of reading, resampling and features, with an allocator that counts what each thread holds.

#![allow(clippy::unwrap_used, reason = "a test fails by panicking")]

mod common;
mod files;
mod headers;
mod hostile;
mod mel;
mod recordings;
mod resampling;
mod speech;
mod transcripts;
mod voices;
mod wav;

use brasa_fuzz::MeteredAllocator;

#[global_allocator]
static ALLOCATOR: MeteredAllocator = MeteredAllocator;
