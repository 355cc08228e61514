//! What an operator looks at: how a limit is doing.

use crate::store::{ItemCount, LimitStats};

/// What happened at one limit since it was added, what it takes, and who waits for it.
///
/// Orders are counted as the store decided them, each once:
///
/// - an order over several limits counts as granted at each of them, and as refused only where the binding item is;
/// - a look (a peek) is not counted, nor is a request that is answered again by its id;
/// - who waits in line asks the store when it comes, again when it has joined the line (something may have been given back in between), and each time it is
///   called; each of these that is refused counts. Whoever is told to stand behind others has not asked;
/// - a key that there was no room for counts as refused by the item that would have counted it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct LimitOverview {
    /// Orders in which everything was granted.
    pub granted: u64,
    /// Orders that an item of this limit refused, and for longest.
    pub refused: u64,
    /// Orders that it would have refused, if it did not only watch.
    pub shadowed: u64,
    /// How many wait for it at this moment, at this limiter.
    pub waiting: usize,
    /// Rows of keys that are kept, fresh ones that were not noticed yet included; `None` where rows are kept elsewhere.
    pub rows: Option<u64>,
    /// About how many bytes the limit takes; `None` where rows are kept elsewhere.
    pub bytes: Option<usize>,
    /// The refusals by item.
    pub items: Vec<ItemCount>,
}

impl LimitOverview {
    pub(super) fn new(observed: LimitStats, waiting: usize) -> LimitOverview {
        let LimitStats { granted, refused, shadowed, items, rows, bytes } = observed;
        LimitOverview { granted, refused, shadowed, waiting, rows, bytes, items }
    }

    /// How often the item of this name refused.
    pub fn refused_by(&self, item: &str) -> u64 {
        self.items.iter().find(|count| count.item == item).map_or(0, |count| count.refused)
    }
}
