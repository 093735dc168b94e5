//! Sequences, KV pages, steps, sampling: what turns a program into text
