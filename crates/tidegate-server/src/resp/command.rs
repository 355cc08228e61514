//! Commands: parsing, arity and access.
//!
//! One table lists the name, arity and access of every command. Error texts are those of Redis where it has one, because clients
//! match them.
//!
//! Numbers are parsed as strictly as lengths: `+1`, `01` and ` 1` are refused.

use std::borrow::Cow;
use std::fmt::Write;
use std::time::Duration;

use tidegate::model::{Amount, Intent};
use tidegate_core::limit::MAX_LIMIT_ID_BYTES;

use super::described_buckets::{self, BucketDescription, RESERVED_ID_MESSAGE};
use super::frame::{FrameArguments, parse_number};
use crate::tokens::Role;

/// A parsed command.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum RespCommand<'i> {
    /// `TG.ACQUIRE` and `TG.PEEK`.
    Decide(DecideArgs<'i>),
    /// `CL.THROTTLE` and `THROTTLE`, which describe their own bucket.
    Throttle(ThrottleArgs<'i>),
    /// `TG.RELEASE`.
    Release {
        /// The lease id.
        lease: &'i [u8],
    },
    /// `TG.RENEW`.
    Renew {
        /// The lease id.
        lease: &'i [u8],
        /// Time to live from now.
        ttl: Duration,
    },
    /// `PING`.
    Ping {
        /// The reply instead of `PONG`.
        message: Option<&'i [u8]>,
    },
    /// `ECHO`.
    Echo {
        /// The reply.
        message: &'i [u8],
    },
    /// `HELLO`: selects the protocol version.
    Hello(HelloArgs<'i>),
    /// `AUTH`. A user name may be given and is ignored.
    Auth {
        /// The token.
        token: &'i [u8],
    },
    /// `QUIT`.
    Quit,
    /// `SELECT`. There is only database 0.
    Select {
        /// The database index.
        index: i64,
    },
    /// `COMMAND` and its subcommands.
    Commands(CommandQuery),
    /// `CLIENT` and its subcommands.
    Client(ClientCommand<'i>),
    /// `INFO`.
    Info,
}

/// Arguments of `TG.ACQUIRE` and `TG.PEEK`.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct DecideArgs<'i> {
    /// Acquire or peek.
    pub intent: Intent,
    /// The limit's id.
    pub limit_id: &'i str,
    /// The key.
    pub key: &'i [u8],
    /// How many units.
    pub count: Amount,
    /// The idempotency key.
    pub request_id: Option<&'i [u8]>,
}

/// Arguments of `CL.THROTTLE` and `THROTTLE`.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct ThrottleArgs<'i> {
    /// Which of the two commands.
    pub dialect: ThrottleDialect,
    /// The key.
    pub key: &'i [u8],
    /// The described bucket.
    pub bucket: BucketDescription,
    /// How many units.
    pub quantity: Amount,
}

/// The dialect of a throttle command; the dialects differ in arguments and replies.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum ThrottleDialect {
    /// redis-cell's `CL.THROTTLE`.
    Cell,
    /// throttlecrab's `THROTTLE`.
    Crab,
}

/// Arguments of `HELLO`.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct HelloArgs<'i> {
    /// The requested version; unchanged if absent.
    pub version: Option<i64>,
    /// The token to authenticate with.
    pub token: Option<&'i [u8]>,
    /// The client's name.
    pub name: Option<&'i [u8]>,
}

/// What `COMMAND` asks for.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum CommandQuery {
    /// Descriptions of all commands.
    All,
    /// Their number.
    Count,
    /// Their names.
    List,
    /// Their documentation; the reply is empty.
    Docs,
    /// Descriptions of the named commands.
    Info,
}

/// A subcommand of `CLIENT`.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum ClientCommand<'i> {
    /// The connection's id.
    Id,
    /// Sets the client's name.
    SetName(&'i [u8]),
    /// The client's name.
    GetName,
    /// What is known about the connection.
    Info,
    /// A subcommand that is accepted without effect.
    Noted,
}

/// An error reply.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct CommandError {
    /// The error code, the first word.
    pub code: &'static str,
    /// The message.
    pub text: Cow<'static, str>,
}

