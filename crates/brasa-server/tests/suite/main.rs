//! Tests of the server over real sockets. One server with the bundled model serves most of them.

#![allow(clippy::unwrap_used, reason = "a test fails by panicking")]

mod adapter_changes;
mod adapters;
mod attacks;
mod bodies;
mod chat;
mod client;
mod clients;
mod completions;
mod custom_tools;
mod defaults;
mod device;
mod doors;
mod encoders;
mod failures;
mod fields;
mod filling;
mod histories;
mod known_fields;
mod lifecycle;
mod memory;
mod models;
mod other_forms;
mod page;
mod slots;
mod speech;
mod status;
mod stops;
mod structured;
mod telling;
mod threads;
mod tls;
mod vectors;
