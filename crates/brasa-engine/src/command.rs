//! The messages that the engine's handle sends to its thread.

use std::time::Instant;

use crate::adapter_rows::AdapterLease;
use crate::delivery::Delivery;
use crate::executor::{Executor, Reads};
use crate::queue::QueuePlace;
use crate::sessions::Sessions;
use crate::{Request, SessionId};

/// Work on sequences and sessions.
pub(crate) type SessionWork = Box<dyn FnOnce(&mut Executor, &mut Sessions) + Send>;

/// A message to the engine's thread.
pub(crate) enum Command {
    Generate(Box<Submission>),
    CloseSession(SessionId),
    Work(Box<dyn FnOnce(&mut Executor) + Send>),
    AtSessions(SessionWork),
    /// Wakes the engine's thread: a reader has caught up or has cancelled, or a text has been decoded.
    Wake,
    Close,
}

/// A request that has not arrived at the engine's thread yet.
pub(crate) struct Submission {
    pub(crate) request: Request,
    /// The values that the model reports of the text's tokens, and the index of the first token to report; `None` for a generation.
    pub(crate) reads: Option<Reads>,
    pub(crate) delivery: Delivery,
    pub(crate) place: QueuePlace,
    /// Keeps the request's adapters in the bank.
    pub(crate) lease: Option<AdapterLease>,
    pub(crate) submitted: Instant,
}
