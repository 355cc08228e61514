//! Usage of a row, as local stores report it.

use tidegate_core::{DecisionRow, LimitPhase, Policy, Timestamp};

use super::{ItemUsage, Usage};

/// Units in use of every item of a row.
pub(super) fn usage(line: &DecisionRow<'_>, now: Timestamp) -> Usage {
    // The state of a limit that has ended means nothing.
    let over = line.limit.phase(now) == LimitPhase::After;
    let mut usage = Usage { count: None, items: Vec::new() };
    let items = line.limit.items().iter().enumerate();
    for (index, item) in items.filter(|(_, item)| item.per() == line.scope.per()) {
        let current_count = line.reading(index, item, now).used;
        if *item.policy() == Policy::Total {
            usage.count = usage.count.max(Some(current_count));
        }
        usage.items.push(ItemUsage {
            item: item.name().to_owned(),
            policy: item.policy().word(),
            current_count,
            last_time: item.rule().last_time(line.row.state(item)).filter(|_| !over),
        });
    }
    usage
}
