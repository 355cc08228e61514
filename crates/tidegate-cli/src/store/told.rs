//! Records as they are told: the same for programs, as an object, and for people, as a line.

use serde::Serialize;
use serde_json::Value;
use tidegate::answer::Outcome;
use tidegate::catalog::RemovalMode;
use tidegate::store::memory::journal::{HeldQuestion, Holding, LeaseNote, Origin, Tag, What};
use tidegate::store::memory::restoring::{Counters, StoredLimit};
use tidegate_core::{Amount, Capacity, LeaseId, UsageRecord};
use tidegate_disk::record::{Record, Traces};
use tidegate_server::http::limit_as_json;

use super::known::Known;
use super::{digits, instant};
use crate::remote::table::harmless;

/// How many digits of a lease's id say which it is; the others are its holder's secret.
const PUBLIC_DIGITS: usize = 16;
/// How many digits of a key's fingerprint are enough for people.
const TELLING_DIGITS: usize = 8;

/// A record.
#[derive(Debug, Serialize)]
#[serde(tag = "kind", rename_all = "snake_case")]
pub(super) enum Told {
    Opened,
    Sealed,
    Stopped,
    Time,
    Counters {
        limits: u64,
        highest_fence: u64,
        leases: u64,
        deeds: u64,
    },
    Limit {
        #[serde(flatten)]
        whose: Whose,
        version: u32,
        at: String,
        fence: u64,
        from_file: bool,
        unwritten: Vec<Amount>,
        limit: Value,
        #[serde(skip)]
        items: Vec<(String, String)>,
    },
    Removed {
        #[serde(flatten)]
        whose: Whose,
        returns_until: Option<String>,
    },
    Reset {
        #[serde(flatten)]
        whose: Whose,
        at: String,
        key: Option<String>,
    },
    Row {
        #[serde(flatten)]
        whose: Whose,
        version: u32,
        key: Option<String>,
        items: Vec<ItemTold>,
    },
    Ghost {
        #[serde(flatten)]
        whose: Whose,
        version: u32,
        items: Vec<ItemTold>,
    },
    Leaf {
        #[serde(flatten)]
        whose: Whose,
        pages: usize,
    },
    Granted {
        serial: u64,
        lease: String,
        expires_at: String,
        holdings: Vec<HoldingTold>,
        fences: Vec<FenceTold>,
    },
    Renewed {
        serial: u64,
        lease: String,
        expires_at: String,
    },
    Released {
        serial: u64,
        lease: String,
    },
    Settled {
        serial: u64,
        lease: String,
        remembered_until: String,
    },
    Remembered {
        serial: u64,
        request_id: String,
        until: String,
        asks: Vec<AskTold>,
        lease: Option<String>,
    },
}

/// A limit: its id if its text was read, and which of all limits that there ever were.
#[derive(Debug, Serialize)]
pub(super) struct Whose {
    limit_id: Option<String>,
    generation: u64,
}

/// How much is used of an item.
#[derive(Debug, Serialize)]
pub(super) struct ItemTold {
    item: String,
    #[serde(flatten)]
    trace: TraceTold,
}

#[derive(Debug, Serialize)]
#[serde(untagged)]
enum TraceTold {
    Count { used: Amount, at: String },
    Arrival { full_at: String },
}

/// What a lease holds of a row.
#[derive(Debug, Serialize)]
pub(super) struct HoldingTold {
    limit_id: String,
    generation: u64,
    key: Option<String>,
    charges: Vec<ChargeTold>,
}

#[derive(Debug, Serialize)]
struct ChargeTold {
    item: String,
    cost: Amount,
}

#[derive(Debug, Serialize)]
pub(super) struct FenceTold {
    generation: u64,
    fence: u64,
}

/// What was asked with a request id.
#[derive(Debug, Serialize)]
pub(super) struct AskTold {
    limit_id: String,
    key: Option<String>,
    count: Amount,
}

