//! HTTP requests by route and status.

use std::sync::atomic::{AtomicU64, Ordering};

use crate::http::RouteName;

macro_rules! statuses {
    ($($status:literal)+) => {
        /// The statuses with their own counter, and the label of all others.
        const WORDS: &[&str] = &[$(stringify!($status)),+, "other"];

        /// The index of a status in the list.
        const fn index_of(status: u16) -> usize {
            let mut index = 0;
            $(
                if status == $status {
                    return index;
                }
                index += 1;
            )+
            index
        }
    };
}

statuses! {
    200 201 204 304
    400 401 403 404 405 406 408 409 410 411 412 413 414 415 417 422 429 431
    500 501 503 505
}

const STATUSES: usize = WORDS.len();
const ROUTES: usize = RouteName::ALL.len();

/// Counters by route and status.
#[derive(Debug)]
pub(super) struct StatusCounts {
    counts: [[AtomicU64; STATUSES]; ROUTES],
}

impl Default for StatusCounts {
    fn default() -> StatusCounts {
        StatusCounts { counts: std::array::from_fn(|_| std::array::from_fn(|_| AtomicU64::new(0))) }
    }
}

impl StatusCounts {
    /// Counts one request.
    #[inline]
    pub(super) fn count(&self, route: RouteName, status: u16) {
        self.counts[route as usize][index_of(status)].fetch_add(1, Ordering::Relaxed);
    }

    /// The nonzero sums of all blocks: route, status, count.
    pub(super) fn sum<'a>(
        blocks: impl Iterator<Item = &'a StatusCounts> + Clone,
    ) -> impl Iterator<Item = (RouteName, &'static str, u64)> {
        RouteName::ALL.iter().enumerate().flat_map(move |(route, name)| {
            let blocks = blocks.clone();
            WORDS.iter().enumerate().filter_map(move |(status, word)| {
                let each = blocks.clone().map(|block| block.counts[route][status].load(Ordering::Relaxed));
                let count: u64 = each.sum();
                (count > 0).then_some((*name, *word, count))
            })
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_status_has_the_index_of_its_label() {
        for (index, word) in WORDS.iter().enumerate() {
            let status = word.parse().unwrap_or(418);
            assert_eq!(index_of(status), index, "{word}");
        }
    }

    #[test]
    fn counts_of_blocks_are_summed_by_route_and_status() {
        for (index, name) in RouteName::ALL.iter().enumerate() {
            assert_eq!(*name as usize, index, "{name:?}");
        }
        let (one, other) = (StatusCounts::default(), StatusCounts::default());
        one.count(RouteName::Acquire, 200);
        other.count(RouteName::Acquire, 200);
        other.count(RouteName::Gate, 429);
        other.count(RouteName::Unknown, 999);
        let sum: Vec<_> = StatusCounts::sum([&one, &other].into_iter()).collect();
        assert_eq!(
            sum,
            [(RouteName::Acquire, "200", 2), (RouteName::Gate, "429", 1), (RouteName::Unknown, "other", 1)]
        );
    }
}
