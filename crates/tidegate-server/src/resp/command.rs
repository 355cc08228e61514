//! Commands: what a client may say, and what is wrong with what it said.
//!
//! One table says everything about a command that is not in its arguments: how it is called, how many arguments it takes, and who may
//! give it. Texts of mistakes are those of Redis where it has one, because clients look at them.
//!
//! Decided: numbers are read as strictly as lengths are. `+1`, `01` and ` 1` are not numbers.

use std::borrow::Cow;
use std::fmt::Write;
use std::time::Duration;

use tidegate::{Amount, Intent};
use tidegate_core::limit::MAX_LIMIT_ID_BYTES;

use super::frame::{Arguments, number};
use super::throttle::{self, BELONGS, Bucket};
use crate::tokens::Role;

/// What a client says.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Command<'i> {
    /// Take of a limit, or look at it.
    Decide(Question<'i>),
    /// Take of a bucket that is described by the command itself.
    Throttle(Throttle<'i>),
    /// Give a lease back.
    Release {
        /// Its id.
        lease: &'i [u8],
    },
    /// Keep a lease.
    Renew {
        /// Its id.
        lease: &'i [u8],
        /// For how long from now.
        ttl: Duration,
    },
    /// Is anybody there?
    Ping {
        /// What to say instead of `PONG`.
        message: Option<&'i [u8]>,
    },
    /// Say it again.
    Echo {
        /// What.
        message: &'i [u8],
    },
    /// Speak this version of the protocol.
    Hello(Hello<'i>),
    /// Come in with a token. A name may be given; tokens are enough to tell who it is.
    Auth {
        /// The token.
        token: &'i [u8],
    },
    /// Good bye.
    Quit,
    /// Use this database. There is one.
    Select {
        /// Its number.
        index: i64,
    },
    /// Which commands are there?
    Commands(Inquiry),
    /// About the connection itself.
    Client(Client<'i>),
    /// About the server.
    Info,
}

/// What is asked of a limit.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Question<'i> {
    /// Take or look.
    pub intent: Intent,
    /// The limit's id.
    pub limit_id: &'i str,
    /// The key.
    pub key: &'i [u8],
    /// How much.
    pub count: Amount,
    /// What makes it safe to repeat.
    pub request_id: Option<&'i [u8]>,
}

/// What is asked of a bucket.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Throttle<'i> {
    /// In whose words the answer is.
    pub dialect: Dialect,
    /// The key.
    pub key: &'i [u8],
    /// The bucket.
    pub bucket: Bucket,
    /// How much.
    pub quantity: Amount,
}

/// Whose command it is.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Dialect {
    /// redis-cell's `CL.THROTTLE`.
    Cell,
    /// throttlecrab's `THROTTLE`.
    Crab,
}

/// What `HELLO` says.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct Hello<'i> {
    /// The version; the one that is spoken if it says none.
    pub version: Option<i64>,
    /// The token to come in with.
    pub token: Option<&'i [u8]>,
    /// What the client calls itself.
    pub name: Option<&'i [u8]>,
}

/// What is asked about commands.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Inquiry {
    /// All there is to say about all of them.
    All,
    /// How many there are.
    Count,
    /// What they are called.
    List,
    /// What they are for; nothing is said.
    Docs,
    /// All there is to say about those that are named behind it.
    Info,
}

/// What is said about the connection.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Client<'i> {
    /// Its number.
    Id,
    /// What the client calls itself from now on.
    SetName(&'i [u8]),
    /// What it calls itself.
    GetName,
    /// What is known about it.
    Info,
    /// Something that is noted by others and changes nothing here.
    Noted,
}

/// What is wrong with a command.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Mistake {
    /// The first word of the error.
    pub code: &'static str,
    /// The rest.
    pub text: Cow<'static, str>,
}

impl Mistake {
    /// `-ERR` with this text.
    pub fn err(text: impl Into<Cow<'static, str>>) -> Mistake {
        Mistake { code: "ERR", text: text.into() }
    }
}

