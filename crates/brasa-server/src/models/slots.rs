//! The slots of a model: places for its requests, with the last text of each.
//!
//! Slots share cached keys and values, so a slot is only a number. A request may name its slot, and then waits for it. Other
//! requests take the lowest slot that is free and that no waiting request names. Texts are remembered if they can be saved. The
//! text of a request that named its slot stays until another request names the slot; other requests in the slot leave no text.

use std::pin::pin;
use std::sync::{Mutex, MutexGuard, PoisonError};

use brasa::CacheScope;
use tokio::sync::Notify;

/// A text whose keys and values may be cached.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct SlotText {
    /// Token ids of prompt and answer.
    pub tokens: Vec<u32>,
    /// The scope within which the text's keys and values may be shared.
    pub scope: CacheScope,
}

/// How a request got its slot.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum By {
    /// The request named the slot.
    Name,
    /// The slot was free.
    Chance,
}

/// The slots of a model.
#[derive(Debug, Default)]
pub(crate) struct Slots {
    slots: Mutex<Vec<Slot>>,
    freed: Notify,
}

#[derive(Debug, Default)]
struct Slot {
    /// How the running request got the slot; `None` if no request runs in it.
    runs: Option<By>,
    text: SlotText,
    /// True if the text is of a request that named the slot, or came from a file.
    is_held: bool,
    /// Number of requests that name the slot and wait for it.
    waiting: usize,
}

impl Slots {
    /// `count` free slots.
    pub fn new(count: usize) -> Self {
        let slots = (0..count).map(|_| Slot::default()).collect();
        Self { slots: Mutex::new(slots), freed: Notify::new() }
    }

    /// Takes the lowest free slot, preferably one without the text of a request that named it; `None` if all slots are taken or
    /// waited for.
    pub fn take(&self) -> Option<usize> {
        let mut slots = self.lock();
        let is_free = |slot: &Slot| slot.runs.is_none() && slot.waiting == 0;
        let place = slots.iter().position(|slot| is_free(slot) && !slot.is_held);
        let place = place.or_else(|| slots.iter().position(is_free))?;
        slots[place].runs = Some(By::Chance);
        Some(place)
    }

    /// Waits until the slot is free, and takes it for a request that names it.
    pub async fn take_named(&self, place: usize) {
        let _waiting = Waiting::new(self, place);
        loop {
            let mut freed = pin!(self.freed.notified());
            freed.as_mut().enable();
            if let Some(slot) = self.lock().get_mut(place).filter(|slot| slot.runs.is_none()) {
                slot.runs = Some(By::Name);
                return;
            }
            freed.await;
        }
    }

    /// Frees a slot. `text` is the text that was computed in it, if it can be saved; `None` keeps the former text.
    pub fn free(&self, place: usize, text: Option<SlotText>) {
        if let Some(slot) = self.lock().get_mut(place) {
            let by = slot.runs.take();
            if let Some(text) = text
                && (by == Some(By::Name) || !slot.is_held)
            {
                slot.text = text;
                slot.is_held = by == Some(By::Name);
            }
        }
        self.freed.notify_waiters();
    }

    /// The last text of a slot; `None` while a request runs in it that will leave another text.
    pub fn text(&self, place: usize) -> Option<SlotText> {
        self.lock().get(place).filter(|slot| slot.is_settled()).map(|slot| slot.text.clone())
    }

    /// Replaces the text of a slot by the text of a file; returns the former one. Returns `None` and changes nothing while a
    /// request runs in the slot that will leave another text.
    pub fn replace(&self, place: usize, text: SlotText) -> Option<SlotText> {
        self.exchange(place, text, true)
    }

    /// Removes the text of a slot and returns it. Returns `None` and changes nothing while a request runs in the slot that will
    /// leave another text.
    pub fn erase(&self, place: usize) -> Option<SlotText> {
        self.exchange(place, SlotText::default(), false)
    }

    fn exchange(&self, place: usize, text: SlotText, is_held: bool) -> Option<SlotText> {
        let mut slots = self.lock();
        let slot = slots.get_mut(place).filter(|slot| slot.is_settled())?;
        slot.is_held = is_held;
        Some(std::mem::replace(&mut slot.text, text))
    }

    fn lock(&self) -> MutexGuard<'_, Vec<Slot>> {
        self.slots.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Slot {
    /// True if no running request will leave another text in the slot.
    fn is_settled(&self) -> bool {
        match self.runs {
            None => true,
            Some(By::Name) => false,
            Some(By::Chance) => self.is_held,
        }
    }
}

/// Counts a request that waits for a slot, until dropped.
struct Waiting<'a> {
    slots: &'a Slots,
    place: usize,
}

impl<'a> Waiting<'a> {
    fn new(slots: &'a Slots, place: usize) -> Self {
        if let Some(slot) = slots.lock().get_mut(place) {
            slot.waiting += 1;
        }
        Self { slots, place }
    }
}

impl Drop for Waiting<'_> {
    fn drop(&mut self) {
        if let Some(slot) = self.slots.lock().get_mut(self.place) {
            slot.waiting -= 1;
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn text(id: u32) -> SlotText {
        SlotText { tokens: vec![id], ..SlotText::default() }
    }

    fn held(slots: &Slots) -> Vec<Vec<u32>> {
        let count = slots.lock().len();
        (0..count).map(|place| slots.text(place).map_or(vec![0], |text| text.tokens)).collect()
    }

    #[tokio::test]
    async fn a_named_text_stays_whatever_else_runs_in_its_place() {
        let slots = Slots::new(2);
        slots.take_named(0).await;
        slots.free(0, Some(text(7)));
        // The place that nobody has named comes first, then the other.
        assert_eq!((slots.take(), slots.take(), slots.take()), (Some(1), Some(0), None));
        assert_eq!(
            held(&slots),
            [vec![7], vec![0]],
            "the text of a place is not known while another is made there"
        );
        slots.free(0, Some(text(8)));
        slots.free(1, Some(text(9)));
        assert_eq!(held(&slots), [[7], [9]]);
        // Its owner replaces the text, and one who erases it gives the place to everybody.
        slots.take_named(0).await;
        assert_eq!(held(&slots), [[0], [9]]);
        slots.free(0, Some(text(1)));
        assert_eq!(slots.erase(0), Some(text(1)));
        assert_eq!(slots.take(), Some(0));
        slots.free(0, Some(text(2)));
        assert_eq!(held(&slots), [[2], [9]]);
        // A request that was refused leaves the text as it was.
        slots.take_named(1).await;
        slots.free(1, None);
        assert_eq!(held(&slots), [[2], [9]]);
    }

    #[tokio::test]
    async fn a_place_that_is_waited_for_goes_to_nobody_else() {
        let slots = std::sync::Arc::new(Slots::new(1));
        assert_eq!(slots.take(), Some(0));
        let waits = tokio::spawn({
            let slots = std::sync::Arc::clone(&slots);
            async move { slots.take_named(0).await }
        });
        tokio::task::yield_now().await;
        slots.free(0, Some(text(1)));
        assert_eq!(slots.take(), None);
        waits.await.unwrap();
        slots.free(0, Some(text(2)));
        assert_eq!((held(&slots), slots.take()), (vec![vec![2]], Some(0)));
        // Who waits no longer leaves the place to others.
        let gone = tokio::spawn({
            let slots = std::sync::Arc::clone(&slots);
            async move { slots.take_named(0).await }
        });
        tokio::task::yield_now().await;
        gone.abort();
        assert!(gone.await.unwrap_err().is_cancelled());
        slots.free(0, None);
        assert_eq!(slots.take(), Some(0));
    }
}
