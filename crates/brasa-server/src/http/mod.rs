//! The layers that every request passes: connections, heads, bodies, threads, the log, and the form of answers.

pub(crate) mod auth;
pub(crate) mod budget;
pub(crate) mod connection;
pub(crate) mod cors;
pub(crate) mod error;
pub(crate) mod hosts;
pub(crate) mod ids;
pub(crate) mod leftover;
pub(crate) mod limits;
pub(crate) mod listen;
pub(crate) mod log;
pub(crate) mod log_writer;
pub(crate) mod pool;
pub(crate) mod reply;
pub(crate) mod seen_once;
pub(crate) mod sse;
