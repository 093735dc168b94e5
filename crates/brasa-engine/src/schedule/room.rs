//! The pages that can still be allocated, as plain numbers.

/// Pages that active requests could still get if all other holders gave theirs up.
#[derive(Clone, Debug, Default)]
pub(crate) struct Room {
    /// Pages of each cache group that exist and that no active request holds.
    pub(crate) pages: Vec<usize>,
    /// Bytes of a page of each group.
    pub(crate) page_bytes: Vec<u64>,
    /// Bytes of pages that do not exist yet, of any group.
    pub(crate) growth_bytes: u64,
}

impl Room {
    /// Takes `need` pages of each group. Returns false if there is no room for all of them; the available pages are taken
    /// nevertheless.
    pub(crate) fn take(&mut self, need: &[usize]) -> bool {
        let mut bytes = 0_u64;
        for ((pages, page_bytes), need) in self.pages.iter_mut().zip(&self.page_bytes).zip(need) {
            let missing = need.saturating_sub(*pages);
            *pages -= need - missing;
            bytes = bytes.saturating_add(page_bytes.saturating_mul(missing as u64));
        }
        let enough = bytes <= self.growth_bytes;
        self.growth_bytes = self.growth_bytes.saturating_sub(bytes);
        enough
    }
}
