//! The holders of the KV pages of one cache group.

use brasa_graph::step::PageId;

/// The number of holders of each page of a group, and the free pages.
#[derive(Debug, Default)]
pub(crate) struct Pages {
    holders: Vec<u32>,
    free: Vec<PageId>,
    /// Number of pages that were ever handed out or fetched ahead. They are the lowest-numbered pages.
    touched: usize,
    /// Number of pages that were handed out before their memory was fetched.
    cold: usize,
}

impl Pages {
    /// Pages that exist.
    pub(crate) fn total(&self) -> usize {
        self.holders.len()
    }

    /// Raises the number of pages to `total`; new pages are free.
    pub(crate) fn grow(&mut self, total: usize) {
        let known = self.holders.len();
        self.holders.resize(total.max(known), 0);
        // Reversed, so that low pages are handed out first and memory is touched in order.
        self.free.extend((known..total).rev().map(PageId::from_index));
    }

    /// Takes a free page, which has one holder then; `None` if there is none.
    pub(crate) fn take(&mut self) -> Option<PageId> {
        let page = self.free.pop()?;
        self.holders[page.index()] = 1;
        if page.index() >= self.touched {
            self.touched = page.index() + 1;
            self.cold += 1;
        }
        Some(page)
    }

    /// Adds a holder to `page`.
    pub(crate) fn share(&mut self, page: PageId) {
        self.holders[page.index()] += 1;
    }

    /// True if `page` has more than one holder.
    pub(crate) fn is_shared(&self, page: PageId) -> bool {
        self.holders[page.index()] > 1
    }

    /// Removes a holder from `page`; a page without holders is free.
    pub(crate) fn release(&mut self, page: PageId) {
        let holders = &mut self.holders[page.index()];
        assert!(*holders > 0, "page {} released but not held", page.index());
        *holders -= 1;
        if *holders == 0 {
            self.free.push(page);
        }
    }

    /// The lowest page that was never handed out or fetched.
    pub(crate) fn untouched(&self) -> Option<PageId> {
        (self.touched < self.total()).then(|| PageId::from_index(self.touched))
    }

    /// Records that the memory of the lowest [untouched](Self::untouched) page was fetched.
    pub(crate) fn touch(&mut self) {
        self.touched += 1;
    }

    /// Number of free pages whose memory is there.
    pub(crate) fn ready(&self) -> usize {
        self.touched - self.used()
    }

    /// Number of pages that were ever handed out before their memory was fetched. Their first write waited for the system.
    pub(crate) fn cold(&self) -> usize {
        self.cold
    }

    /// Number of pages with a holder.
    pub(crate) fn used(&self) -> usize {
        self.total() - self.free.len()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn shared_pages_are_freed_by_their_last_holder() {
        let mut pages = Pages::default();
        assert_eq!(pages.take(), None);
        pages.grow(2);
        let (a, b) = (pages.take().unwrap(), pages.take().unwrap());
        assert_eq!((a.index(), b.index()), (0, 1));
        assert_eq!(pages.take(), None);
        pages.share(a);
        pages.release(a);
        assert!(!pages.is_shared(a));
        assert_eq!(pages.take(), None);
        pages.release(a);
        assert_eq!(pages.take(), Some(a));
        assert_eq!(pages.used(), 2);
        pages.grow(4);
        assert_eq!((pages.cold(), pages.ready()), (2, 0), "a page that comes back is not a new one");
        pages.touch();
        assert_eq!((pages.ready(), pages.untouched()), (1, Some(PageId::from_index(3))));
        pages.take();
        assert_eq!((pages.cold(), pages.ready()), (2, 0), "its memory was there");
        pages.take();
        assert_eq!(pages.cold(), 3);
    }

    #[test]
    fn growing_keeps_what_is_held() {
        let mut pages = Pages::default();
        pages.grow(1);
        let a = pages.take().unwrap();
        pages.grow(3);
        assert_eq!(pages.total(), 3);
        let b = pages.take().unwrap();
        assert_ne!(a, b);
    }
}
