//! The scales of adapters that the rows of a step bring, for an input that the graph declares. A row's scales follow from the
//! adapter number of its scope.

use std::collections::BTreeMap;
use std::sync::{Arc, Condvar, Mutex, PoisonError, RwLock, RwLockReadGuard, RwLockWriteGuard};
use std::time::{Duration, Instant};

use crate::EngineError;

/// Most mixtures of adapters that one engine keeps at a time.
const MOST: usize = 1 << 12;

/// The scales of a bank of adapters, by [`CacheScope::adapter`](crate::CacheScope::adapter). Each row of a step brings the scales
/// of its text for the one input that the graph declares.
///
/// A scope's number names a *mixture*: some adapters of the bank, each with a scale. Adapters have numbers too, which the caller chooses;
/// they may come and go ([`Engine::replace_program`](crate::Engine::replace_program)) while the mixtures of running requests stay what they are.
#[derive(Debug)]
pub struct AdapterRows {
    known: RwLock<Known>,
    ended: Arc<Ended>,
}

#[derive(Debug)]
struct Known {
    /// The adapters of the program, in the order of the scales in a row.
    bank: Vec<u64>,
    /// The mixture of the default scope.
    plain: u64,
    mixtures: BTreeMap<u64, Mixture>,
}

#[derive(Debug)]
struct Mixture {
    scales: Vec<(u64, f32)>,
    row: Arc<[f32]>,
    /// Shared by the requests that use the mixture; its count tells whether any does.
    users: Arc<()>,
    named: Instant,
    /// True once no new request may use the mixture.
    sealed: bool,
}

/// Counts the requests that have ended, and wakes threads that wait for an end.
#[derive(Debug, Default)]
struct Ended {
    count: Mutex<u64>,
    changed: Condvar,
}

/// A request's hold on its mixture: the adapters stay in the bank until it is dropped.
#[derive(Debug)]
pub(crate) struct AdapterLease {
    users: Option<Arc<()>>,
    ended: Arc<Ended>,
}

impl Drop for AdapterLease {
    fn drop(&mut self) {
        self.users = None;
        *self.ended.count.lock().unwrap_or_else(PoisonError::into_inner) += 1;
        self.ended.changed.notify_all();
    }
}

impl AdapterRows {
    /// Rows for a program with the adapters `bank`. The default scope, number 0, has the mixture `plain`; adapters that `plain`
    /// does not name have the scale 0.
    ///
    /// # Errors
    ///
    /// [`EngineError::Options`] for an adapter that is not in the bank, and for a scale that is no finite number.
    pub fn new(bank: &[u64], plain: &[(u64, f32)]) -> Result<Self, EngineError> {
        let known = Known { bank: bank.to_vec(), plain: 0, mixtures: BTreeMap::new() };
        let rows = Self { known: RwLock::new(known), ended: Arc::default() };
        rows.insert(0, plain)?;
        Ok(rows)
    }

    /// Enters `mixture`: the scales of some adapters, 0 for all others. A mixture that is entered already stays unchanged. If
    /// there are 4,096, the older half of those that no request uses is dropped.
    ///
    /// # Errors
    ///
    /// [`EngineError::Options`] for an adapter that is not in the bank, for a scale that is no finite number, and if running
    /// requests use 4,096 different mixtures.
    pub fn insert(&self, mixture: u64, scales: &[(u64, f32)]) -> Result<(), EngineError> {
        let mut known = self.write();
        let row = known.row(scales)?;
        if known.mixtures.len() >= MOST && !known.mixtures.contains_key(&mixture) {
            known.forget_old();
            if known.mixtures.len() >= MOST {
                return Err(EngineError::Options(format!("requests have {MOST} mixtures of adapters")));
            }
        }
        let entry = known.mixtures.entry(mixture).or_insert_with(|| Mixture::new(scales, &row));
        (entry.named, entry.sealed) = (Instant::now(), false);
        Ok(())
    }

    /// Number of the default scope's mixture.
    pub fn plain(&self) -> u64 {
        self.read().plain
    }

    /// Makes the default scope stand for another mixture, for requests from now on. Texts cached with the old mixture are not
    /// used for them.
    ///
    /// # Errors
    ///
    /// [`EngineError::Options`] for a mixture that was not entered.
    pub fn set_plain(&self, mixture: u64) -> Result<(), EngineError> {
        let mut known = self.write();
        known.get(mixture)?;
        known.plain = mixture;
        Ok(())
    }

    /// The scales of a row of `mixture`, one for each adapter of the program, in the order of the bank.
    ///
    /// # Errors
    ///
    /// [`EngineError::Options`] for a mixture that was not entered.
    pub fn of(&self, mixture: u64) -> Result<Arc<[f32]>, EngineError> {
        let known = self.read();
        let plain =
            || Some(known.plain).filter(|_| mixture == 0).and_then(|plain| known.mixtures.get(&plain));
        let found = known.mixtures.get(&mixture).or_else(plain).ok_or_else(|| unknown(mixture))?;
        Ok(Arc::clone(&found.row))
    }

