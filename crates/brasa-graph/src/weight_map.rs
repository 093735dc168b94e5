//! A map keyed by the identity of weights, such as a device's uploads.

use std::collections::HashMap;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError, Weak};

use crate::Weight;

/// A `T` for each weight, by the weight's identity: two graphs that share a weight by [`Arc`] find the same `T`.
///
/// The map does not keep weights alive, so the bytes of a file can be given back after an upload. A `T` that nothing else holds
/// is dropped when the next weight is entered after its own weight was dropped.
#[derive(Debug)]
pub struct WeightMap<T> {
    /// Entries by the weight's address. A weak reference keeps the address from being reused.
    entries: Mutex<HashMap<usize, Entry<T>>>,
}

#[derive(Debug)]
struct Entry<T> {
    weight: Weak<Weight>,
    value: Arc<T>,
}

impl<T> Default for WeightMap<T> {
    fn default() -> Self {
        Self { entries: Mutex::default() }
    }
}

impl<T> WeightMap<T> {
    /// The value of `weight`; `None` if there is none.
    pub fn get(&self, weight: &Arc<Weight>) -> Option<Arc<T>> {
        self.lock().get(&key(weight)).map(|entry| Arc::clone(&entry.value))
    }

    /// The value of `weight`, made by `make` if there is none.
    ///
    /// # Errors
    ///
    /// The error of `make`; nothing was entered.
    pub fn entry<E>(&self, weight: &Arc<Weight>, make: impl FnOnce() -> Result<T, E>) -> Result<Arc<T>, E> {
        if let Some(value) = self.get(weight) {
            return Ok(value);
        }
        let value = Arc::new(make()?);
        let mut entries = self.lock();
        entries.retain(|_, entry| entry.weight.strong_count() > 0 || Arc::strong_count(&entry.value) > 1);
        let entry = Entry { weight: Arc::downgrade(weight), value };
        Ok(Arc::clone(&entries.entry(key(weight)).or_insert(entry).value))
    }

    /// All values, in no particular order.
    pub fn values(&self) -> Vec<Arc<T>> {
        self.lock().values().map(|entry| Arc::clone(&entry.value)).collect()
    }

    fn lock(&self) -> MutexGuard<'_, HashMap<usize, Entry<T>>> {
        self.entries.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

fn key(weight: &Arc<Weight>) -> usize {
    Arc::as_ptr(weight).addr()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::testing::weight;

    fn number(map: &WeightMap<u32>, weight: &Arc<Weight>, number: u32) -> u32 {
        *map.entry(weight, || Ok::<_, ()>(number)).expect("made")
    }

    #[test]
    fn identity_is_that_of_the_shared_weight() {
        let map = WeightMap::default();
        let [first, equal] = [(); 2].map(|()| Arc::new(weight("w", &[1], &[1.0])));
        assert_eq!((number(&map, &first, 1), number(&map, &equal, 2)), (1, 2));
        assert_eq!((number(&map, &Arc::clone(&first), 3), map.get(&equal).as_deref()), (1, Some(&2)));
        assert!(map.entry(&Arc::new(weight("w", &[1], &[1.0])), || Err("no")).is_err());
        assert_eq!(map.values().len(), 2);
    }

    #[test]
    fn values_go_with_their_weights_unless_somebody_holds_them() {
        let map = WeightMap::default();
        let [gone, held] = [(); 2].map(|()| Arc::new(weight("w", &[1], &[1.0])));
        number(&map, &gone, 1);
        let value = map.entry(&held, || Ok::<_, ()>(2)).expect("made");
        drop((gone, held));
        number(&map, &Arc::new(weight("w", &[1], &[1.0])), 3);
        let mut left: Vec<u32> = map.values().iter().map(|value| **value).collect();
        left.sort_unstable();
        assert_eq!((left, *value), (vec![2, 3], 2));
    }
}
