//! The decoding procedure against openai-whisper's own functions (`tools/golden/speech.py`).

#![allow(clippy::unwrap_used, reason = "a test fails by panicking")]

mod agreement;
mod golden;
mod rules;
mod searches;
mod stub;
mod times;
mod timing;
mod vocabulary;
mod windows;
