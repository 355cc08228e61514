//! A limit that makes sense: checked as a whole, compiled for a store's tick, one version of a lineage.
//!
//! Limits are data; what is counted lives in rows elsewhere. An edit is a new [`Limit`] made by
//! [`Limit::succeed`], and items keep their identity by name. Rows are carried from one version to the next by
//! [`crate::Row::adopt`].

use std::fmt;
use std::time::Duration;

use hashbrown::{HashMap, HashSet};

use crate::amount::{Amount, Capacity, MAX_LIMIT};
use crate::calendar::Calendar;
use crate::law::{Concurrency, FixedWindow, Law, Rule, SlidingWindow, TokenBucket};
use crate::spec::{Charge, ItemSpec, LimitSpec, Mode, OnOutage, Per, Policy, Precision, SpecError};
use crate::time::{LAST_SECOND, MAX_SPAN, Span, Tick, Timestamp};

/// The longest limit id.
pub const MAX_LIMIT_ID_BYTES: usize = 256;
/// The longest key.
pub const MAX_KEY_BYTES: usize = 1024;
/// The longest item name.
pub const MAX_ITEM_NAME_BYTES: usize = 256;
/// The most items one limit may have.
pub const MAX_ITEMS: usize = 256;
/// The largest exact sliding window; larger ones are `bucketed`.
pub const MAX_EXACT_SLIDING: Amount = 1_000_000;
/// A bucket may lose this part of its rate to rounding, not more: one in a thousand.
pub const RATE_LOSS_DENOMINATOR: u128 = 1000;

/// A limit: what is limited, when, and for whom it is different.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Limit {
    spec: LimitSpec,
    tick: Tick,
    version: u32,
    items: Vec<Item>,
    needs_key: bool,
    starts_at: Option<Timestamp>,
    ends_at: Option<Timestamp>,
    overrides: HashMap<Box<[u8]>, Vec<Override>>,
}

/// One thing that is limited: a rule, and how asks are charged to it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Item {
    name: Box<str>,
    policy: Policy,
    per: Per,
    charge: Charge,
    rule: Rule,
    place: usize,
    law_version: u32,
}

/// What an item has from the versions of its limit before this one.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct ItemLineage {
    /// The first version in which it had the law it has.
    pub law_version: u32,
    /// The step of a bucket: one that is paused drains as it did before.
    pub step: Option<Span>,
}

/// A different rule for one item of one key.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Override {
    item: usize,
    rule: Rule,
    until: Option<Timestamp>,
}

/// Where `now` lies in a limit's life.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum LimitPhase {
    /// It begins later, at this instant.
    Before(Timestamp),
    /// It is in force.
    Open,
    /// It is over, and its state with it.
    After,
}

impl Limit {
    /// The first version of a limit, or everything that is wrong with it.
    pub fn new(spec: LimitSpec, tick: Tick) -> Result<Limit, Vec<SpecError>> {
        Limit::compile(spec, tick, None)
    }

    /// A version of a limit that was written down, with what its items have from the versions before it ([`Item::descent`]).
    pub fn restore(
        spec: LimitSpec,
        tick: Tick,
        version: u32,
        descent: &[ItemLineage],
    ) -> Result<Limit, Vec<SpecError>> {
        let mut limit = Limit::new(spec.clone(), tick)?;
        for (item, descent) in limit.items.iter_mut().zip(descent) {
            if let (Law::TokenBucket(law), Some(step)) = (&mut item.rule.law, descent.step) {
                *law = TokenBucket::every(step);
            }
        }
        // Paused exceptions go on at the pace of their item, so the limit is made once more from these items.
        let mut limit = Limit::compile(spec, tick, Some(&limit))?;
        limit.version = version;
        for (item, descent) in limit.items.iter_mut().zip(descent) {
            item.law_version = descent.law_version;
        }
        Ok(limit)
    }

    /// The next version of this limit, or everything that is wrong with it.
    pub fn next_version(&self, spec: LimitSpec) -> Result<Limit, Vec<SpecError>> {
        Limit::compile(spec, self.tick, Some(self))
    }

