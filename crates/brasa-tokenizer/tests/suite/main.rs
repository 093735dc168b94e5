//! Tests of tokenizers and chat templates.

mod chat_templates;
mod checkpoints;
mod common;
mod fuzz;
mod hostile;
mod hostile_files;
mod hostile_templates;
mod marks;
mod published_vocabularies;
mod random_texts;
mod silences;
mod tool_calls;
mod turns;
