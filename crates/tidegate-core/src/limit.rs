//! A validated limit, compiled for the time resolution of a store.
//!
//! [`Limit::new`] checks a [`LimitSpec`] as a whole and reports every error at once. A limit holds no usage; usage lives
//! in rows. An edit creates the next version by [`Limit::next_version`]. Items keep their identity by name.
//! [`crate::Row::migrate`] carries rows from one version to the next.

use std::fmt;
use std::time::Duration;

use hashbrown::{HashMap, HashSet};

use crate::amount::{Amount, Capacity, MAX_LIMIT};
use crate::calendar::Calendar;
use crate::law::{Concurrency, FixedWindow, Law, Rule, SlidingWindow, TokenBucket};
use crate::spec::{Charge, ItemSpec, LimitSpec, Mode, OnOutage, Per, Policy, Precision, SpecError};
use crate::time::{LAST_SECOND, MAX_SPAN, Span, Tick, Timestamp};

/// The longest limit id, in bytes.
pub const MAX_LIMIT_ID_BYTES: usize = 256;
/// The longest key, in bytes.
pub const MAX_KEY_BYTES: usize = 1024;
/// The longest item name, in bytes.
pub const MAX_ITEM_NAME_BYTES: usize = 256;
/// The most items in one limit.
pub const MAX_ITEMS: usize = 256;
/// The largest limit of an exact sliding window. Larger ones must be `bucketed`.
pub const MAX_EXACT_SLIDING: Amount = 1_000_000;
/// Rounding may cost a bucket at most one part in this many of its rate.
pub const RATE_LOSS_DENOMINATOR: u128 = 1000;

/// One version of a limit: its items, its lifetime and its overrides.
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

/// One item of a limit: a rule, and how asks are charged to it.
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

/// What an item inherits from earlier versions of its limit.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct ItemLineage {
    /// The first version with the item's current law.
    pub law_version: u32,
    /// The step of a bucket. A paused bucket (limit 0) keeps draining at the rate it had.
    pub step: Option<Span>,
}

/// A different rule for one item of one key.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Override {
    item: usize,
    rule: Rule,
    until: Option<Timestamp>,
}

/// The phase of a limit at an instant.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum LimitPhase {
    /// The limit starts at this later instant.
    Before(Timestamp),
    /// The limit is in force.
    Open,
    /// The limit has ended, and its state is void.
    After,
}

impl Limit {
    /// Compiles the first version of a limit, or returns every error.
    pub fn new(spec: LimitSpec, tick: Tick) -> Result<Limit, Vec<SpecError>> {
        Limit::compile(spec, tick, None)
    }

    /// Restores a stored version of a limit. `lineage` is the stored [`Item::lineage`] of each item.
    pub fn restore(
        spec: LimitSpec,
        tick: Tick,
        version: u32,
        lineage: &[ItemLineage],
    ) -> Result<Limit, Vec<SpecError>> {
        let mut limit = Limit::new(spec.clone(), tick)?;
        for (item, lineage) in limit.items.iter_mut().zip(lineage) {
            if let (Law::TokenBucket(law), Some(step)) = (&mut item.rule.law, lineage.step) {
                *law = TokenBucket::every(step);
            }
        }
        // A paused override drains at the rate of its item. So the limit is compiled again from the restored items.
        let mut limit = Limit::compile(spec, tick, Some(&limit))?;
        limit.version = version;
        for (item, lineage) in limit.items.iter_mut().zip(lineage) {
            item.law_version = lineage.law_version;
        }
        Ok(limit)
    }

    /// Compiles the next version of this limit, or returns every error.
    pub fn next_version(&self, spec: LimitSpec) -> Result<Limit, Vec<SpecError>> {
        Limit::compile(spec, self.tick, Some(self))
    }