impl CommandError {
    /// An `-ERR` reply with this message.
    pub fn err(text: impl Into<Cow<'static, str>>) -> CommandError {
        CommandError { code: "ERR", text: text.into() }
    }
}

const NOT_AN_INTEGER: &str = "value is not an integer or out of range";
const SYNTAX: &str = "syntax error";

/// Who may run a command.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum CommandAccess {
    /// Unauthenticated clients too.
    Anonymous,
    /// Every authenticated client.
    Authenticated,
    /// Authenticated clients of at least this role.
    Role(Role),
}

/// Everything about a command except the values of its arguments.
#[derive(Debug)]
pub struct CommandSpec {
    /// The name, as it appears in errors.
    pub name: &'static str,
    /// The least and the most arguments, the name included.
    pub arguments: (usize, usize),
    /// Who may run it.
    pub access: CommandAccess,
    /// Position of the first key, for clients that route by key.
    pub first_key: i64,
    kind: CommandName,
}

#[derive(Debug, Clone, Copy)]
enum CommandName {
    Acquire,
    Peek,
    Release,
    Renew,
    Throttle(ThrottleDialect),
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

/// No bound except that of the frame.
const UNBOUNDED: usize = usize::MAX;

const fn command(
    name: &'static str,
    arguments: (usize, usize),
    access: CommandAccess,
    kind: CommandName,
) -> CommandSpec {
    let first_key = if matches!(kind, CommandName::Throttle(_)) { 1 } else { 0 };
    CommandSpec { name, arguments, access, first_key, kind }
}

/// All commands, the most frequent first.
pub static COMMANDS: [CommandSpec; 15] = [
    command("tg.acquire", (3, 6), CommandAccess::Role(Role::Decide), CommandName::Acquire),
    command("tg.peek", (3, 4), CommandAccess::Role(Role::Read), CommandName::Peek),
    command("tg.release", (2, 2), CommandAccess::Role(Role::Decide), CommandName::Release),
    command("tg.renew", (3, 3), CommandAccess::Role(Role::Decide), CommandName::Renew),
    command(
        "cl.throttle",
        (5, 6),
        CommandAccess::Role(Role::Decide),
        CommandName::Throttle(ThrottleDialect::Cell),
    ),
    command(
        "throttle",
        (5, 6),
        CommandAccess::Role(Role::Decide),
        CommandName::Throttle(ThrottleDialect::Crab),
    ),
    command("ping", (1, 2), CommandAccess::Authenticated, CommandName::Ping),
    command("echo", (2, 2), CommandAccess::Authenticated, CommandName::Echo),
    command("hello", (1, UNBOUNDED), CommandAccess::Anonymous, CommandName::Hello),
    command("auth", (2, 3), CommandAccess::Anonymous, CommandName::Auth),
    command("quit", (1, UNBOUNDED), CommandAccess::Anonymous, CommandName::Quit),
    command("select", (2, 2), CommandAccess::Authenticated, CommandName::Select),
    command("command", (1, UNBOUNDED), CommandAccess::Authenticated, CommandName::Command),
    command("client", (2, UNBOUNDED), CommandAccess::Authenticated, CommandName::Client),
    command("info", (1, UNBOUNDED), CommandAccess::Authenticated, CommandName::Info),
];

impl CommandSpec {
    /// Looks up a command by name, ignoring case.
    pub fn named(name: &[u8]) -> Option<&'static CommandSpec> {
        // The common spelling of the most frequent command.
        if name == b"TG.ACQUIRE" {
            return COMMANDS.first();
        }
        COMMANDS.iter().find(|spec| spec.name.as_bytes().eq_ignore_ascii_case(name))
    }

    /// The arity as Redis defines it: exact, or minus the least number of arguments.
    pub fn arity(&self) -> i64 {
        let (least, most) = self.arguments;
        let least = i64::try_from(least).unwrap_or(i64::MAX);
        if self.arguments == (most, most) { least } else { -least }
    }

