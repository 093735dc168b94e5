//! Keys and values of whole texts, kept for one step.

use std::collections::HashMap;

use crate::{CacheId, CacheSpec, Graph, StateId, ValueWidth};

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

    fn position_elements(&self, cache: CacheId) -> [usize; 2] {
        let spec = self.specs[cache.0 as usize];
        [spec.kv_heads * spec.key_dim, spec.kv_heads * spec.value_dim()]
    }

    /// Reads one position. Positions that the step does not write are zeros.
    fn read(&self, cache: CacheId, segment: usize, index: usize, k: &mut [T], v: &mut [T]) {
        let spec = self.specs[cache.0 as usize];
        if let Some(position) = self.positions.get(&(cache, segment, index)) {
            k.copy_from_slice(&position.k);
            match spec.value {
                ValueWidth::Own(_) => v.copy_from_slice(&position.v),
                ValueWidth::PrefixOfKey(width) => {
                    for (v, k) in v.chunks_exact_mut(width).zip(k.chunks_exact(spec.key_dim)) {
                        v.copy_from_slice(&k[..width]);
                    }
                }
            }
        } else {
            k.fill(T::default());
            v.fill(T::default());
        }
    }

    fn state(&self, _: StateId, _: usize, elements: usize) -> Vec<T> {
        vec![T::default(); elements]
    }

    /// Keeps nothing: segments are whole texts here, and no step goes on from them.
    fn set_states(&mut self, _: StateId, _: usize, _: &[Vec<T>]) {}
}
