//! The messages that the engine's handle sends to its thread.

use std::time::Instant;

use crate::delivery::Delivery;
use crate::executor::Executor;
use crate::queue::QueuePlace;
use crate::{Request, SessionId};

/// A message to the engine's thread.
pub(crate) enum Command {
    Generate(Box<Job>),
    CloseSession(SessionId),
    Work(Box<dyn FnOnce(&mut Executor) + Send>),
    /// A reader has caught up or wants no more.
    Wake,
    Close,
}

/// A request on its way in.
pub(crate) struct Job {
    pub(crate) request: Request,
    pub(crate) delivery: Delivery,
    pub(crate) place: QueuePlace,
    pub(crate) submitted: Instant,
}
