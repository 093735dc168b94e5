//! Pages of one cache group, with their holders counted.

use brasa_graph::GroupId;
use brasa_graph::device::KvPool;
use brasa_graph::step::PageId;

use crate::Result;

/// Pages that a pool grows by at least.
const GROWTH: usize = 4;

/// Which pages of a group are held, and by how many texts.
#[derive(Debug)]
pub(super) struct Pages {
    group: GroupId,
    holders: Vec<u32>,
    free: Vec<PageId>,
}

impl Pages {
    pub fn new(group: GroupId) -> Self {
        Self { group, holders: Vec::new(), free: Vec::new() }
    }

    /// Takes a page for one text. The pool grows if none is free.
    pub fn take(&mut self, pool: &mut dyn KvPool) -> Result<PageId> {
        if self.free.is_empty() {
            let known = self.holders.len();
            pool.reserve(self.group, known + GROWTH)?;
            self.holders.resize(known + GROWTH, 0);
            self.free.extend((known..known + GROWTH).rev().map(PageId::from_index));
        }
        let page = self.free.pop().expect("the pool has grown");
        self.holders[page.index()] = 1;
        Ok(page)
    }

    /// Adds a holder.
    pub fn share(&mut self, page: PageId) {
        self.holders[page.index()] += 1;
    }

    /// Removes a holder.
    pub fn release(&mut self, page: PageId) {
        let holders = &mut self.holders[page.index()];
        *holders -= 1;
        if *holders == 0 {
            self.free.push(page);
        }
    }

    /// True if another text holds the page too.
    pub fn is_shared(&self, page: PageId) -> bool {
        self.holders[page.index()] > 1
    }

    /// The group of the pages.
    pub fn group(&self) -> GroupId {
        self.group
    }

    /// Number of pages in use.
    pub fn held(&self) -> usize {
        self.holders.len() - self.free.len()
    }
}