    /// Parses the arguments of this command; the first is its name.
    pub fn parse<'i>(&self, arguments: &FrameArguments<'i, '_>) -> Result<RespCommand<'i>, CommandError> {
        let (least, most) = self.arguments;
        if !(least..=most).contains(&arguments.len()) {
            return Err(self.wrong_arity());
        }
        let at = |index: usize| arguments.get(index).unwrap_or_default();
        Ok(match self.kind {
            CommandName::Acquire => RespCommand::Decide(parse_decide(Intent::Acquire, arguments)?),
            CommandName::Peek => RespCommand::Decide(parse_decide(Intent::Peek, arguments)?),
            CommandName::Release => RespCommand::Release { lease: at(1) },
            CommandName::Renew => {
                RespCommand::Renew { lease: at(1), ttl: Duration::from_millis(required_amount(at(2))?) }
            }
            CommandName::Throttle(dialect) => RespCommand::Throttle(parse_throttle(dialect, arguments)?),
            CommandName::Ping => RespCommand::Ping { message: arguments.get(1) },
            CommandName::Echo => RespCommand::Echo { message: at(1) },
            CommandName::Hello => RespCommand::Hello(parse_hello(arguments)?),
            CommandName::Auth => RespCommand::Auth { token: at(arguments.len() - 1) },
            CommandName::Quit => RespCommand::Quit,
            CommandName::Select => RespCommand::Select {
                index: integer(at(1)).ok_or_else(|| CommandError::err(NOT_AN_INTEGER))?,
            },
            CommandName::Command => RespCommand::Commands(parse_command_query(arguments)?),
            CommandName::Client => RespCommand::Client(parse_client(arguments)?),
            CommandName::Info => RespCommand::Info,
        })
    }

    fn wrong_arity(&self) -> CommandError {
        wrong_number(self.name)
    }
}

/// The error for an unknown command.
pub fn unknown_command(arguments: &FrameArguments<'_, '_>) -> CommandError {
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
    CommandError::err(text)
}

fn wrong_number(name: &str) -> CommandError {
    CommandError::err(format!("wrong number of arguments for '{name}' command"))
}

/// `limit_id limit_key [count] [REQ request_id]`; peek takes no request id.
fn parse_decide<'i>(
    intent: Intent,
    arguments: &FrameArguments<'i, '_>,
) -> Result<DecideArgs<'i>, CommandError> {
    let at = |index: usize| arguments.get(index).unwrap_or_default();
    let is_req = |index: usize| arguments.get(index).is_some_and(|word| word.eq_ignore_ascii_case(b"REQ"));
    let (count, request_id) = match arguments.len() {
        3 => (1, None),
        4 if !is_req(3) => (required_amount(at(3))?, None),
        5 if is_req(3) => (1, Some(at(4))),
        6 if is_req(4) => (required_amount(at(3))?, Some(at(5))),
        _ => return Err(CommandError::err(SYNTAX)),
    };
    let limit_id = std::str::from_utf8(at(1)).map_err(|_| CommandError {
        code: "NOLIMIT",
        text: format!("unknown limit '{}'", at(1)[..at(1).len().min(MAX_LIMIT_ID_BYTES)].escape_ascii())
            .into(),
    })?;
    if described_buckets::is_reserved(limit_id) {
        return Err(CommandError::err(RESERVED_ID_MESSAGE));
    }
    Ok(DecideArgs { intent, limit_id, key: at(2), count, request_id })
}

/// `key max_burst count period [quantity]`.
fn parse_throttle<'i>(
    dialect: ThrottleDialect,
    arguments: &FrameArguments<'i, '_>,
) -> Result<ThrottleArgs<'i>, CommandError> {
    let number = |index: usize| required_amount(arguments.get(index).unwrap_or_default());
    let at_least_one = |index: usize, name: &str| match number(index)? {
        0 => Err(CommandError::err(format!("{name} must be at least 1"))),
        number => Ok(number),
    };
    let capacity = match dialect {
        ThrottleDialect::Cell => {
            number(2)?.checked_add(1).ok_or_else(|| CommandError::err(NOT_AN_INTEGER))?
        }
        ThrottleDialect::Crab => at_least_one(2, "max_burst")?,
    };
    let bucket =
        BucketDescription { capacity, count: at_least_one(3, "count")?, period: at_least_one(4, "period")? };
    let quantity = if arguments.len() > 5 { number(5)? } else { 1 };
    Ok(ThrottleArgs { dialect, key: arguments.get(1).unwrap_or_default(), bucket, quantity })
}