    fn compile(spec: LimitSpec, tick: Tick, former: Option<&Limit>) -> Result<Limit, Vec<SpecError>> {
        let mut flaws = header_errors(&spec);
        for (index, item) in spec.items.iter().enumerate() {
            flaws.extend(
                item_errors(item, tick).into_iter().map(|flaw| flaw.inside(&format!("items[{index}]"))),
            );
        }
        flaws.extend(name_errors(&spec.items));
        flaws.extend(override_errors(&spec, tick));
        flaws.extend(former.map(|former| edit_errors(former, &spec)).unwrap_or_default());
        if !flaws.is_empty() {
            return Err(flaws);
        }

        let version = former.map_or(1, |former| former.version + 1);
        let mut places = [0, 0];
        let mut items = Vec::with_capacity(spec.items.len());
        for written in &spec.items {
            let name = written.effective_name().into_boxed_str();
            let predecessor = former.and_then(|former| former.item_named(&name)).map(|(_, item)| item);
            let rule = compile_rule(&spec, written, written.limit, tick, predecessor.map(|item| &item.rule));
            let place = &mut places[written.per as usize];
            items.push(Item {
                policy: written.policy,
                per: written.per,
                charge: written.charge.unwrap_or_else(|| default_charge(&written.policy)),
                law_version: predecessor
                    .filter(|item| item.rule.law == rule.law)
                    .map_or(version, |item| item.law_version),
                rule,
                place: std::mem::replace(place, *place + 1),
                name,
            });
        }

        let mut overrides: HashMap<Box<[u8]>, Vec<Override>> = HashMap::new();
        for written in &spec.overrides {
            let (index, item) = items
                .iter()
                .enumerate()
                .find(|(_, item)| *item.name == *written.item)
                .expect("checked above: the override names an item");
            let rule = compile_rule(&spec, &spec.items[index], written.limit, tick, Some(&item.rule));
            let until = written.until.and_then(|until| tick.instant(until));
            overrides.entry(written.key.clone().into()).or_default().push(Override {
                item: index,
                rule,
                until,
            });
        }

        let starts_at = spec.starts_at.and_then(|at| tick.instant_rounded_up(at));
        let ends_at = spec.ends_at.and_then(|at| tick.instant(at));
        let needs_key = items.iter().any(|item| item.per == Per::Key);
        Ok(Limit { spec, tick, version, items, needs_key, starts_at, ends_at, overrides })
    }

    /// The limit's name.
    pub fn id(&self) -> &str {
        &self.spec.id
    }

    /// The limit as it was written.
    pub fn spec(&self) -> &LimitSpec {
        &self.spec
    }

    /// The tick it is compiled for.
    pub fn tick(&self) -> Tick {
        self.tick
    }

    /// Which version of its lineage this is, from 1.
    pub fn version(&self) -> u32 {
        self.version
    }

    /// The items in the order they were written.
    pub fn items(&self) -> &[Item] {
        &self.items
    }

    /// The item of this name and its index.
    pub fn item_named(&self, name: &str) -> Option<(usize, &Item)> {
        self.items.iter().enumerate().find(|(_, item)| *item.name == *name)
    }

    /// Whether any item counts each key alone, so that asks must name one.
    pub fn needs_key(&self) -> bool {
        self.needs_key
    }

    /// Whether nothing is granted while nobody can say what was used.
    pub fn refuses_in_outage(&self) -> bool {
        self.spec.mode == Mode::Enforce && self.spec.on_outage == OnOutage::Deny
    }

    /// Whether refusals are real.
    pub fn mode(&self) -> Mode {
        self.spec.mode
    }

    /// What is different for this key.
    pub fn overrides(&self, key: &[u8]) -> &[Override] {
        // Hashing the key is not free and most limits have no exceptions.
        if self.overrides.is_empty() { &[] } else { self.overrides.get(key).map_or(&[], Vec::as_slice) }
    }

    /// Whether the limit neither starts nor ends.
    pub fn is_always_open(&self) -> bool {
        self.starts_at.is_none() && self.ends_at.is_none()
    }

    /// Where `now` lies in the limit's life.
    pub fn phase(&self, now: Timestamp) -> LimitPhase {
        match (self.starts_at, self.ends_at) {
            (_, Some(end)) if end <= now => LimitPhase::After,
            (Some(start), _) if now < start => LimitPhase::Before(start),
            _ => LimitPhase::Open,
        }
    }

    /// When the limit begins, if it did not always.
    pub fn starts_at(&self) -> Option<Timestamp> {
        self.starts_at
    }

    /// When the limit is over, if it ever is.
    pub fn ends_at(&self) -> Option<Timestamp> {
        self.ends_at
    }
}

impl Item {
    /// The item's identity.
    pub fn name(&self) -> &str {
        &self.name
    }

