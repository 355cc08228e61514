//! Limits written in Rust: everything that a limits file can say, as easily.
//!
//! A [`Rule`] is one item of a limit: a policy, a number, and whether it counts each key alone. The functions of this
//! module name the policies. [`rules`] combines items with settings of the whole limit, such as shadow mode or
//! overrides.
//!
//! ```
//! use std::time::Duration;
//! use tidegate::{Limiter, bucket, day, rules};
//!
//! let limiter = Limiter::builder()
//!     .limit("api", [bucket(100, Duration::from_secs(1)).burst(200).per_key(), day(10_000).time_zone("Asia/Shanghai")])
//!     .limit("trial", rules(day(50).per_key().name("daily")).shadow().override_limit("ada", "daily", 500))
//!     .build()?;
//! # assert!(limiter.limit("api")?.try_acquire("ada").is_ok());
//! # Ok::<(), Box<dyn std::error::Error>>(())
//! ```
//!
//! Nothing is checked here. [`LimiterBuilder::build`](crate::LimiterBuilder::build) reports every mistake at once.

use std::time::{Duration, SystemTime};

use tidegate_core::spec::DEFAULT_TTL;
use tidegate_core::{
    Amount, Capacity, Charge, Durability, Fleet, ItemSpec, LimitSpec, Mode, OnOutage, OverrideSpec, Per,
    Policy, Precision, SpecError, Unit, WeekStart, Zone,
};

/// How much a rule allows: a number, or -1 for any number. Anything below -1 is a mistake.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct RuleLimit(Result<Capacity, i64>);

impl From<Capacity> for RuleLimit {
    fn from(capacity: Capacity) -> RuleLimit {
        RuleLimit(Ok(capacity))
    }
}

impl From<u64> for RuleLimit {
    fn from(limit: u64) -> RuleLimit {
        RuleLimit(Ok(Capacity::AtMost(limit)))
    }
}

impl From<u32> for RuleLimit {
    fn from(limit: u32) -> RuleLimit {
        u64::from(limit).into()
    }
}

impl From<i64> for RuleLimit {
    fn from(limit: i64) -> RuleLimit {
        RuleLimit(match (limit, Amount::try_from(limit)) {
            (_, Ok(limit)) => Ok(Capacity::AtMost(limit)),
            (-1, _) => Ok(Capacity::Unlimited),
            _ => Err(limit),
        })
    }
}

impl From<i32> for RuleLimit {
    fn from(limit: i32) -> RuleLimit {
        i64::from(limit).into()
    }
}

impl RuleLimit {
    /// The capacity, or a placeholder and a mistake of this field.
    fn resolve(self, field: &str, mistakes: &mut Vec<SpecError>) -> Capacity {
        self.0.unwrap_or_else(|limit| {
            let message = format!("{limit} is below -1; write -1 for no limit, 0 to refuse everything");
            mistakes.push(SpecError::new(field, message));
            Capacity::Unlimited
        })
    }
}

/// One item of a limit. All keys are counted together unless it is [`per_key`](Rule::per_key).
#[derive(Debug, Clone)]
#[must_use = "a rule does nothing until a limiter is built with it"]
pub struct Rule {
    item: ItemSpec,
    mistakes: Vec<SpecError>,
    time_zone: Option<String>,
    week_start: Option<WeekStart>,
}

/// A lifetime total: what is charged never comes back.
pub fn total(limit: impl Into<RuleLimit>) -> Rule {
    Rule::new(Policy::Total, limit)
}

/// A calendar second.
pub fn second(limit: impl Into<RuleLimit>) -> Rule {
    Rule::new(Policy::Calendar(Unit::Second), limit)
}

/// A calendar minute.
pub fn minute(limit: impl Into<RuleLimit>) -> Rule {
    Rule::new(Policy::Calendar(Unit::Minute), limit)
}

/// A calendar hour.
pub fn hour(limit: impl Into<RuleLimit>) -> Rule {
    Rule::new(Policy::Calendar(Unit::Hour), limit)
}

/// A calendar day in the limit's time zone.
pub fn day(limit: impl Into<RuleLimit>) -> Rule {
    Rule::new(Policy::Calendar(Unit::Day), limit)
}

/// A calendar week in the limit's time zone.
pub fn week(limit: impl Into<RuleLimit>) -> Rule {
    Rule::new(Policy::Calendar(Unit::Week), limit)
}

/// A calendar month in the limit's time zone.
pub fn month(limit: impl Into<RuleLimit>) -> Rule {
    Rule::new(Policy::Calendar(Unit::Month), limit)
}

/// A calendar year in the limit's time zone.
pub fn year(limit: impl Into<RuleLimit>) -> Rule {
    Rule::new(Policy::Calendar(Unit::Year), limit)
}

/// A window that the first charge opens. Everything comes back at its end.
pub fn interval(limit: impl Into<RuleLimit>, window: Duration) -> Rule {
    Rule::new(Policy::Interval { window }, limit)
}

/// A sliding window: each unit comes back one window after it was charged.
pub fn sliding(limit: impl Into<RuleLimit>, window: Duration) -> Rule {
    Rule::new(Policy::Sliding { window, precision: Precision::default() }, limit)
}