    /// Rows for another program with the same adapters. Their default scope has the present scales of `mixture`.
    ///
    /// # Errors
    ///
    /// [`EngineError::Options`] for a mixture that was not entered.
    pub fn snapshot(&self, mixture: u64) -> Result<Self, EngineError> {
        let known = self.read();
        let number = if mixture == 0 { known.plain } else { mixture };
        let Mixture { scales, row, .. } = known.get(number)?;
        let (bank, mixtures) = (known.bank.clone(), [(0, Mixture::new(scales, row))].into());
        Ok(Self { known: RwLock::new(Known { bank, plain: 0, mixtures }), ended: Arc::default() })
    }

    /// Refuses new requests with an adapter if no request uses the adapter and no mixture with it was entered within the last
    /// `grace`. Returns true if the adapter is refused from now on. `grace` is the time that a request has between entering its
    /// mixture and its start.
    pub fn seal(&self, adapter: u64, grace: Duration) -> bool {
        let mut known = self.write();
        let plain = known.plain;
        let is_free = |(&number, mixture): (&u64, &Mixture)| {
            number != plain && Arc::strong_count(&mixture.users) == 1 && mixture.named.elapsed() >= grace
        };
        let with = |mixture: &Mixture| mixture.scales.iter().any(|&(other, _)| other == adapter);
        if !known.mixtures.iter().filter(|(_, mixture)| with(mixture)).all(is_free) {
            return false;
        }
        known.mixtures.values_mut().filter(|mixture| with(mixture)).for_each(|mixture| mixture.sealed = true);
        true
    }

    /// Waits until a request has ended, and no longer than `longest`.
    pub fn wait_for_an_end(&self, longest: Duration) {
        let count = self.ended.count.lock().unwrap_or_else(PoisonError::into_inner);
        let before = *count;
        // A poisoned lock is of a thread that panicked with nothing half done.
        drop(self.ended.changed.wait_timeout_while(count, longest, |count| *count == before));
    }

    /// The mixture of a request that begins now, and a lease that keeps its adapters in the bank.
    pub(crate) fn enter(&self, mixture: u64) -> Result<(u64, AdapterLease), EngineError> {
        let known = self.read();
        let number = if mixture == 0 { known.plain } else { mixture };
        let users = Some(Arc::clone(&known.get(number)?.users));
        Ok((number, AdapterLease { users, ended: Arc::clone(&self.ended) }))
    }

    /// Changes the rows to those of a program with the adapters `bank`. Mixtures with other adapters are dropped.
    pub(crate) fn lay_out(&self, bank: Vec<u64>) {
        let mut known = self.write();
        known.bank = bank;
        let Known { bank, mixtures, .. } = &mut *known;
        mixtures.retain(|_, mixture| match row(bank, &mixture.scales) {
            Ok(row) => {
                mixture.row = row;
                true
            }
            Err(_) => false,
        });
    }

    fn read(&self) -> RwLockReadGuard<'_, Known> {
        self.known.read().unwrap_or_else(PoisonError::into_inner)
    }

    fn write(&self) -> RwLockWriteGuard<'_, Known> {
        self.known.write().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Mixture {
    fn new(scales: &[(u64, f32)], row: &Arc<[f32]>) -> Self {
        let (users, named) = (Arc::default(), Instant::now());
        Self { scales: scales.to_vec(), row: Arc::clone(row), users, named, sealed: false }
    }
}

impl Known {
    fn get(&self, mixture: u64) -> Result<&Mixture, EngineError> {
        let found = self.mixtures.get(&mixture).filter(|mixture| !mixture.sealed);
        found.ok_or_else(|| unknown(mixture))
    }

    fn row(&self, scales: &[(u64, f32)]) -> Result<Arc<[f32]>, EngineError> {
        row(&self.bank, scales)
    }

    /// Drops the older half of the mixtures that no request uses. A request that has entered its mixture and not started yet
    /// keeps the mixture, since it is one of the younger half unless thousands were entered meanwhile.
    fn forget_old(&mut self) {
        let plain = self.plain;
        let is_unused = |number: u64, mixture: &Mixture| {
            number != 0 && number != plain && Arc::strong_count(&mixture.users) == 1
        };
        let unused = self.mixtures.iter().filter(|&(&number, mixture)| is_unused(number, mixture));
        let mut unused: Vec<(Instant, u64)> =
            unused.map(|(&number, mixture)| (mixture.named, number)).collect();
        unused.sort_unstable();
        for (_, number) in &unused[..unused.len().div_ceil(2)] {
            self.mixtures.remove(number);
        }
    }
}

fn row(bank: &[u64], scales: &[(u64, f32)]) -> Result<Arc<[f32]>, EngineError> {
    let mut row = vec![0.0; bank.len()];
    for &(adapter, scale) in scales {
        if !scale.is_finite() {
            return Err(EngineError::Options(format!("a scale of {scale}, expected a finite number")));
        }
        let place = bank.iter().position(|&other| other == adapter);
        row[place
            .ok_or_else(|| EngineError::Options(format!("adapter {adapter:016x} is not in the bank")))?] +=
            scale;
    }
    Ok(row.into())
}

fn unknown(mixture: u64) -> EngineError {
    EngineError::Options(format!("adapter {mixture:016x} is not known"))
}
