//! Sequences that are held between requests.

use std::collections::HashMap;

use crate::sequence::Sequence;
use crate::{EngineError, SessionId};

/// The sessions of an engine.
#[derive(Default)]
pub(crate) struct Sessions {
    held: HashMap<SessionId, Held>,
    /// Counts the requests that have returned their sequence to a session.
    left: u64,
}

/// The state of a session.
enum Held {
    /// No request uses the session. It holds the sequence of its last request; `since` is the value of the counter `left` at that
    /// time.
    Idle { sequence: Sequence, since: u64 },
    /// A request uses the sequence. `closed` is true if the session was closed meanwhile.
    InUse { closed: bool },
}

/// The result of a request's claim to a session.
pub(crate) enum Claim {
    /// The session's sequence, which the request owns now.
    Held(Sequence),
    /// The session has no sequence yet.
    Empty,
    /// The session is used by another request.
    Busy,
}

impl Sessions {
    /// Gives a session's sequence to a request, which [returns](Self::leave) it at its end.
    pub(crate) fn claim(&mut self, id: SessionId) -> Claim {
        match self.held.insert(id, Held::InUse { closed: false }) {
            None => Claim::Empty,
            Some(Held::Idle { sequence, .. }) => Claim::Held(sequence),
            Some(in_use @ Held::InUse { .. }) => {
                self.held.insert(id, in_use);
                Claim::Busy
            }
        }
    }

    /// Returns a sequence to its session. Gives the sequence back to the caller if the session was closed meanwhile.
    pub(crate) fn leave(&mut self, id: SessionId, sequence: Sequence) -> Option<Sequence> {
        if let Some(Held::InUse { closed: true }) = self.held.get(&id) {
            self.held.remove(&id);
            return Some(sequence);
        }
        self.left += 1;
        self.held.insert(id, Held::Idle { sequence, since: self.left });
        None
    }

    /// The sequence of a session that no request uses; `None` if the session holds none.
    ///
    /// # Errors
    ///
    /// [`EngineError::SessionBusy`] if a request uses the session.
    pub(crate) fn idle_sequence(&mut self, id: SessionId) -> Result<Option<&mut Sequence>, EngineError> {
        match self.held.get_mut(&id) {
            None => Ok(None),
            Some(Held::Idle { sequence, .. }) => Ok(Some(sequence)),
            Some(Held::InUse { .. }) => Err(EngineError::SessionBusy),
        }
    }

    /// Closes a session; returns its sequence if it holds one.
    pub(crate) fn close(&mut self, id: SessionId) -> Option<Sequence> {
        match self.held.remove(&id)? {
            Held::Idle { sequence, .. } => Some(sequence),
            Held::InUse { .. } => {
                self.held.insert(id, Held::InUse { closed: true });
                None
            }
        }
    }

    /// The sequences of sessions that no request uses.
    pub(crate) fn sequences(&self) -> impl Iterator<Item = &Sequence> {
        self.held.values().filter_map(|held| match held {
            Held::Idle { sequence, .. } => Some(sequence),
            Held::InUse { .. } => None,
        })
    }

    /// Number of sessions that no request uses.
    pub(crate) fn idle(&self) -> usize {
        self.held.values().filter(|held| matches!(held, Held::Idle { .. })).count()
    }

    /// Forgets the session that has been idle longest; returns its sequence.
    pub(crate) fn give_up_oldest(&mut self) -> Option<Sequence> {
        let idle = |held: &Held| if let Held::Idle { since, .. } = held { Some(*since) } else { None };
        let (_, id) = self.held.iter().filter_map(|(&id, held)| Some((idle(held)?, id))).min()?;
        self.close(id)
    }
}