/// A token bucket: `limit` units come back per window, continuously. It holds `limit` units unless a
/// [`burst`](Rule::burst) is given.
pub fn bucket(limit: impl Into<RuleLimit>, window: Duration) -> Rule {
    Rule::new(Policy::Bucket { window, burst: None }, limit)
}

/// So many at once. Each grant comes with a lease, which lasts a minute unless a [`ttl`](Rule::ttl) is given.
pub fn concurrency(limit: impl Into<RuleLimit>) -> Rule {
    Rule::new(Policy::Concurrency { ttl: DEFAULT_TTL }, limit)
}

impl Rule {
    fn new(policy: Policy, limit: impl Into<RuleLimit>) -> Rule {
        let mut mistakes = Vec::new();
        let limit = limit.into().resolve("limit", &mut mistakes);
        let item = ItemSpec { name: None, policy, per: Per::All, limit, charge: None };
        Rule { item, mistakes, time_zone: None, week_start: None }
    }

    /// Counts each key alone.
    pub fn per_key(mut self) -> Rule {
        self.item.per = Per::Key;
        self
    }

    /// Names the item. Refusals, metrics and overrides use the name; the default is made from the policy, such as
    /// `key/sliding-15s`.
    pub fn name(mut self, name: impl Into<String>) -> Rule {
        self.item.name = Some(name.into());
        self
    }

    /// How much a bucket holds.
    pub fn burst(mut self, most: Amount) -> Rule {
        match &mut self.item.policy {
            Policy::Bucket { burst, .. } => *burst = Some(most),
            _ => self.misplace("burst", "only a bucket has a burst; remove it"),
        }
        self
    }

    /// How finely a sliding window remembers charges. The default is [`Precision::Exact`].
    pub fn precision(mut self, precision: Precision) -> Rule {
        match &mut self.item.policy {
            Policy::Sliding { precision: own, .. } => *own = precision,
            _ => self.misplace("precision", "only a sliding window has a precision; remove it"),
        }
        self
    }

    /// How long a lease of a concurrency rule lasts.
    pub fn ttl(mut self, ttl: Duration) -> Rule {
        match &mut self.item.policy {
            Policy::Concurrency { ttl: own } => *own = ttl,
            _ => self.misplace("ttl", "only concurrency has a ttl; remove it"),
        }
        self
    }

    /// What a request costs: its count, or one however large its count. The default is one for concurrency and the
    /// count for all other policies.
    pub fn charge(mut self, charge: Charge) -> Rule {
        self.item.charge = Some(charge);
        self
    }

    /// The time zone of the limit, by its IANA name. Calendar windows begin at its midnight. It applies to every item
    /// of the limit.
    pub fn time_zone(mut self, name: impl Into<String>) -> Rule {
        self.time_zone = Some(name.into());
        self
    }

    /// The first day of the limit's week.
    pub fn week_start(mut self, first: WeekStart) -> Rule {
        self.week_start = Some(first);
        self
    }

    fn misplace(&mut self, field: &str, message: &str) {
        self.mistakes.push(SpecError::new(field, message));
    }
}

/// Combines rules with settings of the whole limit.
pub fn rules(rules: impl IntoRules) -> LimitRules {
    rules.into_rules()
}

/// The rules of one limit, and its settings.
#[derive(Debug, Clone)]
#[must_use = "rules do nothing until a limiter is built with them"]
pub struct LimitRules {
    spec: LimitSpec,
    mistakes: Vec<SpecError>,
    time_zone: Option<String>,
    week_start: Option<WeekStart>,
}

/// What [`LimiterBuilder::limit`](crate::LimiterBuilder::limit) takes: one rule, several, or [`rules`] with settings.
pub trait IntoRules {
    /// The rules of a limit.
    fn into_rules(self) -> LimitRules;
}

impl IntoRules for LimitRules {
    fn into_rules(self) -> LimitRules {
        self
    }
}

impl IntoRules for Rule {
    fn into_rules(self) -> LimitRules {
        LimitRules::from_items([self])
    }
}

impl<const N: usize> IntoRules for [Rule; N] {
    fn into_rules(self) -> LimitRules {
        LimitRules::from_items(self)
    }
}

impl IntoRules for Vec<Rule> {
    fn into_rules(self) -> LimitRules {
        LimitRules::from_items(self)
    }
}

/// A definition that was made elsewhere. Its id is replaced.
impl IntoRules for LimitSpec {
    fn into_rules(self) -> LimitRules {
        LimitRules { spec: self, mistakes: Vec::new(), time_zone: None, week_start: None }
    }
}

impl LimitRules {
    fn from_items(items: impl IntoIterator<Item = Rule>) -> LimitRules {
        let mut rules = LimitSpec::named("").into_rules();
        for (index, rule) in items.into_iter().enumerate() {
            let place =
                |error: SpecError| SpecError::new(format!("items[{index}].{}", error.field), error.message);
            rules.mistakes.extend(rule.mistakes.into_iter().map(place));
            if let Some(name) = rule.time_zone {
                rules = rules.time_zone(name);
            }
            if let Some(first) = rule.week_start {
                rules = rules.week_start(first);
            }
            rules.spec.items.push(rule.item);
        }
        rules
    }

