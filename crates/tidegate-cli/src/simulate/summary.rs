//! The summary of a simulation: allowed and refused per limit, refusals per item.

use hashbrown::HashMap;
use tidegate::model::{LimitSpec, Mode, Policy};
use tidegate::reply::{OrderReply, Outcome};
use tidegate_config::text::suggestion;

use super::decision_json::number;

/// Counts per limit, in file order.
#[derive(Debug)]
pub(super) struct SimulationSummary {
    limits: Vec<LimitSummary>,
    by_id: HashMap<String, usize>,
    /// The limit that was counted last.
    latest: usize,
}

#[derive(Debug)]
struct LimitSummary {
    id: String,
    leases: bool,
    allowed: u64,
    refused: u64,
    /// For a limit in shadow mode: how often it would have refused.
    shadow_refused: Option<u64>,
    items: Vec<(String, u64)>,
}

impl SimulationSummary {
    pub(super) fn of(limits: &[LimitSpec]) -> SimulationSummary {
        let by_id = limits.iter().enumerate().map(|(index, limit)| (limit.id.clone(), index)).collect();
        SimulationSummary { limits: limits.iter().map(LimitSummary::of).collect(), by_id, latest: 0 }
    }

    /// Whether grants of a limit have leases; `None` for an unknown limit.
    pub(super) fn has_leases(&self, id: &str) -> Option<bool> {
        self.by_id.get(id).map(|&index| self.limits[index].leases)
    }

    /// Advice for an unknown limit: the known ones.
    pub(super) fn known(&self, named: &str) -> String {
        const SHOWN: usize = 8;
        let ids: Vec<_> = self.limits.iter().take(SHOWN).map(|limit| &*limit.id).collect();
        let meant = suggestion(named, self.limits.iter().map(|limit| &*limit.id));
        match self.limits.len() {
            0 => "the limits file has none".to_owned(),
            count if count > SHOWN => format!("there are {count}, such as {}{meant}", ids.join(", ")),
            _ => format!("known are {}{meant}", ids.join(", ")),
        }
    }

    /// Counts the decision of an acquire.
    pub(super) fn count(&mut self, id: &str, answer: &OrderReply) {
        // Consecutive events often have the same limit, which saves the lookup.
        if self.limits.get(self.latest).is_none_or(|tally| tally.id != id) {
            let Some(&index) = self.by_id.get(id) else { return };
            self.latest = index;
        }
        let tally = &mut self.limits[self.latest];
        match &answer.outcome {
            Outcome::Granted(_) => tally.allowed += 1,
            Outcome::Denied(denied) => {
                tally.refused += 1;
                tally.items[denied.item].1 += 1;
            }
        }
        if let Some(refused) = &mut tally.shadow_refused {
            *refused += u64::from(!answer.shadowed.is_empty());
        }
    }

    /// Appends the summary as a line of JSON.
    pub(super) fn write(&self, out: &mut Vec<u8>) {
        out.extend_from_slice(b"{\"summary\":{");
        for (index, tally) in self.limits.iter().enumerate() {
            out.extend_from_slice(if index > 0 { b",\"" } else { b"\"" });
            tally.write(out);
        }
        out.extend_from_slice(b"}}\n");
    }
}

impl LimitSummary {
    fn of(limit: &LimitSpec) -> LimitSummary {
        LimitSummary {
            id: limit.id.clone(),
            leases: limit.items.iter().any(|item| matches!(item.policy, Policy::Concurrency { .. })),
            allowed: 0,
            refused: 0,
            shadow_refused: (limit.mode == Mode::Shadow).then_some(0),
            items: limit.items.iter().map(|item| (item.effective_name(), 0)).collect(),
        }
    }

    fn write(&self, out: &mut Vec<u8>) {
        out.extend_from_slice(self.id.as_bytes());
        out.extend_from_slice(b"\":{\"allowed\":");
        number(self.allowed, out);
        out.extend_from_slice(b",\"refused\":");
        number(self.refused, out);
        if let Some(refused) = self.shadow_refused {
            out.extend_from_slice(b",\"shadow_refused\":");
            number(refused, out);
        }
        out.extend_from_slice(b",\"items\":{");
        for (index, (name, refused)) in self.items.iter().enumerate() {
            out.extend_from_slice(if index > 0 { b",\"" } else { b"\"" });
            out.extend_from_slice(name.as_bytes());
            out.extend_from_slice(b"\":");
            number(*refused, out);
        }
        out.extend_from_slice(b"}}");
    }
}
