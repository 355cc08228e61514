//! Where pages come from, and where they go when their table is gone.
//!
//! Pages are cut from large pieces of memory, of which only what is used is there. Pieces are never given back to the system; pages are, when
//! their table is dropped, to whoever needs one next, in this table or another. So a process keeps what its tables took at their largest. Decided that way
//! because a page is then found with one step and without anybody counting who looks at it, and takes no more than its own four KiB.
//!
//! Refused: asking the system for huge pages. A million keys are a tenth faster in them; but the first touch of one clears two MiB, and some decision waits for it:
//! five to eight milliseconds in a virtual machine whose memory is not there yet.

use super::Page;

#[cfg(tidegate_loom)]
pub(super) use modelled::{Own, Paper};
#[cfg(not(tidegate_loom))]
pub(super) use real::{Own, Paper};

/// What a page takes, with the note of who has it.
pub(super) const PAGE_BYTES: usize = size_of::<Page>() + size_of::<Own>();

#[cfg(not(tidegate_loom))]
mod real {
    use std::sync::{Mutex, PoisonError};

    use memmap2::MmapMut;
    use zerocopy::FromBytes;

    use super::Page;

    /// A page, for those who look.
    pub(in super::super) type Paper = &'static Page;

    /// How many pages are in a piece of memory: 32 MiB.
    const PIECE: usize = 8192;

    /// The pages that nobody has.
    struct Stock {
        /// Those that somebody had.
        spare: Vec<Paper>,
        /// What is left of the last piece of memory.
        blank: &'static [Page],
    }

    static STOCK: Mutex<Stock> = Mutex::new(Stock { spare: Vec::new(), blank: &[] });

    fn with_stock<T>(what: impl FnOnce(&mut Stock) -> T) -> T {
        what(&mut STOCK.lock().unwrap_or_else(PoisonError::into_inner))
    }

    /// A page that somebody has. It goes back when they are done with it.
    #[derive(Debug)]
    pub(in super::super) struct Own(Paper);

    impl Own {
        /// An empty page.
        pub(in super::super) fn new() -> Own {
            if let Some(page) = with_stock(|stock| stock.spare.pop()) {
                page.clear();
                return Own(page);
            }
            Own(with_stock(Stock::cut))
        }

        pub(in super::super) fn paper(&self) -> Paper {
            self.0
        }
    }

    impl Drop for Own {
        fn drop(&mut self) {
            with_stock(|stock| stock.spare.push(self.0));
        }
    }

    impl Stock {
        /// The next page of the last piece of memory, or the first of another.
        fn cut(&mut self) -> Paper {
            let (page, rest) = self.blank.split_first().unwrap_or_else(|| {
                self.blank = piece().unwrap_or(&[]);
                self.blank.split_first().unwrap_or_else(|| (Box::leak(Box::new(Page::new())), &[]))
            });
            self.blank = rest;
            page
        }
    }

    /// Another piece of memory; none if the system has no such thing.
    fn piece() -> Option<&'static [Page]> {
        if cfg!(miri) {
            return None;
        }
        let piece = Box::leak(Box::new(MmapMut::map_anon(PIECE * size_of::<Page>()).ok()?));
        <[Page]>::mut_from_bytes(&mut piece[..]).ok().map(|pages| &*pages)
    }
}

/// In a model everything is made anew for every run.
#[cfg(tidegate_loom)]
mod modelled {
    use std::sync::Arc;

    use super::Page;

    pub(in super::super) type Paper = Arc<Page>;

    #[derive(Debug)]
    pub(in super::super) struct Own(Paper);

    impl Own {
        pub(in super::super) fn new() -> Own {
            Own(Arc::new(Page::new()))
        }

        pub(in super::super) fn paper(&self) -> Paper {
            Arc::clone(&self.0)
        }
    }
}

#[cfg(all(test, not(tidegate_loom)))]
mod tests {
    use super::super::super::line::Tag;
    use super::*;

    #[test]
    fn a_page_that_somebody_had_is_empty_for_the_next() {
        // Others take pages meanwhile, so the same one need not come back; but it does before long.
        let had: Vec<Own> = (0..600).map(|_| Own::new()).collect();
        for own in &had {
            for line in &own.paper().0 {
                line.place(1, Tag { low: 7, high: 7 }, 9);
                line.set_passed(true);
            }
        }
        drop(had);
        let next: Vec<Own> = (0..600).map(|_| Own::new()).collect();
        for (place, own) in next.iter().enumerate() {
            let is_blank = own.paper().0.iter().all(|line| {
                !line.is_passed()
                    && (0..3).all(|slot| line.tag(slot) == Tag::default() && is_empty(line.cell(slot)))
            });
            assert!(is_blank, "page {place}");
            assert!(next[..place].iter().all(|other| !std::ptr::eq(other.paper(), own.paper())), "twice");
        }
    }

    fn is_empty(cell: &std::sync::atomic::AtomicU64) -> bool {
        cell.load(std::sync::atomic::Ordering::Relaxed) == 0
    }
}
