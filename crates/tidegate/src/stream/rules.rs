//! The rules of document 001: how many messages pass, all together and of each user.

use std::borrow::Cow;
use std::hash::{BuildHasher, RandomState};
use std::sync::LazyLock;
use std::time::Duration;

use tidegate_core::limit::{MAX_EXACT_SLIDING, MAX_KEY_BYTES};
use tidegate_core::{Amount, Capacity, ItemSpec, LimitSpec, Per, Policy, Precision, Tick, Timestamp, Wait};

use crate::limiter::Refused;
use crate::reply::{OrderReply, Outcome};

/// The index of the item that counts all messages; the other one counts each user's.
const GLOBAL: usize = 0;
/// Who sent a message that does not say.
const UNKNOWN_USER: &[u8] = b"unknown_user";

/// At most so many messages in every window.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Rate {
    /// How many: none at all, some, or any number.
    pub limit: Capacity,
    /// The length of the window. It is closed: what is exactly this old still counts.
    pub window: Duration,
}

impl Rate {
    /// At most `limit` in every `window`; 0 refuses everything.
    pub const fn of(limit: Amount, window: Duration) -> Rate {
        Rate { limit: Capacity::AtMost(limit), window }
    }

    /// Any number, counted in windows of this length.
    pub const fn unlimited(window: Duration) -> Rate {
        Rate { limit: Capacity::Unlimited, window }
    }

    /// A sliding window: exact as long as that is affordable.
    fn item(self, name: &str, per: Per) -> ItemSpec {
        let exact = matches!(self.limit, Capacity::AtMost(limit) if limit <= MAX_EXACT_SLIDING);
        let precision = if exact { Precision::Exact } else { Precision::Bucketed };
        let policy = Policy::Sliding { window: self.window, precision };
        ItemSpec { name: Some(name.to_owned()), policy, per, limit: self.limit, charge: None }
    }
}

/// How many messages pass. Both rates are asked at once, and a message that one of them refuses is charged to neither.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Rules {
    /// All messages together.
    pub global: Rate,
    /// Each user's.
    pub user: Rate,
}

impl Rules {
    /// The two items, `global` and `user`.
    pub fn items(&self) -> [ItemSpec; 2] {
        [self.global.item("global", Per::All), self.user.item("user", Per::Key)]
    }

    /// The same as a limit of this id, for any store.
    pub fn spec(&self, id: impl Into<String>) -> LimitSpec {
        self.items().into_iter().fold(LimitSpec::named(id), LimitSpec::with)
    }
}

impl Default for Rules {
    /// The document's: a hundred messages a minute, ten of each user.
    fn default() -> Rules {
        let minute = Duration::from_secs(60);
        Rules { global: Rate::of(100, minute), user: Rate::of(10, minute) }
    }
}

/// Whose message it is.
///
/// Made from what a message says, `None` included: messages that do not say share the user `unknown_user`. A name that
/// is longer than a store would take is a name like any other.
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
    /// The key that is counted for.
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

/// Stands for a name that is longer than a store would take: its beginning, and a fingerprint of all of it that nobody
/// outside this process can foresee.
fn digest(name: &[u8]) -> Vec<u8> {
    static HASHERS: LazyLock<[RandomState; 2]> = LazyLock::new(|| [RandomState::new(), RandomState::new()]);
    let mut short = name[..MAX_KEY_BYTES - 16].to_vec();
    for hasher in &*HASHERS {
        short.extend_from_slice(&hasher.hash_one(name).to_le_bytes());
    }
    short
}

/// What becomes of a message.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Fate {
    /// It goes on, and both rates are charged.
    Passed,
    /// It goes no further, and nobody is charged.
    Refused(Refusal),
}

impl Fate {
    /// What an answer of a limit with these rules means.
    pub fn of(answer: &OrderReply) -> Fate {
        match &answer.outcome {
            Outcome::Granted(_) => Fate::Passed,
            Outcome::Denied(denied) => Fate::Refused(Refusal {
                by: RefusedBy::item(denied.first.1),
                wait: denied.wait,
                at: answer.at,
                tick: denied.limit.tick(),
            }),
        }
    }

    /// The fate of a message that a limiter refused.
    pub(super) fn of_refusal(refused: &Refused) -> Fate {
        let in_queue = || refused.limit().item_named(refused.item()).map_or(GLOBAL, |(index, _)| index);
        let first = refused.by().map_or_else(in_queue, |by| by.first.1);
        Fate::Refused(Refusal {
            by: RefusedBy::item(first),
            wait: refused.wait(),
            at: refused.at(),
            tick: refused.limit().tick(),
        })
    }
}

/// Which of the rules refused a message, and for how long.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Refusal {
    /// The one that is named for it: the global one if both refuse.
    pub by: RefusedBy,
    /// When the message would fit, whichever of the rules refuse it.
    pub wait: Wait,
    /// When it was refused.
    pub at: Timestamp,
    tick: Tick,
}

impl Refusal {
    /// How long until it would fit; `None` if no time passing will help.
    pub fn retry_after(&self) -> Option<Duration> {
        match self.wait {
            Wait::Until(then) => Some(self.tick.duration(then.since(self.at))),
            Wait::OnRelease | Wait::Never => None,
        }
    }
}

/// One of the two rules.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum RefusedBy {
    /// That for all messages together.
    Global,
    /// That for each user's.
    User,
}

impl RefusedBy {
    fn item(index: usize) -> RefusedBy {
        if index == GLOBAL { RefusedBy::Global } else { RefusedBy::User }
    }
}