    /// The policy as written.
    pub fn policy(&self) -> &Policy {
        &self.policy
    }

    /// Whose spending is counted together.
    pub fn per(&self) -> Per {
        self.per
    }

    /// What an ask costs.
    pub fn charge(&self) -> Charge {
        self.charge
    }

    /// The arithmetic.
    pub fn rule(&self) -> &Rule {
        &self.rule
    }

    /// Which state of its row belongs to it: its index among the items of the same `per`.
    pub fn state_index(&self) -> usize {
        self.place
    }

    /// The version in which its law last changed. Receipts from before cannot be refunded.
    pub fn law_version(&self) -> u32 {
        self.law_version
    }

    /// What it has from the versions before.
    pub fn lineage(&self) -> ItemLineage {
        let step = if let Law::TokenBucket(law) = &self.rule.law { Some(law.step()) } else { None };
        ItemLineage { law_version: self.law_version, step }
    }
}

impl Override {
    /// The index of the item it is for.
    pub fn item(&self) -> usize {
        self.item
    }

    /// What applies instead.
    pub fn rule(&self) -> &Rule {
        &self.rule
    }

    /// The instant from which it no longer does.
    pub fn until(&self) -> Option<Timestamp> {
        self.until
    }

    /// Whether it applies at `now`.
    pub fn is_active(&self, now: Timestamp) -> bool {
        self.until.is_none_or(|until| now < until)
    }
}

impl SpecError {
    fn inside(self, outer: &str) -> SpecError {
        SpecError { field: format!("{outer}.{}", self.field), ..self }
    }
}

const fn default_charge(policy: &Policy) -> Charge {
    match policy {
        Policy::Concurrency { .. } => Charge::Ask,
        _ => Charge::Count,
    }
}

// Compiling: from what people say to what the laws count. Everything here has been checked.

/// The rule of an item with this limit, which is its own or an override's. `standing` is the rule that it
/// replaces: a bucket that pauses goes on draining at the rate it had.
fn compile_rule(
    spec: &LimitSpec,
    item: &ItemSpec,
    limit: Capacity,
    tick: Tick,
    standing: Option<&Rule>,
) -> Rule {
    let law = match item.policy {
        Policy::Total => Law::LifetimeTotal,
        Policy::Calendar(unit) => {
            let calendar = Calendar::new(unit, spec.time_zone.clone(), spec.week_start, tick);
            Law::FixedWindow(FixedWindow::Calendar(calendar))
        }
        Policy::Interval { window } => Law::FixedWindow(FixedWindow::FirstHit { window: tick.span(window) }),
        Policy::Sliding { window, precision } => {
            let window = tick.span(window);
            Law::SlidingWindow(match (precision, limit) {
                (Precision::Exact, Capacity::AtMost(_)) => SlidingWindow::exact(window),
                _ => SlidingWindow::bucketed(window),
            })
        }
        Policy::Bucket { window, .. } => {
            let window = tick.span(window);
            Law::TokenBucket(match (limit, standing.map(|rule| &rule.law)) {
                (Capacity::Unlimited, _) => TokenBucket::every(Span::ZERO),
                (Capacity::AtMost(0), Some(Law::TokenBucket(law))) if law.step() > Span::ZERO => *law,
                (Capacity::AtMost(limit), _) => TokenBucket::every(step(window, limit)),
            })
        }
        Policy::Concurrency { ttl } => Law::Concurrency(Concurrency { ttl: tick.span(ttl) }),
    };
    Rule { capacity: capacity(item, limit), law }
}

/// What may be in use at once: the limit itself, or for a bucket its burst. An override scales the burst with
/// the limit.
fn capacity(item: &ItemSpec, limit: Capacity) -> Capacity {
    match (item.policy, item.limit, limit) {
        (Policy::Bucket { burst: Some(burst), .. }, written, Capacity::AtMost(limit)) if limit > 0 => {
            let burst = match written {
                Capacity::AtMost(own) if own > 0 && own != limit => {
                    let scaled = u128::from(burst) * u128::from(limit) / u128::from(own);
                    Amount::try_from(scaled).unwrap_or(MAX_LIMIT).clamp(1, MAX_LIMIT)
                }
                _ => burst,
            };
            Capacity::AtMost(burst)
        }
        _ => limit,
    }
}

/// The ticks between two units of a bucket, rounded up: never faster than written.
fn step(window: Span, limit: Amount) -> Span {
    Span::from_ticks(window.ticks().div_ceil(limit.max(1)).max(1))
}