    fn compile(spec: LimitSpec, tick: Tick, previous: Option<&Limit>) -> Result<Limit, Vec<SpecError>> {
        let mut errors = header_errors(&spec);
        for (index, item) in spec.items.iter().enumerate() {
            errors.extend(
                item_errors(item, tick).into_iter().map(|error| error.inside(&format!("items[{index}]"))),
            );
        }
        errors.extend(name_errors(&spec.items));
        errors.extend(override_errors(&spec, tick));
        errors.extend(previous.map(|previous| edit_errors(previous, &spec)).unwrap_or_default());
        if !errors.is_empty() {
            return Err(errors);
        }

        let version = previous.map_or(1, |previous| previous.version + 1);
        let mut next_index = [0, 0];
        let mut items = Vec::with_capacity(spec.items.len());
        for item_spec in &spec.items {
            let name = item_spec.effective_name().into_boxed_str();
            let predecessor = previous.and_then(|previous| previous.item_named(&name)).map(|(_, item)| item);
            let rule =
                compile_rule(&spec, item_spec, item_spec.limit, tick, predecessor.map(|item| &item.rule));
            let place = &mut next_index[item_spec.per as usize];
            items.push(Item {
                policy: item_spec.policy,
                per: item_spec.per,
                charge: item_spec.charge.unwrap_or_else(|| default_charge(&item_spec.policy)),
                law_version: predecessor
                    .filter(|item| item.rule.law == rule.law)
                    .map_or(version, |item| item.law_version),
                rule,
                place: std::mem::replace(place, *place + 1),
                name,
            });
        }

        let mut overrides: HashMap<Box<[u8]>, Vec<Override>> = HashMap::new();
        for item_spec in &spec.overrides {
            let (index, item) = items
                .iter()
                .enumerate()
                .find(|(_, item)| *item.name == *item_spec.item)
                .expect("checked above: the override names an item");
            let rule = compile_rule(&spec, &spec.items[index], item_spec.limit, tick, Some(&item.rule));
            let until = item_spec.until.and_then(|until| tick.instant(until));
            overrides.entry(item_spec.key.clone().into()).or_default().push(Override {
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

    /// The id of the limit.
    pub fn id(&self) -> &str {
        &self.spec.id
    }

    /// The specification.
    pub fn spec(&self) -> &LimitSpec {
        &self.spec
    }

    /// The time resolution it is compiled for.
    pub fn tick(&self) -> Tick {
        self.tick
    }

    /// The version number, from 1.
    pub fn version(&self) -> u32 {
        self.version
    }

    /// The items in written order.
    pub fn items(&self) -> &[Item] {
        &self.items
    }

    /// Finds an item and its index by name.
    pub fn item_named(&self, name: &str) -> Option<(usize, &Item)> {
        self.items.iter().enumerate().find(|(_, item)| *item.name == *name)
    }

    /// Whether any item counts each key separately, so that asks must name a key.
    pub fn needs_key(&self) -> bool {
        self.needs_key
    }

    /// Whether orders are refused while the usage is unknown.
    pub fn refuses_in_outage(&self) -> bool {
        self.spec.mode == Mode::Enforce && self.spec.on_outage == OnOutage::Deny
    }

    /// Whether refusals are enforced.
    pub fn mode(&self) -> Mode {
        self.spec.mode
    }

    /// The overrides of a key.
    pub fn overrides(&self, key: &[u8]) -> &[Override] {
        // Most limits have no overrides; this skips hashing the key.
        if self.overrides.is_empty() { &[] } else { self.overrides.get(key).map_or(&[], Vec::as_slice) }
    }

    /// Whether the limit neither starts nor ends.
    pub fn is_always_open(&self) -> bool {
        self.starts_at.is_none() && self.ends_at.is_none()
    }

    /// The phase of the limit at `now`.
    pub fn phase(&self, now: Timestamp) -> LimitPhase {
        match (self.starts_at, self.ends_at) {
            (_, Some(end)) if end <= now => LimitPhase::After,
            (Some(start), _) if now < start => LimitPhase::Before(start),
            _ => LimitPhase::Open,
        }
    }

    /// The start of the limit, if it has one.
    pub fn starts_at(&self) -> Option<Timestamp> {
        self.starts_at
    }

    /// The end of the limit, if it has one.
    pub fn ends_at(&self) -> Option<Timestamp> {
        self.ends_at
    }
}

impl Item {
    /// The name, which identifies the item across versions.
    pub fn name(&self) -> &str {
        &self.name
    }

    /// The policy of the specification.
    pub fn policy(&self) -> &Policy {
        &self.policy
    }

    /// Whether all keys share the count or each key has its own.
    pub fn per(&self) -> Per {
        self.per
    }

    /// How an ask is charged.
    pub fn charge(&self) -> Charge {
        self.charge
    }

    /// The capacity and the law.
    pub fn rule(&self) -> &Rule {
        &self.rule
    }

    /// The index of its state in a row: its index among the items of the same `per`.
    pub fn state_index(&self) -> usize {
        self.place
    }

    /// The version in which its law last changed. Charges of earlier versions cannot be refunded.
    pub fn law_version(&self) -> u32 {
        self.law_version
    }

    /// What a stored version needs to restore this item.
    pub fn lineage(&self) -> ItemLineage {
        let step = if let Law::TokenBucket(law) = &self.rule.law { Some(law.step()) } else { None };
        ItemLineage { law_version: self.law_version, step }
    }
}

impl Override {
    /// The index of the item.
    pub fn item(&self) -> usize {
        self.item
    }

    /// The rule that replaces the item's own.
    pub fn rule(&self) -> &Rule {
        &self.rule
    }

    /// The end of the override, if it has one.
    pub fn until(&self) -> Option<Timestamp> {
        self.until
    }

    /// Whether the override applies at `now`.
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

// Compilation. The specification is valid here.

/// The rule of an item under its own limit or an override's. `replaced` is the rule before the edit: a bucket paused by
/// a limit of 0 keeps its rate.
fn compile_rule(
    spec: &LimitSpec,
    item: &ItemSpec,
    limit: Capacity,
    tick: Tick,
    replaced: Option<&Rule>,
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
            Law::TokenBucket(match (limit, replaced.map(|rule| &rule.law)) {
                (Capacity::Unlimited, _) => TokenBucket::every(Span::ZERO),
                (Capacity::AtMost(0), Some(Law::TokenBucket(law))) if law.step() > Span::ZERO => *law,
                (Capacity::AtMost(limit), _) => TokenBucket::every(step(window, limit)),
            })
        }
        Policy::Concurrency { ttl } => Law::Concurrency(Concurrency { ttl: tick.span(ttl) }),
    };
    Rule { capacity: capacity(item, limit), law }
}

/// How much may be in use at once: the limit, or the burst of a bucket. An override scales the burst with the limit.
fn capacity(item: &ItemSpec, limit: Capacity) -> Capacity {
    match (item.policy, item.limit, limit) {
        (Policy::Bucket { burst: Some(burst), .. }, item_spec, Capacity::AtMost(limit)) if limit > 0 => {
            let burst = match item_spec {
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

/// The ticks between two units of a bucket, rounded up so that the rate never exceeds the specification.
fn step(window: Span, limit: Amount) -> Span {
    Span::from_ticks(window.ticks().div_ceil(limit.max(1)).max(1))
}

// Validation. Every message says what is allowed.

fn header_errors(spec: &LimitSpec) -> Vec<SpecError> {
    let mut errors = Vec::new();
    let id = &spec.id;
    let id_allowed = |b: u8| b.is_ascii_alphanumeric() || b"._:/-".contains(&b);
    if id.is_empty() || id.len() > MAX_LIMIT_ID_BYTES || !id.bytes().all(id_allowed) {
        errors.push(SpecError::new(
            "id",
            format!("must be 1 to {MAX_LIMIT_ID_BYTES} characters of A-Z a-z 0-9 . _ : / -"),
        ));
    }
    for (field, at) in [("starts_at", spec.starts_at), ("ends_at", spec.ends_at)] {
        if at.is_some_and(|at| at.as_secs() > LAST_SECOND) {
            errors.push(SpecError::new(field, "must be before the year 2262"));
        }
    }
    if let (Some(start), Some(end)) = (spec.starts_at, spec.ends_at)
        && end <= start
    {
        errors.push(SpecError::new("ends_at", "must be after starts_at"));
    }
    if spec.max_keys == Some(0) {
        errors.push(SpecError::new("max_keys", "must be at least 1; leave it out for the store's own bound"));
    }
    if spec.items.is_empty() {
        errors.push(SpecError::new("items", "must have at least one item"));
    }
    if spec.items.len() > MAX_ITEMS {
        errors.push(SpecError::new("items", format!("must have at most {MAX_ITEMS} items")));
    }
    errors
}

/// The errors of one item. Field paths are relative to the item.
pub fn item_errors(item: &ItemSpec, tick: Tick) -> Vec<SpecError> {
    let mut errors = Vec::new();
    if let Some(name) = &item.name {
        let allowed = |b: u8| b.is_ascii_alphanumeric() || b"._:/-".contains(&b);
        if name.is_empty() || name.len() > MAX_ITEM_NAME_BYTES || !name.bytes().all(allowed) {
            let message = format!("must be 1 to {MAX_ITEM_NAME_BYTES} characters of A-Z a-z 0-9 . _ : / -");
            errors.push(SpecError::new("name", message));
        }
    }
    errors.extend(item.policy.window().and_then(|window| span_error("window", window)));
    if let Policy::Concurrency { ttl } = item.policy {
        errors.extend(span_error("ttl", ttl));
    }
    if let Policy::Bucket { burst: Some(0), .. } = item.policy {
        errors.push(SpecError::new("burst", "must be at least 1; to refuse everything write limit: 0"));
    }
    if let Policy::Bucket { burst: Some(burst), .. } = item.policy
        && burst > MAX_LIMIT
    {
        errors.push(SpecError::new("burst", format!("must be at most {MAX_LIMIT}")));
    }
    if errors.is_empty() {
        errors.extend(limit_error(item, item.limit, tick).map(|message| SpecError::new("limit", message)));
    }
    errors
}

fn span_error(field: &str, span: Duration) -> Option<SpecError> {
    let whole_ms = span.subsec_nanos().is_multiple_of(1_000_000);
    if span.is_zero() || span > MAX_SPAN || !whole_ms {
        return Some(SpecError::new(field, "must be from 1ms to 36525d (a century), in whole milliseconds"));
    }
    None
}

/// The error of an item's own limit or an override's limit.
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

/// A bucket needs whole ticks between units. Rounding must not cost more than 0.1 % of the rate, and the burst must
/// refill within a century.
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
    let mut errors = Vec::new();
    for (index, item) in items.iter().enumerate() {
        let name = item.effective_name();
        if let Some(first) = first_of.get(&name) {
            let message =
                format!("'{name}' is already the name of items[{first}]; give one of them a name of its own");
            errors.push(SpecError::new(format!("items[{index}].name"), message));
        } else {
            first_of.insert(name, index);
        }
    }
    errors
}

fn override_errors(spec: &LimitSpec, tick: Tick) -> Vec<SpecError> {
    let mut errors = Vec::new();
    let item_of: HashMap<String, &ItemSpec> =
        spec.items.iter().rev().map(|item| (item.effective_name(), item)).collect();
    let mut seen: HashSet<(&[u8], &str)> = HashSet::with_capacity(spec.overrides.len());
    for (index, item_spec) in spec.overrides.iter().enumerate() {
        let mut error = |field: &str, message: String| {
            errors.push(SpecError::new(format!("overrides[{index}].{field}"), message));
        };
        if item_spec.key.len() > MAX_KEY_BYTES {
            error("key", format!("must be at most {MAX_KEY_BYTES} bytes"));
        }
        if item_spec.until.is_some_and(|until| until.as_secs() > LAST_SECOND) {
            error("until", "must be before the year 2262".to_owned());
        }
        if !seen.insert((&item_spec.key, &item_spec.item)) {
            error("item", format!("this key already has an override for '{}'", item_spec.item));
        }
        match item_of.get(&item_spec.item) {
            Some(item) if item.per == Per::Key => {
                if let Some(message) = limit_error(item, item_spec.limit, tick) {
                    error("limit", message);
                }
            }
            Some(_) => error(
                "item",
                format!("'{}' counts all keys together; only per: key items can differ", item_spec.item),
            ),
            None => error("item", format!("no item is named '{}'; {}", item_spec.item, names(&spec.items))),
        }
    }
    errors
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

fn edit_errors(previous: &Limit, spec: &LimitSpec) -> Vec<SpecError> {
    let mut errors = Vec::new();
    for (index, item_spec) in spec.items.iter().enumerate() {
        let name = item_spec.effective_name();
        let Some((_, item)) = previous.item_named(&name) else { continue };
        if item.policy.word() != item_spec.policy.word() {
            let message = format!(
                "'{name}' was {}; another policy is another item and needs another name",
                item.policy.word()
            );
            errors.push(SpecError::new(format!("items[{index}].policy"), message));
        }
        if item.per != item_spec.per {
            let message = format!(
                "'{name}' counted per: {}; counting otherwise is another item and needs another name",
                item.per.word()
            );
            errors.push(SpecError::new(format!("items[{index}].per"), message));
        }
    }
    errors
}

impl fmt::Display for Limit {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} (version {})", self.spec.id, self.version)
    }
}