/// `[version [AUTH name token] [SETNAME name]]`.
fn parse_hello<'i>(arguments: &FrameArguments<'i, '_>) -> Result<HelloArgs<'i>, CommandError> {
    let Some(version) = arguments.get(1) else { return Ok(HelloArgs::default()) };
    let version = integer(version)
        .ok_or_else(|| CommandError::err("Protocol version is not an integer or out of range"))?;
    if !(2..=3).contains(&version) {
        return Err(CommandError { code: "NOPROTO", text: "unsupported protocol version".into() });
    }
    let mut hello = HelloArgs { version: Some(version), ..HelloArgs::default() };
    let mut words = arguments.iter().skip(2);
    while let Some(option) = words.next() {
        let wrong = || CommandError::err(format!("Syntax error in HELLO option '{}'", option.escape_ascii()));
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

fn parse_command_query(arguments: &FrameArguments<'_, '_>) -> Result<CommandQuery, CommandError> {
    let Some(about) = arguments.get(1) else { return Ok(CommandQuery::All) };
    let is = |word: &str| about.eq_ignore_ascii_case(word.as_bytes());
    match arguments.len() {
        2 if is("COUNT") => Ok(CommandQuery::Count),
        2 if is("LIST") => Ok(CommandQuery::List),
        _ if is("INFO") => Ok(CommandQuery::Info),
        _ if is("DOCS") => Ok(CommandQuery::Docs),
        _ if is("COUNT") => Err(wrong_number("command|count")),
        _ if is("LIST") => Err(wrong_number("command|list")),
        _ => Err(unknown_subcommand(about)),
    }
}

fn parse_client<'i>(arguments: &FrameArguments<'i, '_>) -> Result<ClientCommand<'i>, CommandError> {
    let about = arguments.get(1).unwrap_or_default();
    let is = |word: &str| about.eq_ignore_ascii_case(word.as_bytes());
    let (client, takes) = if is("ID") {
        (ClientCommand::Id, 2)
    } else if is("SETNAME") {
        (ClientCommand::SetName(client_name(arguments.get(2).unwrap_or_default())?), 3)
    } else if is("GETNAME") {
        (ClientCommand::GetName, 2)
    } else if is("INFO") {
        (ClientCommand::Info, 2)
    } else if is("SETINFO") {
        (ClientCommand::Noted, 4)
    } else if is("NO-EVICT") || is("NO-TOUCH") {
        (ClientCommand::Noted, 3)
    } else {
        return Err(unknown_subcommand(about));
    };
    if arguments.len() == takes {
        return Ok(client);
    }
    let about = String::from_utf8_lossy(about).to_ascii_lowercase();
    Err(wrong_number(&format!("client|{about}")))
}

fn unknown_subcommand(part: &[u8]) -> CommandError {
    CommandError::err(format!("unknown subcommand '{}'", part.escape_ascii()))
}

fn client_name(name: &[u8]) -> Result<&[u8], CommandError> {
    if name.iter().all(u8::is_ascii_graphic) {
        Ok(name)
    } else {
        Err(CommandError::err("Client names cannot contain spaces, newlines or special characters."))
    }
}

fn required_amount(text: &[u8]) -> Result<Amount, CommandError> {
    amount(text).ok_or_else(|| CommandError::err(NOT_AN_INTEGER))
}

fn amount(text: &[u8]) -> Option<Amount> {
    parse_number(text)
}

fn integer(text: &[u8]) -> Option<i64> {
    match text.strip_prefix(b"-") {
        Some(digits) => {
            amount(digits).filter(|amount| *amount > 0).and_then(|it| 0i64.checked_sub_unsigned(it))
        }
        None => amount(text).and_then(|amount| i64::try_from(amount).ok()),
    }
}