// Checking: everything that cannot be meant, with what would be right.

fn header_errors(spec: &LimitSpec) -> Vec<SpecError> {
    let mut flaws = Vec::new();
    let id = &spec.id;
    let id_allowed = |b: u8| b.is_ascii_alphanumeric() || b"._:/-".contains(&b);
    if id.is_empty() || id.len() > MAX_LIMIT_ID_BYTES || !id.bytes().all(id_allowed) {
        flaws.push(SpecError::new(
            "id",
            format!("must be 1 to {MAX_LIMIT_ID_BYTES} characters of A-Z a-z 0-9 . _ : / -"),
        ));
    }
    for (field, at) in [("starts_at", spec.starts_at), ("ends_at", spec.ends_at)] {
        if at.is_some_and(|at| at.as_secs() > LAST_SECOND) {
            flaws.push(SpecError::new(field, "must be before the year 2262"));
        }
    }
    if let (Some(start), Some(end)) = (spec.starts_at, spec.ends_at)
        && end <= start
    {
        flaws.push(SpecError::new("ends_at", "must be after starts_at"));
    }
    if spec.max_keys == Some(0) {
        flaws.push(SpecError::new("max_keys", "must be at least 1; leave it out for the store's own bound"));
    }
    if spec.items.is_empty() {
        flaws.push(SpecError::new("items", "must have at least one item"));
    }
    if spec.items.len() > MAX_ITEMS {
        flaws.push(SpecError::new("items", format!("must have at most {MAX_ITEMS} items")));
    }
    flaws
}

/// What is wrong with an item by itself; fields are relative to it.
pub fn item_errors(item: &ItemSpec, tick: Tick) -> Vec<SpecError> {
    let mut flaws = Vec::new();
    if let Some(name) = &item.name {
        let allowed = |b: u8| b.is_ascii_alphanumeric() || b"._:/-".contains(&b);
        if name.is_empty() || name.len() > MAX_ITEM_NAME_BYTES || !name.bytes().all(allowed) {
            let message = format!("must be 1 to {MAX_ITEM_NAME_BYTES} characters of A-Z a-z 0-9 . _ : / -");
            flaws.push(SpecError::new("name", message));
        }
    }
    flaws.extend(item.policy.window().and_then(|window| span_error("window", window)));
    if let Policy::Concurrency { ttl } = item.policy {
        flaws.extend(span_error("ttl", ttl));
    }
    if let Policy::Bucket { burst: Some(0), .. } = item.policy {
        flaws.push(SpecError::new("burst", "must be at least 1; to refuse everything write limit: 0"));
    }
    if let Policy::Bucket { burst: Some(burst), .. } = item.policy
        && burst > MAX_LIMIT
    {
        flaws.push(SpecError::new("burst", format!("must be at most {MAX_LIMIT}")));
    }
    if flaws.is_empty() {
        flaws.extend(limit_error(item, item.limit, tick).map(|message| SpecError::new("limit", message)));
    }
    flaws
}

fn span_error(field: &str, span: Duration) -> Option<SpecError> {
    let whole_ms = span.subsec_nanos().is_multiple_of(1_000_000);
    if span.is_zero() || span > MAX_SPAN || !whole_ms {
        return Some(SpecError::new(field, "must be from 1ms to 36525d (a century), in whole milliseconds"));
    }
    None
}

/// What is wrong with giving an item this limit, its own or an override's.
fn limit_error(item: &ItemSpec, limit: Capacity, tick: Tick) -> Option<String> {
    let Capacity::AtMost(limit) = limit else { return None };
    if limit > MAX_LIMIT {
        return Some(format!("must be at most {MAX_LIMIT}"));
    }
    match item.policy {
        Policy::Sliding { precision: Precision::Exact, .. } if limit > MAX_EXACT_SLIDING => Some(format!(
            "an exact sliding window holds at most {MAX_EXACT_SLIDING}; write precision: bucketed for more \
             (it never exceeds the limit, and remembers in {} steps)",
            crate::law::sliding_window::SUB_WINDOWS
        )),
        Policy::Bucket { window, .. } if limit > 0 => bucket_error(item, window, limit, tick),
        _ => None,
    }
}

