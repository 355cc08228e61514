//! Orders over several rows: all of them are charged, or none.

use std::sync::Arc;

use tidegate_core::{Decision, Intent, ItemSpec, Policy};

use super::super::line::PAYLOAD;
use super::super::quick::{self, Plea, Quick};
use super::super::sync::Ordering;
use super::super::sync::modelled::beside;
use super::super::tenant::Tenant;
use super::{START, brief, explore, limit_of, tenant};

fn used(tenant: &Tenant) -> u64 {
    let brief = brief(tenant);
    let cell = tenant.all.cell.load(Ordering::Relaxed);
    brief.first.reading(cell & PAYLOAD, brief.ends, START).used
}

fn order(first: &Tenant, second: &Tenant) -> u64 {
    let pleas = [first, second].map(|tenant| Plea { tenant, key: None, tag: None, count: 1 });
    match quick::decide(&pleas, Intent::Acquire, START, &mut None) {
        Quick::Decided(Decision::Granted, _) => 1,
        _ => 0,
    }
}

/// Two orders over the same two rows, written in opposite order: nobody waits for ever, and both rows count the same.
#[test]
fn a_set_is_charged_whole() {
    let [few, many] = [1, 2].map(|limit| limit_of(ItemSpec::of(Policy::Total, limit)));
    explore(2, move || {
        // Side by side, so that their addresses are in the same order every time.
        let both = Arc::new([tenant(&few), tenant(&many)]);
        let shared = Arc::clone(&both);
        let other = beside(move || order(&shared[1], &shared[0]));
        let granted = order(&both[0], &both[1]) + other.join().expect("it ends");
        assert!(granted <= 1);
        assert_eq!((used(&both[0]), used(&both[1])), (granted, granted));
    });
}
