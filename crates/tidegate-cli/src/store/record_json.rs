//! Records of a store as JSON objects and as text lines.

use serde::Serialize;
use serde_json::Value;
use tidegate::catalog::RemovalMode;
use tidegate::reply::Outcome;
use tidegate::store::journal::{LeaseAction, LeaseHolding, LeaseNote, Origin, RememberedAsk, Tag};
use tidegate::store::memory::restore::{Counters, StoredLimit};
use tidegate_core::{Amount, Capacity, LeaseId, UsageRecord};
use tidegate_disk::record::{LogRecord, RowUsage};
use tidegate_server::http::limit_as_json;

use super::limit_names::LimitNames;
use super::{digits, instant};
use crate::remote::table::harmless;

/// Digits of a lease id that are shown; the rest is the holder's secret.
const PUBLIC_LEASE_DIGITS: usize = 16;
/// Digits of a key fingerprint in text.
const SHOWN_FINGERPRINT_DIGITS: usize = 8;

/// A record in JSON.
#[derive(Debug, Serialize)]
#[serde(tag = "kind", rename_all = "snake_case")]
pub(super) enum RecordJson {
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
        limit_ref: LimitRefJson,
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
        limit_ref: LimitRefJson,
        returns_until: Option<String>,
    },
    Reset {
        #[serde(flatten)]
        limit_ref: LimitRefJson,
        at: String,
        key: Option<String>,
    },
    Row {
        #[serde(flatten)]
        limit_ref: LimitRefJson,
        version: u32,
        key: Option<String>,
        items: Vec<ItemJson>,
    },
    Ghost {
        #[serde(flatten)]
        limit_ref: LimitRefJson,
        version: u32,
        items: Vec<ItemJson>,
    },
    Leaf {
        #[serde(flatten)]
        limit_ref: LimitRefJson,
        pages: usize,
    },
    Granted {
        serial: u64,
        lease: String,
        expires_at: String,
        holdings: Vec<HoldingJson>,
        fences: Vec<FenceJson>,
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
        asks: Vec<AskJson>,
        lease: Option<String>,
    },
}

/// A limit by id, if its definition was read, and by generation.
#[derive(Debug, Serialize)]
pub(super) struct LimitRefJson {
    limit_id: Option<String>,
    generation: u64,
}

/// Usage of an item.
#[derive(Debug, Serialize)]
pub(super) struct ItemJson {
    item: String,
    #[serde(flatten)]
    trace: TraceJson,
}

#[derive(Debug, Serialize)]
#[serde(untagged)]
enum TraceJson {
    Count { used: Amount, at: String },
    Arrival { full_at: String },
}

/// Units of a row that a lease holds.
#[derive(Debug, Serialize)]
pub(super) struct HoldingJson {
    limit_id: String,
    generation: u64,
    key: Option<String>,
    charges: Vec<ChargeJson>,
}

#[derive(Debug, Serialize)]
struct ChargeJson {
    item: String,
    cost: Amount,
}

#[derive(Debug, Serialize)]
pub(super) struct FenceJson {
    generation: u64,
    fence: u64,
}

/// An ask with a request id.
#[derive(Debug, Serialize)]
pub(super) struct AskJson {
    limit_id: String,
    key: Option<String>,
    count: Amount,
}

impl RecordJson {
    /// Converts a record, with the limit names read so far.
    pub(super) fn of(record: LogRecord<'_>, names: &LimitNames) -> RecordJson {
        match record {
            LogRecord::Counters(Counters { generations, highest_fence, granted_leases, deeds }) => {
                RecordJson::Counters { limits: generations, highest_fence, leases: granted_leases, deeds }
            }
            LogRecord::Put { text, unwritten } => RecordJson::put(&text, unwritten),
            LogRecord::Remove { generation, mode, until } => RecordJson::Removed {
                limit_ref: LimitRefJson::of(generation, names),
                returns_until: (mode == RemovalMode::Retire).then(|| instant(until)),
            },
            LogRecord::Reset { generation, at, key } => RecordJson::Reset {
                limit_ref: LimitRefJson::of(generation, names),
                at: instant(at),
                key: key.map(|(key, _)| text(key)),
            },
            LogRecord::Row { generation, version, key, usage } => RecordJson::Row {
                limit_ref: LimitRefJson::of(generation, names),
                version,
                key: key.map(fingerprint),
                items: items(generation, version, usage, names),
            },
            LogRecord::AssumedUsage { generation, version, usage } => RecordJson::Ghost {
                limit_ref: LimitRefJson::of(generation, names),
                version,
                items: items(generation, version, usage, names),
            },
            LogRecord::Leaf { generation, spread } => {
                RecordJson::Leaf { limit_ref: LimitRefJson::of(generation, names), pages: spread.pages }
            }
            LogRecord::LeaseNote(deed) => RecordJson::deed(*deed),
        }
    }