const NOT_AN_INTEGER: &str = "value is not an integer or out of range";
const SYNTAX: &str = "syntax error";

/// Who may give a command.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Leave {
    /// Those outside, too.
    Outside,
    /// Everybody inside.
    Inside,
    /// Those inside who may do this.
    Role(Role),
}

/// All about a command but its arguments.
#[derive(Debug)]
pub struct Form {
    /// Its name, as it is said in errors.
    pub name: &'static str,
    /// How many arguments it takes at least and at most, its name included.
    pub arguments: (usize, usize),
    /// Who may give it.
    pub leave: Leave,
    /// Where its first key is, if clients may route by keys.
    pub first_key: i64,
    word: Word,
}

#[derive(Debug, Clone, Copy)]
enum Word {
    Acquire,
    Peek,
    Release,
    Renew,
    Throttle(Dialect),
    Ping,
    Echo,
    Hello,
    Auth,
    Quit,
    Select,
    Command,
    Client,
    Info,
}

/// No bound but the frame's.
const ANY: usize = usize::MAX;

const fn form(name: &'static str, arguments: (usize, usize), leave: Leave, word: Word) -> Form {
    let first_key = if matches!(word, Word::Throttle(_)) { 1 } else { 0 };
    Form { name, arguments, leave, first_key, word }
}

/// Every command there is; those that are said most often come first.
pub static FORMS: [Form; 15] = [
    form("tg.acquire", (3, 6), Leave::Role(Role::Decide), Word::Acquire),
    form("tg.peek", (3, 4), Leave::Role(Role::Read), Word::Peek),
    form("tg.release", (2, 2), Leave::Role(Role::Decide), Word::Release),
    form("tg.renew", (3, 3), Leave::Role(Role::Decide), Word::Renew),
    form("cl.throttle", (5, 6), Leave::Role(Role::Decide), Word::Throttle(Dialect::Cell)),
    form("throttle", (5, 6), Leave::Role(Role::Decide), Word::Throttle(Dialect::Crab)),
    form("ping", (1, 2), Leave::Inside, Word::Ping),
    form("echo", (2, 2), Leave::Inside, Word::Echo),
    form("hello", (1, ANY), Leave::Outside, Word::Hello),
    form("auth", (2, 3), Leave::Outside, Word::Auth),
    form("quit", (1, ANY), Leave::Outside, Word::Quit),
    form("select", (2, 2), Leave::Inside, Word::Select),
    form("command", (1, ANY), Leave::Inside, Word::Command),
    form("client", (2, ANY), Leave::Inside, Word::Client),
    form("info", (1, ANY), Leave::Inside, Word::Info),
];

impl Form {
    /// The form of the command of this name, in whatever case.
    pub fn named(name: &[u8]) -> Option<&'static Form> {
        // As nearly everybody writes the one that nearly everybody says.
        if name == b"TG.ACQUIRE" {
            return FORMS.first();
        }
        FORMS.iter().find(|form| form.name.as_bytes().eq_ignore_ascii_case(name))
    }

    /// What Redis calls the arity: how many arguments, or at least how many as a negative number.
    pub fn arity(&self) -> i64 {
        let (least, most) = self.arguments;
        let least = i64::try_from(least).unwrap_or(i64::MAX);
        if self.arguments == (most, most) { least } else { -least }
    }

    /// The command with these arguments, the first of which named this form.
    pub fn read<'i>(&self, arguments: &Arguments<'i, '_>) -> Result<Command<'i>, Mistake> {
        let (least, most) = self.arguments;
        if !(least..=most).contains(&arguments.len()) {
            return Err(self.wrong_number());
        }
        let at = |index: usize| arguments.get(index).unwrap_or_default();
        Ok(match self.word {
            Word::Acquire => Command::Decide(question(Intent::Acquire, arguments)?),
            Word::Peek => Command::Decide(question(Intent::Peek, arguments)?),
            Word::Release => Command::Release { lease: at(1) },
            Word::Renew => {
                Command::Renew { lease: at(1), ttl: Duration::from_millis(required_amount(at(2))?) }
            }
            Word::Throttle(dialect) => Command::Throttle(throttle(dialect, arguments)?),
            Word::Ping => Command::Ping { message: arguments.get(1) },
            Word::Echo => Command::Echo { message: at(1) },
            Word::Hello => Command::Hello(hello(arguments)?),
            Word::Auth => Command::Auth { token: at(arguments.len() - 1) },
            Word::Quit => Command::Quit,
            Word::Select => {
                Command::Select { index: integer(at(1)).ok_or_else(|| Mistake::err(NOT_AN_INTEGER))? }
            }
            Word::Command => Command::Commands(inquiry(arguments)?),
            Word::Client => Command::Client(client(arguments)?),
            Word::Info => Command::Info,
        })
    }

    fn wrong_number(&self) -> Mistake {
        wrong_number(self.name)
    }
}

