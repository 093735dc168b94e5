//! The places for requests of a model, and the last text of each place.
//!
//! Places share cached keys and values, so a place is no more than a number: the lowest that is free is the next request's.
//! Texts are remembered if they can be saved.

use std::sync::{Mutex, MutexGuard, PoisonError};

use brasa::CacheScope;

/// A text whose keys and values may be cached.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct SlotText {
    /// Prompt and answer.
    pub tokens: Vec<u32>,
    /// The scope within which the text's keys and values may be shared.
    pub scope: CacheScope,
}

/// The places of a model.
#[derive(Debug, Default)]
pub(crate) struct Slots(Mutex<Vec<Slot>>);

#[derive(Debug, Default)]
struct Slot {
    busy: bool,
    text: SlotText,
}

impl Slots {
    /// Free places.
    pub fn new(count: usize) -> Self {
        Self(Mutex::new((0..count).map(|_| Slot::default()).collect()))
    }

    /// Takes the lowest free place; `None` if all are taken.
    pub fn take(&self) -> Option<usize> {
        let mut slots = self.lock();
        let place = slots.iter().position(|slot| !slot.busy)?;
        slots[place].busy = true;
        Some(place)
    }

    /// Frees a place. `text` is the text that was computed there, if it can be saved.
    pub fn free(&self, place: usize, text: Option<SlotText>) {
        if let Some(slot) = self.lock().get_mut(place) {
            slot.busy = false;
            slot.text = text.unwrap_or_default();
        }
    }

    /// The last text of a place; `None` while a request runs there.
    pub fn text(&self, place: usize) -> Option<SlotText> {
        self.lock().get(place).filter(|slot| !slot.busy).map(|slot| slot.text.clone())
    }

    /// Gives a place another text, and returns the one before. Returns `None` and changes nothing while a request runs there.
    pub fn replace(&self, place: usize, text: SlotText) -> Option<SlotText> {
        let mut slots = self.lock();
        let slot = slots.get_mut(place).filter(|slot| !slot.busy)?;
        Some(std::mem::replace(&mut slot.text, text))
    }

    fn lock(&self) -> MutexGuard<'_, Vec<Slot>> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}