    fn put(written: &StoredLimit, unwritten: Vec<Amount>) -> RecordJson {
        let capacity = |capacity| match capacity {
            Capacity::AtMost(limit) => limit.to_string(),
            Capacity::Unlimited => "unlimited".to_owned(),
        };
        let items = written.spec.items.iter().map(|item| (item.effective_name(), capacity(item.limit)));
        RecordJson::Limit {
            limit_ref: LimitRefJson {
                limit_id: Some(written.spec.id.clone()),
                generation: written.generation,
            },
            version: written.version,
            at: instant(written.at),
            fence: written.fence,
            from_file: written.origin == Origin::Applied,
            unwritten,
            limit: serde_json::from_str(&limit_as_json(&written.spec)).unwrap_or_default(),
            items: items.collect(),
        }
    }

    fn deed(deed: LeaseNote) -> RecordJson {
        let serial = deed.serial;
        match deed.what {
            LeaseAction::Granted { id, lease, fences } => RecordJson::Granted {
                serial,
                lease: public_lease_id(id),
                expires_at: instant(lease.expires_at),
                holdings: lease.holdings.iter().map(HoldingJson::of).collect(),
                fences: fences
                    .into_iter()
                    .map(|(generation, fence)| FenceJson { generation, fence })
                    .collect(),
            },
            LeaseAction::Renewed { id, expires_at } => {
                RecordJson::Renewed { serial, lease: public_lease_id(id), expires_at: instant(expires_at) }
            }
            LeaseAction::Released { id } => RecordJson::Released { serial, lease: public_lease_id(id) },
            LeaseAction::Settled { id, until } => {
                RecordJson::Settled { serial, lease: public_lease_id(id), remembered_until: instant(until) }
            }
            LeaseAction::Remembered { id, grant } => RecordJson::Remembered {
                serial,
                request_id: text(&id),
                until: instant(grant.until),
                asks: grant.asks.iter().map(AskJson::of).collect(),
                lease: match &grant.answer.outcome {
                    Outcome::Granted(Some(granted)) => Some(public_lease_id(granted.lease)),
                    _ => None,
                },
            },
        }
    }

    /// The record as a text line.
    pub(super) fn line(&self) -> String {
        match self {
            RecordJson::Opened => "opened".to_owned(),
            RecordJson::Sealed => "sealed: the next segment goes on".to_owned(),
            RecordJson::Stopped => "stopped cleanly".to_owned(),
            RecordJson::Time => "time".to_owned(),
            RecordJson::Counters { limits, highest_fence, leases, deeds } => {
                format!(
                    "counters limits {limits} highest fence {highest_fence} leases {leases} deeds {deeds}"
                )
            }
            RecordJson::Limit { limit_ref, version, at, from_file, items, .. } => {
                let items: Vec<_> =
                    items.iter().map(|(name, limit)| format!("{} of {limit}", harmless(name))).collect();
                let origin = if *from_file { "from the file" } else { "over the API" };
                format!("limit {} v{version} {origin} at {at}: {}", limit_ref.line(), items.join(", "))
            }
            RecordJson::Removed { limit_ref, returns_until: None } => format!("removed {}", limit_ref.line()),
            RecordJson::Removed { limit_ref, returns_until: Some(until) } => {
                format!("retired {} may come back until {until}", limit_ref.line())
            }
            RecordJson::Reset { limit_ref, at, key } => {
                format!("reset {}{} at {at}", limit_ref.line(), of_key(key.as_ref()))
            }
            RecordJson::Row { limit_ref, version, key, items } => {
                let key = key.as_deref().map(|key| format!(" key {}…", shortened(key))).unwrap_or_default();
                format!("row {} v{version}{key} {}", limit_ref.line(), of_items(items))
            }
            RecordJson::Ghost { limit_ref, version, items } => {
                format!("ghost {} v{version} every key {}", limit_ref.line(), of_items(items))
            }
            RecordJson::Leaf { limit_ref, pages } => format!("leaf {} of {pages} pages", limit_ref.line()),
            RecordJson::Granted { lease, expires_at, holdings, .. } => {
                let holdings: Vec<_> = holdings.iter().map(HoldingJson::line).collect();
                format!("granted lease {lease} until {expires_at}: {}", holdings.join(", "))
            }
            RecordJson::Renewed { lease, expires_at, .. } => {
                format!("renewed lease {lease} until {expires_at}")
            }
            RecordJson::Released { lease, .. } => format!("released lease {lease}"),
            RecordJson::Settled { lease, remembered_until, .. } => {
                format!("settled lease {lease} remembered until {remembered_until}")
            }
            RecordJson::Remembered { request_id, until, asks, lease, .. } => {
                let asks: Vec<_> = asks.iter().map(AskJson::line).collect();
                let lease = lease.as_deref().map(|lease| format!(" lease {lease}")).unwrap_or_default();
                let id = harmless(request_id);
                format!("remembered request {id} until {until}: {}{lease}", asks.join(", "))
            }
        }
    }
}