/// A bucket counts whole ticks between units: it must not lose too much of its rate to that, and its burst must
/// come back within a century.
fn bucket_error(item: &ItemSpec, window: Duration, limit: Amount, tick: Tick) -> Option<String> {
    let span = tick.span(window);
    let step = step(span, limit);
    let real = u128::from(step.ticks()) * u128::from(limit);
    let lost = real - u128::from(span.ticks());
    if lost * RATE_LOSS_DENOMINATOR > u128::from(span.ticks()) {
        let nearest = |step: u64| span.ticks().div_ceil(step.max(1));
        let advice = match step.ticks() {
            0 | 1 => format!("at most {} per window", span.ticks()),
            ticks => format!("{} or {}", nearest(ticks), nearest(ticks - 1)),
        };
        return Some(format!(
            "this rate needs a unit every {}.{:02} ticks of the clock, and rounding that up would lose more than \
             0.1 % of it; the nearest limits that fit this window are {advice}",
            span.ticks() / limit,
            u128::from(span.ticks() % limit) * 100 / u128::from(limit),
        ));
    }
    let Capacity::AtMost(burst) = capacity(item, Capacity::AtMost(limit)) else { return None };
    let refill = u128::from(step.ticks()) * u128::from(burst);
    (refill > u128::from(tick.span(MAX_SPAN).ticks()))
        .then(|| "a burst this large would take more than a century to come back at this rate".to_owned())
}

fn name_errors(items: &[ItemSpec]) -> Vec<SpecError> {
    let mut first_of: HashMap<String, usize> = HashMap::new();
    let mut flaws = Vec::new();
    for (index, item) in items.iter().enumerate() {
        let name = item.effective_name();
        if let Some(first) = first_of.get(&name) {
            let message = format!("'{name}' is already the name of items[{first}]; give one of them a name:");
            flaws.push(SpecError::new(format!("items[{index}].name"), message));
        } else {
            first_of.insert(name, index);
        }
    }
    flaws
}

fn override_errors(spec: &LimitSpec, tick: Tick) -> Vec<SpecError> {
    let mut flaws = Vec::new();
    let item_of: HashMap<String, &ItemSpec> =
        spec.items.iter().rev().map(|item| (item.effective_name(), item)).collect();
    let mut seen: HashSet<(&[u8], &str)> = HashSet::with_capacity(spec.overrides.len());
    for (index, written) in spec.overrides.iter().enumerate() {
        let mut flaw = |field: &str, message: String| {
            flaws.push(SpecError::new(format!("overrides[{index}].{field}"), message));
        };
        if written.key.len() > MAX_KEY_BYTES {
            flaw("key", format!("must be at most {MAX_KEY_BYTES} bytes"));
        }
        if written.until.is_some_and(|until| until.as_secs() > LAST_SECOND) {
            flaw("until", "must be before the year 2262".to_owned());
        }
        if !seen.insert((&written.key, &written.item)) {
            flaw("item", format!("this key already has an override for '{}'", written.item));
        }
        match item_of.get(&written.item) {
            Some(item) if item.per == Per::Key => {
                if let Some(message) = limit_error(item, written.limit, tick) {
                    flaw("limit", message);
                }
            }
            Some(_) => flaw(
                "item",
                format!("'{}' counts all keys together; only per: key items can differ", written.item),
            ),
            None => flaw("item", format!("no item is named '{}'; {}", written.item, names(&spec.items))),
        }
    }
    flaws
}

fn names(items: &[ItemSpec]) -> String {
    let mut keyed: Vec<_> =
        items.iter().filter(|item| item.per == Per::Key).map(ItemSpec::effective_name).collect();
    keyed.dedup();
    if keyed.is_empty() {
        "the limit has no per: key items".to_owned()
    } else {
        format!("allowed: {}", keyed.join(", "))
    }
}

fn edit_errors(former: &Limit, spec: &LimitSpec) -> Vec<SpecError> {
    let mut flaws = Vec::new();
    for (index, written) in spec.items.iter().enumerate() {
        let name = written.effective_name();
        let Some((_, item)) = former.item_named(&name) else { continue };
        if item.policy.word() != written.policy.word() {
            let message = format!(
                "'{name}' was {}; another policy is another item and needs another name",
                item.policy.word()
            );
            flaws.push(SpecError::new(format!("items[{index}].policy"), message));
        }
        if item.per != written.per {
            let message = format!(
                "'{name}' counted per: {}; counting otherwise is another item and needs another name",
                item.per.word()
            );
            flaws.push(SpecError::new(format!("items[{index}].per"), message));
        }
    }
    flaws
}

impl fmt::Display for Limit {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} (version {})", self.spec.id, self.version)
    }
}
