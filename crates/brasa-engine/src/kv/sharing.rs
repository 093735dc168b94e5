//! Sharing of pages among texts that begin alike, until one of them writes.

use brasa_graph::GroupId;
use brasa_graph::step::PAGE_POSITIONS;

use super::KvStore;
use crate::sequence::{Sequence, oldest_page};
use crate::{CacheScope, EngineError};

impl KvStore {
    /// Shortens `sequence` to the beginning that it shares with `tokens`, or gives it a longer beginning from an earlier text or
    /// one of the `others`. Returns its length. A page that is shared in part is copied. Keys and values of another `scope`, and
    /// those computed while dropped text was visible, are not used.
    pub(crate) fn resume<'a>(
        &mut self,
        sequence: &mut Sequence,
        scope: CacheScope,
        tokens: &[u32],
        others: impl Iterator<Item = &'a Sequence>,
    ) -> usize {
        let kept = self.truncate(sequence, sequence.shared(scope, tokens));
        sequence.scope = scope;
        let found = self.prefixes.find(scope, tokens, &self.pool.spec().groups);
        let others = others.filter(|other| self.prefixes.keeps_any() && !other.private);
        let other = others.map(|other| (self.resumable(other, other.shared(scope, tokens)), other));
        let other = other.max_by_key(|(length, _)| *length).filter(|&(length, _)| length > found.tokens);
        if other.map_or(found.tokens, |(length, _)| length) > kept {
            self.truncate(sequence, 0);
            if let Some((length, other)) = other {
                self.share(other, length, sequence);
            } else {
                self.prefixes.share(&found, &self.pool.spec().groups, &mut self.groups, sequence);
                self.share_states(sequence, found.state.as_slice());
            }
            self.copy_end(sequence);
        }
        sequence.tokens.len()
    }

    /// Gives the empty `sequence` the first `length` tokens of `other`.
    fn share(&mut self, other: &Sequence, length: usize, sequence: &mut Sequence) {
        let tables = other.tables.iter().zip(&mut sequence.tables).zip(&mut self.groups);
        for (((table, shared), pages), group) in tables.zip(&self.pool.spec().groups) {
            let oldest = oldest_page(group, length);
            let table = table[..length.div_ceil(PAGE_POSITIONS)].iter().enumerate();
            *shared = table.map(|(place, page)| page.filter(|_| place >= oldest)).collect();
            for &page in shared.iter().flatten() {
                pages.share(page);
            }
        }
        sequence.tokens = other.tokens[..length].to_vec();
        let end = other.states.kept().iter().copied().find(|state| state.length == length);
        self.share_states(sequence, end.as_slice());
    }

    /// Copies the last page of `sequence` if it is shared and partial. If there is no page for the copy, its positions are
    /// dropped.
    fn copy_end(&mut self, sequence: &mut Sequence) {
        let whole = sequence.tokens.len() / PAGE_POSITIONS;
        if (0..self.cache_groups()).any(|group| self.own(sequence, group, whole).is_err()) {
            self.truncate(sequence, whole * PAGE_POSITIONS);
        }
    }

    /// Keeps the whole pages of `sequence` for later texts that begin alike, up to the length that it may be taken back to. If
    /// the sequence `ends` and is never written again, its last partial page is kept too.
    pub(crate) fn keep(&mut self, sequence: &mut Sequence, ends: bool) {
        if sequence.private {
            return;
        }
        let stays = sequence.may_return_to.unwrap_or(usize::MAX).min(sequence.tokens.len());
        let fresh = sequence.shifted_from.unwrap_or(stays).min(stays);
        self.prefixes.keep(sequence, fresh, ends, &mut self.groups);
        self.hand_over_states(sequence);
    }

    /// Forgets the kept prefix of `tokens`, except the beginning that other kept texts share.
    pub(crate) fn forget(&mut self, scope: CacheScope, tokens: &[u32]) {
        self.prefixes.forget(scope, tokens, &mut self.groups);
    }

    /// Makes `sequence` the only holder of the page at block table entry `entry`, by a copy if the page has other holders.
    pub(super) fn own(
        &mut self,
        sequence: &mut Sequence,
        group: usize,
        entry: usize,
    ) -> Result<(), EngineError> {
        if let Some(&Some(page)) = sequence.tables[group].get(entry)
            && self.groups[group].is_shared(page)
        {
            let own = self.take(group)?;
            let positions = sequence.tokens.len().saturating_sub(entry * PAGE_POSITIONS);
            if let Err(error) = self.pool.copy_page(GroupId(group as u32), page, own, positions) {
                self.groups[group].release(own);
                return Err(error.into());
            }
            self.groups[group].release(page);
            sequence.tables[group][entry] = Some(own);
        }
        Ok(())
    }

    /// Makes a sequence with the same content. Pages are shared until one of the two sequences writes.
    pub(crate) fn fork(&mut self, sequence: &Sequence) -> Sequence {
        for (table, pages) in sequence.tables.iter().zip(&mut self.groups) {
            for &page in table.iter().flatten() {
                pages.share(page);
            }
        }
        let mut forked = Sequence {
            id: self.new_id(),
            scope: sequence.scope,
            tokens: sequence.tokens.clone(),
            tables: sequence.tables.clone(),
            states: Box::default(),
            shifted_from: sequence.shifted_from,
            may_return_to: sequence.may_return_to,
            private: sequence.private,
        };
        self.share_states(&mut forked, sequence.states.kept());
        forked
    }
}