/// What is said about a command that nobody knows.
pub fn unknown(arguments: &Arguments<'_, '_>) -> Mistake {
    const MOST_QUOTED: usize = 128;
    let quoted = |bytes: &[u8]| bytes[..bytes.len().min(MOST_QUOTED)].escape_ascii().to_string();
    let name = quoted(arguments.get(0).unwrap_or_default());
    let mut text = format!("unknown command '{name}', with args beginning with:");
    for argument in arguments.iter().skip(1) {
        if text.len() >= MOST_QUOTED {
            break;
        }
        // Writing into a string does not fail.
        let _ = write!(text, " '{}'", quoted(argument));
    }
    Mistake::err(text)
}

fn wrong_number(name: &str) -> Mistake {
    Mistake::err(format!("wrong number of arguments for '{name}' command"))
}

/// `limit_id limit_key [count] [REQ request_id]`; looking takes no request id, and has no room for one.
fn question<'i>(intent: Intent, arguments: &Arguments<'i, '_>) -> Result<Question<'i>, Mistake> {
    let at = |index: usize| arguments.get(index).unwrap_or_default();
    let is_req = |index: usize| arguments.get(index).is_some_and(|word| word.eq_ignore_ascii_case(b"REQ"));
    let (count, request_id) = match arguments.len() {
        3 => (1, None),
        4 if !is_req(3) => (required_amount(at(3))?, None),
        5 if is_req(3) => (1, Some(at(4))),
        6 if is_req(4) => (required_amount(at(3))?, Some(at(5))),
        _ => return Err(Mistake::err(SYNTAX)),
    };
    let limit_id = std::str::from_utf8(at(1)).map_err(|_| Mistake {
        code: "NOLIMIT",
        text: format!("unknown limit '{}'", at(1)[..at(1).len().min(MAX_LIMIT_ID_BYTES)].escape_ascii())
            .into(),
    })?;
    if throttle::is_reserved(limit_id) {
        return Err(Mistake::err(BELONGS));
    }
    Ok(Question { intent, limit_id, key: at(2), count, request_id })
}

/// `key max_burst count period [quantity]`.
fn throttle<'i>(dialect: Dialect, arguments: &Arguments<'i, '_>) -> Result<Throttle<'i>, Mistake> {
    let number = |index: usize| required_amount(arguments.get(index).unwrap_or_default());
    let at_least_one = |index: usize, name: &str| match number(index)? {
        0 => Err(Mistake::err(format!("{name} must be at least 1"))),
        number => Ok(number),
    };
    let capacity = match dialect {
        Dialect::Cell => number(2)?.checked_add(1).ok_or_else(|| Mistake::err(NOT_AN_INTEGER))?,
        Dialect::Crab => at_least_one(2, "max_burst")?,
    };
    let bucket = Bucket { capacity, count: at_least_one(3, "count")?, period: at_least_one(4, "period")? };
    let quantity = if arguments.len() > 5 { number(5)? } else { 1 };
    Ok(Throttle { dialect, key: arguments.get(1).unwrap_or_default(), bucket, quantity })
}

