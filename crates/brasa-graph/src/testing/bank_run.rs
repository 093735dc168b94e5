//! A program with a bank of adapters beside the program without a bank, for comparing their times.

use std::collections::BTreeMap;
use std::ops::ControlFlow;
use std::sync::Arc;
use std::time::Duration;

use crate::Graph;
use crate::device::{
    Backend, DeviceError, KvPool, KvPoolSpec, KvType, OpTime, Precision, Program, ProgramLimits,
};
use crate::step::{GivenValues, Outs, Step};

use super::Sequences;

/// A program, its pool and its sequences, with or without a bank.
pub struct BankRun {
    /// The program.
    pub program: Box<dyn Program>,
    /// The program's pages, of F16.
    pub pool: Box<dyn KvPool>,
    sequences: Sequences,
    /// Number of adapters of the bank; 0 for the plain model.
    pub adapters: usize,
}

/// Times of operations, each summed over all layers.
#[must_use]
pub fn times_over_layers(times: &[OpTime]) -> BTreeMap<String, Duration> {
    let mut sums: BTreeMap<String, Duration> = BTreeMap::new();
    for time in times {
        let label = time.label.chars().filter(|c| !c.is_ascii_digit()).collect();
        *sums.entry(label).or_default() += time.time;
    }
    sums
}

impl BankRun {
    /// The programs of `base` and of `adapted`, which has a bank of `adapters`, over the same weights.
    ///
    /// # Errors
    ///
    /// Errors of the device.
    pub fn pair(
        device: &dyn Backend,
        [base, adapted]: [&Arc<Graph>; 2],
        adapters: usize,
        limits: ProgramLimits,
    ) -> Result<[Self; 2], DeviceError> {
        let weights = device.upload(adapted, Precision::Fast, &mut |_| ControlFlow::Continue(()))?;
        let run = |graph: &Arc<Graph>, adapters| {
            let program = device.compile(Arc::clone(graph), Arc::clone(&weights), limits.into())?;
            let pool = device.kv_pool(KvPoolSpec::of(graph, KvType::F16))?;
            let sequences = Sequences::new(&*pool);
            Ok::<_, DeviceError>(Self { program, pool, sequences, adapters })
        };
        Ok([run(base, 0)?, run(adapted, adapters)?])
    }

    /// A step in which each sequence of `ids` continues by `tokens`, with the adapter that `chosen` names for it.
    ///
    /// # Errors
    ///
    /// Errors of [`Sequences::extend`].
    pub fn next(
        &mut self,
        ids: &[u64],
        tokens: &[u32],
        chosen: &[Option<usize>],
    ) -> Result<Step, DeviceError> {
        let mut segments = Vec::with_capacity(ids.len());
        for (id, chosen) in ids.iter().zip(chosen) {
            let mut segment = self.sequences.extend(&mut *self.pool, *id, tokens, Outs::Last)?;
            if self.adapters > 0 {
                let mut row = vec![0.0; self.adapters];
                if let Some(chosen) = chosen {
                    row[*chosen] = 1.0;
                }
                segment.given = vec![GivenValues::F32(row.repeat(tokens.len()).into())];
            }
            segments.push(segment);
        }
        Ok(Step { segments })
    }
}