impl Told {
    /// What a record says, knowing the limits that were read before.
    pub(super) fn of(record: Record<'_>, known: &Known) -> Told {
        match record {
            Record::Counters(Counters { generations, highest_fence, granted_leases, deeds }) => {
                Told::Counters { limits: generations, highest_fence, leases: granted_leases, deeds }
            }
            Record::Put { text, unwritten } => Told::put(&text, unwritten),
            Record::Remove { generation, parting, until } => Told::Removed {
                whose: Whose::of(generation, known),
                returns_until: (parting == RemovalMode::Retire).then(|| instant(until)),
            },
            Record::Reset { generation, at, key } => Told::Reset {
                whose: Whose::of(generation, known),
                at: instant(at),
                key: key.map(|(key, _)| text(key)),
            },
            Record::Row { generation, version, key, traces } => Told::Row {
                whose: Whose::of(generation, known),
                version,
                key: key.map(fingerprint),
                items: items(generation, version, traces, known),
            },
            Record::Ghost { generation, version, traces } => Told::Ghost {
                whose: Whose::of(generation, known),
                version,
                items: items(generation, version, traces, known),
            },
            Record::Leaf { generation, spread } => {
                Told::Leaf { whose: Whose::of(generation, known), pages: spread.pages }
            }
            Record::LeaseNote(deed) => Told::deed(*deed),
        }
    }

    fn put(written: &StoredLimit, unwritten: Vec<Amount>) -> Told {
        let capacity = |capacity| match capacity {
            Capacity::AtMost(limit) => limit.to_string(),
            Capacity::Unlimited => "unlimited".to_owned(),
        };
        let items = written.spec.items.iter().map(|item| (item.effective_name(), capacity(item.limit)));
        Told::Limit {
            whose: Whose { limit_id: Some(written.spec.id.clone()), generation: written.generation },
            version: written.version,
            at: instant(written.at),
            fence: written.fence,
            from_file: written.origin == Origin::Applied,
            unwritten,
            limit: serde_json::from_str(&limit_as_json(&written.spec)).unwrap_or_default(),
            items: items.collect(),
        }
    }

    fn deed(deed: LeaseNote) -> Told {
        let serial = deed.serial;
        match deed.what {
            What::Granted { id, lease, fences } => Told::Granted {
                serial,
                lease: public(id),
                expires_at: instant(lease.expires_at),
                holdings: lease.holdings.iter().map(HoldingTold::of).collect(),
                fences: fences
                    .into_iter()
                    .map(|(generation, fence)| FenceTold { generation, fence })
                    .collect(),
            },
            What::Renewed { id, expires_at } => {
                Told::Renewed { serial, lease: public(id), expires_at: instant(expires_at) }
            }
            What::Released { id } => Told::Released { serial, lease: public(id) },
            What::Settled { id, until } => {
                Told::Settled { serial, lease: public(id), remembered_until: instant(until) }
            }
            What::Remembered { id, grant } => Told::Remembered {
                serial,
                request_id: text(&id),
                until: instant(grant.until),
                asks: grant.asks.iter().map(AskTold::of).collect(),
                lease: match &grant.answer.outcome {
                    Outcome::Granted(Some(granted)) => Some(public(granted.lease)),
                    _ => None,
                },
            },
        }
    }

    /// For people, without the end of the line.
    pub(super) fn line(&self) -> String {
        match self {
            Told::Opened => "opened".to_owned(),
            Told::Sealed => "sealed: the next segment goes on".to_owned(),
            Told::Stopped => "stopped cleanly".to_owned(),
            Told::Time => "time".to_owned(),
            Told::Counters { limits, highest_fence, leases, deeds } => {
                format!(
                    "counters limits {limits} highest fence {highest_fence} leases {leases} deeds {deeds}"
                )
            }
            Told::Limit { whose, version, at, from_file, items, .. } => {
                let items: Vec<_> =
                    items.iter().map(|(name, limit)| format!("{} of {limit}", harmless(name))).collect();
                let origin = if *from_file { "from the file" } else { "over the API" };
                format!("limit {} v{version} {origin} at {at}: {}", whose.line(), items.join(", "))
            }
            Told::Removed { whose, returns_until: None } => format!("removed {}", whose.line()),
            Told::Removed { whose, returns_until: Some(until) } => {
                format!("retired {} may come back until {until}", whose.line())
            }
            Told::Reset { whose, at, key } => {
                format!("reset {}{} at {at}", whose.line(), of_key(key.as_ref()))
            }
            Told::Row { whose, version, key, items } => {
                let key = key.as_deref().map(|key| format!(" key {}…", shortened(key))).unwrap_or_default();
                format!("row {} v{version}{key} {}", whose.line(), of_items(items))
            }
            Told::Ghost { whose, version, items } => {
                format!("ghost {} v{version} every key {}", whose.line(), of_items(items))
            }
            Told::Leaf { whose, pages } => format!("leaf {} of {pages} pages", whose.line()),
            Told::Granted { lease, expires_at, holdings, .. } => {
                let holdings: Vec<_> = holdings.iter().map(HoldingTold::line).collect();
                format!("granted lease {lease} until {expires_at}: {}", holdings.join(", "))
            }
            Told::Renewed { lease, expires_at, .. } => format!("renewed lease {lease} until {expires_at}"),
            Told::Released { lease, .. } => format!("released lease {lease}"),
            Told::Settled { lease, remembered_until, .. } => {
                format!("settled lease {lease} remembered until {remembered_until}")
            }
            Told::Remembered { request_id, until, asks, lease, .. } => {
                let asks: Vec<_> = asks.iter().map(AskTold::line).collect();
                let lease = lease.as_deref().map(|lease| format!(" lease {lease}")).unwrap_or_default();
                let id = harmless(request_id);
                format!("remembered request {id} until {until}: {}{lease}", asks.join(", "))
            }
        }
    }
}

