//! The numbers that rows bring for an input that the graph declares, by the adapter of their scope.

use std::collections::BTreeMap;
use std::sync::{Arc, PoisonError, RwLock};

use crate::EngineError;

/// Most adapters, or mixtures of adapters, that one engine gets to know.
const MOST: usize = 1 << 16;

/// The scales of a bank of adapters, by [`CacheScope::adapter`](crate::CacheScope::adapter): each row of a step brings those of its text
/// for the one input that the graph declares.
#[derive(Debug)]
pub struct AdapterRows {
    width: usize,
    rows: RwLock<BTreeMap<u64, Arc<[f32]>>>,
}

impl AdapterRows {
    /// Rows of which adapter 0, the one of the default scope, brings `plain`.
    pub fn new(plain: &[f32]) -> Self {
        Self { width: plain.len(), rows: RwLock::new(BTreeMap::from([(0, plain.into())])) }
    }

    /// Makes `adapter` known: its rows bring `row`. What is known already stays.
    ///
    /// # Errors
    ///
    /// [`EngineError::Options`] for a row of another width or with numbers that are not finite, and if too many are known.
    pub fn insert(&self, adapter: u64, row: &[f32]) -> Result<(), EngineError> {
        if row.len() != self.width || row.iter().any(|x| !x.is_finite()) {
            return Err(EngineError::Options(format!(
                "scales {row:?}, expected {} finite numbers",
                self.width
            )));
        }
        let mut rows = self.rows.write().unwrap_or_else(PoisonError::into_inner);
        if rows.len() >= MOST && !rows.contains_key(&adapter) {
            return Err(EngineError::Options(format!("more than {MOST} mixtures of adapters")));
        }
        rows.entry(adapter).or_insert_with(|| row.into());
        Ok(())
    }

    /// The scales that a row of `adapter` brings.
    ///
    /// # Errors
    ///
    /// [`EngineError::Options`] for one that is not known.
    pub fn of(&self, adapter: u64) -> Result<Arc<[f32]>, EngineError> {
        let rows = self.rows.read().unwrap_or_else(PoisonError::into_inner);
        let unknown = || EngineError::Options(format!("adapter {adapter:016x} is not known"));
        rows.get(&adapter).cloned().ok_or_else(unknown)
    }
}