impl LimitRefJson {
    fn of(generation: u64, names: &LimitNames) -> LimitRefJson {
        LimitRefJson { limit_id: names.id(generation), generation }
    }

    fn line(&self) -> String {
        let id = self.limit_id.as_deref().map_or_else(|| "?".to_owned(), harmless);
        format!("{id}[{}]", self.generation)
    }
}

impl HoldingJson {
    fn of(holding: &LeaseHolding) -> HoldingJson {
        let charge = |(name, charged): &(Box<str>, tidegate_core::ChargeRecord)| ChargeJson {
            item: name.to_string(),
            cost: charged.cost,
        };
        HoldingJson {
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

impl AskJson {
    fn of((limit_id, key, count): &RememberedAsk) -> AskJson {
        AskJson { limit_id: limit_id.to_string(), key: key.as_deref().map(text), count: *count }
    }

    fn line(&self) -> String {
        format!("{}{} {}", harmless(&self.limit_id), of_key(self.key.as_ref()), self.count)
    }
}

fn items(generation: u64, version: u32, traces: RowUsage<'_>, names: &LimitNames) -> Vec<ItemJson> {
    let json = |(index, trace)| ItemJson {
        item: names.item(generation, version, index),
        trace: match trace {
            UsageRecord::Count { count, last_time, .. } => {
                TraceJson::Count { used: count, at: instant(last_time) }
            }
            UsageRecord::Sliding { at, count, .. } => TraceJson::Count { used: count, at: instant(at) },
            UsageRecord::Bucket { tat, .. } => TraceJson::Arrival { full_at: instant(tat) },
        },
    };
    traces.map(json).collect()
}

fn of_items(items: &[ItemJson]) -> String {
    let line = |item: &ItemJson| match &item.trace {
        TraceJson::Count { used, at } => format!("{} {used} at {at}", harmless(&item.item)),
        TraceJson::Arrival { full_at } => format!("{} full at {full_at}", harmless(&item.item)),
    };
    items.iter().map(line).collect::<Vec<_>>().join(", ")
}

fn of_key(key: Option<&String>) -> String {
    key.map(|key| format!(" key {}", harmless(key))).unwrap_or_default()
}

fn shortened(fingerprint: &str) -> &str {
    fingerprint.get(..SHOWN_FINGERPRINT_DIGITS).unwrap_or(fingerprint)
}

/// The public part of a lease id.
fn public_lease_id(id: LeaseId) -> String {
    let mut id = id.to_string();
    id.truncate(PUBLIC_LEASE_DIGITS);
    id.push('…');
    id
}

fn fingerprint(tag: Tag) -> String {
    digits(&[&tag.low.to_be_bytes()[..], &tag.high.to_be_bytes()].concat())
}

fn text(bytes: &[u8]) -> String {
    String::from_utf8_lossy(bytes).into_owned()
}