impl Whose {
    fn of(generation: u64, known: &Known) -> Whose {
        Whose { limit_id: known.id(generation), generation }
    }

    fn line(&self) -> String {
        let id = self.limit_id.as_deref().map_or_else(|| "?".to_owned(), harmless);
        format!("{id}[{}]", self.generation)
    }
}

impl HoldingTold {
    fn of(holding: &Holding) -> HoldingTold {
        let charge = |(name, charged): &(Box<str>, tidegate_core::ChargeRecord)| ChargeTold {
            item: name.to_string(),
            cost: charged.cost,
        };
        HoldingTold {
            limit_id: holding.limit_id.to_string(),
            generation: holding.generation,
            key: holding.key.as_deref().map(text),
            charges: holding.charges.iter().map(charge).collect(),
        }
    }

    fn line(&self) -> String {
        let charges: Vec<_> =
            self.charges.iter().map(|charge| format!("{} {}", harmless(&charge.item), charge.cost)).collect();
        format!(
            "{}[{}]{} {}",
            harmless(&self.limit_id),
            self.generation,
            of_key(self.key.as_ref()),
            charges.join(" ")
        )
    }
}

impl AskTold {
    fn of((limit_id, key, count): &HeldQuestion) -> AskTold {
        AskTold { limit_id: limit_id.to_string(), key: key.as_deref().map(text), count: *count }
    }

    fn line(&self) -> String {
        format!("{}{} {}", harmless(&self.limit_id), of_key(self.key.as_ref()), self.count)
    }
}

fn items(generation: u64, version: u32, traces: Traces<'_>, known: &Known) -> Vec<ItemTold> {
    let told = |(index, trace)| ItemTold {
        item: known.item(generation, version, index),
        trace: match trace {
            UsageRecord::Count { count, last_time, .. } => {
                TraceTold::Count { used: count, at: instant(last_time) }
            }
            UsageRecord::Sliding { at, count, .. } => TraceTold::Count { used: count, at: instant(at) },
            UsageRecord::Bucket { tat, .. } => TraceTold::Arrival { full_at: instant(tat) },
        },
    };
    traces.map(told).collect()
}

fn of_items(items: &[ItemTold]) -> String {
    let line = |item: &ItemTold| match &item.trace {
        TraceTold::Count { used, at } => format!("{} {used} at {at}", harmless(&item.item)),
        TraceTold::Arrival { full_at } => format!("{} full at {full_at}", harmless(&item.item)),
    };
    items.iter().map(line).collect::<Vec<_>>().join(", ")
}

fn of_key(key: Option<&String>) -> String {
    key.map(|key| format!(" key {}", harmless(key))).unwrap_or_default()
}

fn shortened(fingerprint: &str) -> &str {
    fingerprint.get(..TELLING_DIGITS).unwrap_or(fingerprint)
}

/// Of a lease's id what is no secret.
fn public(id: LeaseId) -> String {
    let mut id = id.to_string();
    id.truncate(PUBLIC_DIGITS);
    id.push('…');
    id
}

fn fingerprint(tag: Tag) -> String {
    digits(&[&tag.low.to_be_bytes()[..], &tag.high.to_be_bytes()].concat())
}

fn text(bytes: &[u8]) -> String {
    String::from_utf8_lossy(bytes).into_owned()
}
