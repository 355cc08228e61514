//! A tree of sums over grants, sorted by their earliest instant and added one by one.
//!
//! Each node stores the sum of its leaves, and the best sum of any suffix plus the handicap of the leaf at which that
//! suffix starts. So the sum since a leaf and the worst suffix both take a walk from a leaf to the root.

/// Below every sum, and far from overflow.
const NOTHING: i128 = i128::MIN / 4;

/// Sums over leaves in a fixed order.
pub(super) struct GrantSumTree {
    leaves: usize,
    /// (sum, best suffix with its handicap). The root is at 1, the leaves start at `leaves`.
    nodes: Vec<(i128, i128)>,
}

impl GrantSumTree {
    /// A tree with room for this many leaves, all zero.
    pub(super) fn new(leaves: usize) -> GrantSumTree {
        let leaves = leaves.next_power_of_two();
        GrantSumTree { leaves, nodes: vec![(0, NOTHING); 2 * leaves] }
    }

    /// Sets a leaf.
    pub(super) fn insert(&mut self, leaf: usize, weight: i128, handicap: i128) {
        let mut node = self.leaves + leaf;
        self.nodes[node] = (weight, weight + handicap);
        while node > 1 {
            node /= 2;
            let (left, right) = (self.nodes[2 * node], self.nodes[2 * node + 1]);
            self.nodes[node] = (left.0 + right.0, right.1.max(left.1 + right.0));
        }
    }

    /// The sum of this leaf and all leaves after it.
    pub(super) fn since(&self, leaf: usize) -> i128 {
        if leaf >= self.leaves {
            return 0;
        }
        let mut node = self.leaves + leaf;
        let mut sum = self.nodes[node].0;
        while node > 1 {
            if node.is_multiple_of(2) {
                sum += self.nodes[node + 1].0;
            }
            node /= 2;
        }
        sum
    }

    /// The largest sum of a leaf and all after it, with the handicap of the first.
    pub(super) fn worst(&self) -> i128 {
        self.nodes[1].1
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn sums_and_suffixes_are_those_of_a_list() {
        let weights = [3, 1, 4, 1, 5, 9, 2];
        let handicaps = [-9, 0, -3, 7, -20, -8, 1];
        let mut sums = GrantSumTree::new(weights.len());
        let mut list = [None; 7];
        for leaf in [4, 0, 6, 2, 5, 1, 3] {
            sums.insert(leaf, weights[leaf], handicaps[leaf]);
            list[leaf] = Some((weights[leaf], handicaps[leaf]));
            let since = |leaf: usize| list[leaf..].iter().flatten().map(|(weight, _)| weight).sum::<i128>();
            assert!((0..7).all(|leaf| sums.since(leaf) == since(leaf)));
            let suffixes = (0..7).filter_map(|leaf| list[leaf].map(|(_, handicap)| since(leaf) + handicap));
            assert_eq!(Some(sums.worst()), suffixes.max());
        }
        assert_eq!(sums.since(8), 0);
    }
}