/// `[version [AUTH name token] [SETNAME name]]`.
fn hello<'i>(arguments: &Arguments<'i, '_>) -> Result<Hello<'i>, Mistake> {
    let Some(version) = arguments.get(1) else { return Ok(Hello::default()) };
    let version =
        integer(version).ok_or_else(|| Mistake::err("Protocol version is not an integer or out of range"))?;
    if !(2..=3).contains(&version) {
        return Err(Mistake { code: "NOPROTO", text: "unsupported protocol version".into() });
    }
    let mut hello = Hello { version: Some(version), ..Hello::default() };
    let mut words = arguments.iter().skip(2);
    while let Some(option) = words.next() {
        let wrong = || Mistake::err(format!("Syntax error in HELLO option '{}'", option.escape_ascii()));
        if option.eq_ignore_ascii_case(b"AUTH") {
            let (_name, token) = (words.next(), words.next());
            hello.token = Some(token.ok_or_else(wrong)?);
        } else if option.eq_ignore_ascii_case(b"SETNAME") {
            hello.name = Some(client_name(words.next().ok_or_else(wrong)?)?);
        } else {
            return Err(wrong());
        }
    }
    Ok(hello)
}

fn inquiry(arguments: &Arguments<'_, '_>) -> Result<Inquiry, Mistake> {
    let Some(about) = arguments.get(1) else { return Ok(Inquiry::All) };
    let is = |word: &str| about.eq_ignore_ascii_case(word.as_bytes());
    match arguments.len() {
        2 if is("COUNT") => Ok(Inquiry::Count),
        2 if is("LIST") => Ok(Inquiry::List),
        _ if is("INFO") => Ok(Inquiry::Info),
        _ if is("DOCS") => Ok(Inquiry::Docs),
        _ if is("COUNT") => Err(wrong_number("command|count")),
        _ if is("LIST") => Err(wrong_number("command|list")),
        _ => Err(unknown_part(about)),
    }
}

fn client<'i>(arguments: &Arguments<'i, '_>) -> Result<Client<'i>, Mistake> {
    let about = arguments.get(1).unwrap_or_default();
    let is = |word: &str| about.eq_ignore_ascii_case(word.as_bytes());
    let (client, takes) = if is("ID") {
        (Client::Id, 2)
    } else if is("SETNAME") {
        (Client::SetName(client_name(arguments.get(2).unwrap_or_default())?), 3)
    } else if is("GETNAME") {
        (Client::GetName, 2)
    } else if is("INFO") {
        (Client::Info, 2)
    } else if is("SETINFO") {
        (Client::Noted, 4)
    } else if is("NO-EVICT") || is("NO-TOUCH") {
        (Client::Noted, 3)
    } else {
        return Err(unknown_part(about));
    };
    if arguments.len() == takes {
        return Ok(client);
    }
    let about = String::from_utf8_lossy(about).to_ascii_lowercase();
    Err(wrong_number(&format!("client|{about}")))
}

fn unknown_part(part: &[u8]) -> Mistake {
    Mistake::err(format!("unknown subcommand '{}'", part.escape_ascii()))
}

fn client_name(name: &[u8]) -> Result<&[u8], Mistake> {
    if name.iter().all(u8::is_ascii_graphic) {
        Ok(name)
    } else {
        Err(Mistake::err("Client names cannot contain spaces, newlines or special characters."))
    }
}

fn required_amount(text: &[u8]) -> Result<Amount, Mistake> {
    amount(text).ok_or_else(|| Mistake::err(NOT_AN_INTEGER))
}

fn amount(text: &[u8]) -> Option<Amount> {
    number(text)
}

fn integer(text: &[u8]) -> Option<i64> {
    match text.strip_prefix(b"-") {
        Some(digits) => {
            amount(digits).filter(|amount| *amount > 0).and_then(|it| 0i64.checked_sub_unsigned(it))
        }
        None => amount(text).and_then(|amount| i64::try_from(amount).ok()),
    }
}