    /// A text for people.
    pub fn description(mut self, text: impl Into<String>) -> LimitRules {
        self.spec.description = Some(text.into());
        self
    }

    /// The time zone of the limit, by its IANA name.
    pub fn time_zone(mut self, name: impl Into<String>) -> LimitRules {
        let name = name.into();
        match &self.time_zone {
            Some(other) if *other != name => {
                let message =
                    format!("is '{other}' and '{name}'; a limit has one time zone, make two limits");
                self.mistakes.push(SpecError::new("time_zone", message));
            }
            _ => self.time_zone = Some(name),
        }
        self
    }

    /// The first day of the limit's week.
    pub fn week_start(mut self, first: WeekStart) -> LimitRules {
        match self.week_start {
            Some(other) if other != first => {
                let message = format!("is {} and {}; a limit has one", other.word(), first.word());
                self.mistakes.push(SpecError::new("week_start", message));
            }
            _ => self.week_start = Some(first),
        }
        self
    }

    /// Refuses everything before this instant.
    pub fn starts_at(mut self, at: SystemTime) -> LimitRules {
        self.spec.starts_at = self.since_epoch("starts_at", at);
        self
    }

    /// Refuses everything from this instant on, and drops the counts.
    pub fn ends_at(mut self, at: SystemTime) -> LimitRules {
        self.spec.ends_at = self.since_epoch("ends_at", at);
        self
    }

    /// Whether refusals are enforced. The default is [`Mode::Enforce`].
    pub fn mode(mut self, mode: Mode) -> LimitRules {
        self.spec.mode = mode;
        self
    }

    /// Grants what would be refused, without a charge, and counts it.
    pub fn shadow(self) -> LimitRules {
        self.mode(Mode::Shadow)
    }

    /// Grants everything and counts nothing.
    pub fn off(self) -> LimitRules {
        self.mode(Mode::Off)
    }

    /// What servers reply when the store cannot decide. The default is [`OnOutage::Deny`]. A limiter in this process
    /// returns [`AcquireError::Unavailable`](crate::AcquireError::Unavailable) instead.
    pub fn on_outage(mut self, reply: OnOutage) -> LimitRules {
        self.spec.on_outage = reply;
        self
    }

    /// How a durable store keeps the counts. The default is [`Durability::Ceiling`].
    pub fn durability(mut self, durability: Durability) -> LimitRules {
        self.spec.durability = durability;
        self
    }

    /// How several nodes share the limit. The default is [`Fleet::Exact`].
    pub fn fleet(mut self, fleet: Fleet) -> LimitRules {
        self.spec.fleet = fleet;
        self
    }

    /// The most keys that are remembered at once.
    pub fn max_keys(mut self, keys: u64) -> LimitRules {
        self.spec.max_keys = Some(keys);
        self
    }

    /// Gives one key another limit for the item of this name.
    pub fn override_limit(
        self,
        key: impl AsRef<[u8]>,
        item: impl Into<String>,
        limit: impl Into<RuleLimit>,
    ) -> LimitRules {
        self.with_override(key.as_ref(), item.into(), limit.into(), None)
    }

    /// Gives one key another limit for the item of this name, until this instant.
    pub fn override_limit_until(
        mut self,
        key: impl AsRef<[u8]>,
        item: impl Into<String>,
        limit: impl Into<RuleLimit>,
        until: SystemTime,
    ) -> LimitRules {
        let field = format!("overrides[{}].until", self.spec.overrides.len());
        let until = self.since_epoch(&field, until);
        self.with_override(key.as_ref(), item.into(), limit.into(), until)
    }

    fn with_override(
        mut self,
        key: &[u8],
        item: String,
        limit: RuleLimit,
        until: Option<Duration>,
    ) -> LimitRules {
        let field = format!("overrides[{}].limit", self.spec.overrides.len());
        let limit = limit.resolve(&field, &mut self.mistakes);
        self.spec.overrides.push(OverrideSpec { key: key.to_vec(), item, limit, until });
        self
    }

    fn since_epoch(&mut self, field: &str, at: SystemTime) -> Option<Duration> {
        let since_epoch = at.duration_since(SystemTime::UNIX_EPOCH).ok();
        if since_epoch.is_none() {
            self.mistakes.push(SpecError::new(field, "is before 1970; use a later instant"));
        }
        since_epoch
    }

    /// The definition under this id, and what is wrong so far. The core checks the rest.
    pub(crate) fn into_spec(mut self, id: &str) -> (LimitSpec, Vec<SpecError>) {
        id.clone_into(&mut self.spec.id);
        if let Some(name) = &self.time_zone {
            if let Some(zone) = Zone::named(name) {
                self.spec.time_zone = zone;
            } else {
                let message =
                    format!("no time zone is named '{name}'; use an IANA name such as Europe/Berlin");
                self.mistakes.push(SpecError::new("time_zone", message));
            }
        }
        if let Some(first) = self.week_start {
            self.spec.week_start = first;
        }
        (self.spec, self.mistakes)
    }
}
