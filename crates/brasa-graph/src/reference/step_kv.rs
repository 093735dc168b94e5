//! Keys and values of whole texts, kept for one step.

use std::collections::HashMap;

use crate::{CacheId, CacheSpec, Graph, StateId};

use super::{Kv, Number};

/// Keys and values that one step writes to caches and memories, not rounded to a cache's element type.
pub(super) struct StepKv<T> {
    specs: Vec<CacheSpec>,
    /// Keys and values by cache, segment and index.
    positions: HashMap<(CacheId, usize, usize), Position<T>>,
}

/// Keys and values of one position, all heads.
struct Position<T> {
    k: Vec<T>,
    v: Vec<T>,
}

impl<T> StepKv<T> {
    /// Empty keys and values for the caches of `graph`.
    pub(super) fn new(graph: &Graph) -> Self {
        Self { specs: graph.caches.clone(), positions: HashMap::new() }
    }
}

impl<T: Number> Kv<T> for StepKv<T> {
    fn write(&mut self, cache: CacheId, segment: usize, index: usize, k: &[T], v: &[T]) {
        self.positions.insert((cache, segment, index), Position { k: k.to_vec(), v: v.to_vec() });
    }

    fn position_elements(&self, cache: CacheId) -> usize {
        let spec = self.specs[cache.0 as usize];
        spec.kv_heads * spec.head_dim
    }

    /// Reads one position. Positions that the step does not write are zeros.
    fn read(&self, cache: CacheId, segment: usize, index: usize, k: &mut [T], v: &mut [T]) {
        if let Some(position) = self.positions.get(&(cache, segment, index)) {
            k.copy_from_slice(&position.k);
            v.copy_from_slice(&position.v);
        } else {
            k.fill(T::default());
            v.fill(T::default());
        }
    }

    fn state(&self, _: StateId, _: usize, elements: usize) -> Vec<T> {
        vec![T::default(); elements]
    }

    /// Nothing: the segments are whole texts, and no step goes on from them.
    fn set_states(&mut self, _: StateId, _: usize, _: &[Vec<T>]) {}
}
