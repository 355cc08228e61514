//! The rates of a stream limiter: for all messages and per user.

use std::borrow::Cow;
use std::hash::{BuildHasher, RandomState};
use std::sync::LazyLock;
use std::time::Duration;

use tidegate_core::limit::{MAX_EXACT_SLIDING, MAX_KEY_BYTES};
use tidegate_core::{Amount, Capacity, ItemSpec, LimitSpec, Per, Policy, Precision, Tick, Timestamp, Wait};

use crate::limiter::Refused;
use crate::reply::{OrderReply, Outcome};

/// Index of the item that counts all messages. The other item counts per user.
const GLOBAL: usize = 0;
/// Key of messages without a user.
const UNKNOWN_USER: &[u8] = b"unknown_user";

/// A number of messages per window.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct MessageRate {
    /// The number: zero, some, or unlimited.
    pub limit: Capacity,
    /// Length of the window. It is closed: a message of exactly this age still counts.
    pub window: Duration,
}

impl MessageRate {
    /// At most `limit` per `window`. Zero refuses everything.
    pub const fn of(limit: Amount, window: Duration) -> MessageRate {
        MessageRate { limit: Capacity::AtMost(limit), window }
    }

    /// Unlimited, counted in windows of this length.
    pub const fn unlimited(window: Duration) -> MessageRate {
        MessageRate { limit: Capacity::Unlimited, window }
    }

    /// A sliding window, exact where that is affordable.
    fn item(self, name: &str, per: Per) -> ItemSpec {
        let exact = matches!(self.limit, Capacity::AtMost(limit) if limit <= MAX_EXACT_SLIDING);
        let precision = if exact { Precision::Exact } else { Precision::Bucketed };
        let policy = Policy::Sliding { window: self.window, precision };
        ItemSpec { name: Some(name.to_owned()), policy, per, limit: self.limit, charge: None }
    }
}

/// Both rates. They are decided together, and a message refused by one is charged to neither.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct StreamRules {
    /// All messages.
    pub global: MessageRate,
    /// Messages of each user.
    pub user: MessageRate,
}

impl StreamRules {
    /// The two items, `global` and `user`.
    pub fn items(&self) -> [ItemSpec; 2] {
        [self.global.item("global", Per::All), self.user.item("user", Per::Key)]
    }

    /// The same as a limit with this id, for any store.
    pub fn spec(&self, id: impl Into<String>) -> LimitSpec {
        self.items().into_iter().fold(LimitSpec::named(id), LimitSpec::with)
    }
}

impl Default for StreamRules {
    /// The specified defaults: 100 messages per minute, ten per user.
    fn default() -> StreamRules {
        let minute = Duration::from_secs(60);
        StreamRules { global: MessageRate::of(100, minute), user: MessageRate::of(10, minute) }
    }
}

/// The user of a message.
///
/// Messages without a user share `unknown_user`. A name longer than a key is shortened to a unique key.
///
/// ```
/// use tidegate::stream::User;
///
/// assert_eq!(User::from("ada").as_bytes(), b"ada");
/// assert_eq!(User::from(None::<&str>).as_bytes(), b"unknown_user");
/// ```
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub struct User<'a>(Cow<'a, [u8]>);

impl User<'_> {
    /// The key that is counted.
    pub fn as_bytes(&self) -> &[u8] {
        &self.0
    }
}

impl<'a> From<Cow<'a, [u8]>> for User<'a> {
    fn from(name: Cow<'a, [u8]>) -> User<'a> {
        User(if name.len() <= MAX_KEY_BYTES { name } else { Cow::Owned(digest(&name)) })
    }
}

impl<'a> From<&'a [u8]> for User<'a> {
    fn from(name: &'a [u8]) -> User<'a> {
        Cow::Borrowed(name).into()
    }
}

impl<'a> From<&'a str> for User<'a> {
    fn from(name: &'a str) -> User<'a> {
        name.as_bytes().into()
    }
}

impl From<String> for User<'_> {
    fn from(name: String) -> Self {
        Cow::<[u8]>::Owned(name.into_bytes()).into()
    }
}

impl<'a, T: Into<User<'a>>> From<Option<T>> for User<'a> {
    fn from(name: Option<T>) -> User<'a> {
        name.map_or(User(Cow::Borrowed(UNKNOWN_USER)), Into::into)
    }
}

/// The key for a user name that is too long: its beginning and a fingerprint of the whole name, seeded per process.
fn digest(name: &[u8]) -> Vec<u8> {
    static HASHERS: LazyLock<[RandomState; 2]> = LazyLock::new(|| [RandomState::new(), RandomState::new()]);
    let mut short = name[..MAX_KEY_BYTES - 16].to_vec();
    for hasher in &*HASHERS {
        short.extend_from_slice(&hasher.hash_one(name).to_le_bytes());
    }
    short
}

/// Decision about a message.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum MessageDecision {
    /// It passes, and both rates are charged.
    Passed,
    /// It is dropped, and nothing is charged.
    Refused(MessageRefusal),
}

impl MessageDecision {
    /// The decision in a reply of a limit with these rules.
    pub fn of(answer: &OrderReply) -> MessageDecision {
        match &answer.outcome {
            Outcome::Granted(_) => MessageDecision::Passed,
            Outcome::Denied(denied) => MessageDecision::Refused(MessageRefusal {
                by: RefusedBy::item(denied.first.1),
                wait: denied.wait,
                at: answer.at,
                tick: denied.limit.tick(),
            }),
        }
    }

    /// The decision in a refusal of the limiter.
    pub(super) fn of_refusal(refused: &Refused) -> MessageDecision {
        let in_queue = || refused.limit().item_named(refused.item()).map_or(GLOBAL, |(index, _)| index);
        let first = refused.by().map_or_else(in_queue, |by| by.first.1);
        MessageDecision::Refused(MessageRefusal {
            by: RefusedBy::item(first),
            wait: refused.wait(),
            at: refused.at(),
            tick: refused.limit().tick(),
        })
    }
}

/// Which rate refused a message, and for how long.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct MessageRefusal {
    /// The rate that is reported: the global one if both refuse.
    pub by: RefusedBy,
    /// When the message would fit both rates.
    pub wait: Wait,
    /// When it was refused.
    pub at: Timestamp,
    tick: Tick,
}

impl MessageRefusal {
    /// How long until it would fit; `None` if time alone does not help.
    pub fn retry_after(&self) -> Option<Duration> {
        match self.wait {
            Wait::Until(then) => Some(self.tick.duration(then.since(self.at))),
            Wait::OnRelease | Wait::Never => None,
        }
    }
}

/// One of the two rates.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum RefusedBy {
    /// The rate of all messages.
    Global,
    /// The rate of each user.
    User,
}

impl RefusedBy {
    fn item(index: usize) -> RefusedBy {
        if index == GLOBAL { RefusedBy::Global } else { RefusedBy::User }
    }
}
