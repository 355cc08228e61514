//! Names of stores: `postgres://USER:PASSWORD@HOST:PORT/DATABASE?schema=NAME&…`.
//!
//! | parameter | means | unless said |
//! |---|---|---|
//! | `schema` | where the tables are | `tidegate` |
//! | `pool_size` | connections that decide | 4 |
//! | `connect_timeout` | seconds until a connection attempt is given up | 3 |
//! | `lock_timeout_ms`, `statement_timeout_ms` | how long the database may wait for a lock, or work on a statement | 1000, 2000 |
//! | `sslmode` | `disable`, `prefer`, `require`, `verify-full` | `prefer` |
//! | `sslrootcert` | a file with the certificates that are trusted | the system's |
//!
//! Everything else is what `libpq` and tokio-postgres know (`application_name`, several hosts, `target_session_attrs`). A password is never
//! shown: whatever is said about a URL is made of its other parts. Where it cannot be told which part is the password, because there is an `@`
//! too many or one behind the `?`, nothing is repeated.

use std::fmt;
use std::path::PathBuf;
use std::str::FromStr;
use std::time::Duration;

use tokio_postgres::Config;
use tokio_postgres::config::{Host, SslMode};

/// The schema unless said.
pub const USUAL_SCHEMA: &str = "tidegate";
/// The longest name of a schema: what the database keeps of one.
pub const LONGEST_SCHEMA: usize = 63;
/// Connections that decide, unless said.
pub const USUAL_POOL: usize = 4;
/// The most connections that decide.
pub const LARGEST_POOL: usize = 64;
/// Rows are found by their names, one by one. For the rows of a sitting in a table of some thousands the planner would rather read all of it
/// each time, which on paper is less and takes longer, and more so with every row that is stored. And nothing here runs long enough to be worth
/// compiling, which the planner, told to avoid what it sometimes cannot, would think of everything.
const BY_NAME: &str = "-c enable_seqscan=off -c enable_hashjoin=off -c enable_mergejoin=off -c jit=off";
/// How long a connection attempt may take, unless said.
const USUAL_CONNECT: Duration = Duration::from_secs(3);
/// The parameters that are read here.
const OWN: [&str; 7] = [
    "schema",
    "pool_size",
    "connect_timeout",
    "lock_timeout_ms",
    "statement_timeout_ms",
    "sslmode",
    "sslrootcert",
];

/// Where the database is and how it is spoken to.
#[derive(Clone)]
pub struct Options {
    /// How it is reached.
    pub(crate) config: Config,
    /// Where the tables are.
    pub schema: String,
    /// Connections that decide.
    pub pool_size: usize,
    /// How long the database may wait for a lock.
    pub lock_timeout: Duration,
    /// How long it may work on a statement.
    pub statement_timeout: Duration,
    pub(crate) tls: Tls,
}

/// Whether and whom to trust.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) enum Tls {
    /// No encryption.
    Off,
    /// Encryption, if there is any; the server is whoever answers.
    Unverified,
    /// The server shows a certificate for its name that these sign; the system's if there is no file.
    Verified(Option<PathBuf>),
}

/// What is wrong with a URL, without its password.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct BadUrl(pub String);

impl fmt::Display for BadUrl {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0)
    }
}

impl std::error::Error for BadUrl {}

impl Options {
    /// Reads a URL.
    pub fn parse(url: &str) -> Result<Options, BadUrl> {
        let scheme = ["postgres://", "postgresql://"].into_iter().find(|scheme| url.starts_with(scheme));
        if scheme.is_none() {
            return Err(BadUrl(not_understood()));
        }
        let (base, query) = url.split_once('?').map_or((url, ""), |(base, query)| (base, query));
        if query.contains('@') || base.matches('@').count() > 1 {
            let means = "in a password write %3F for a ? and %40 for an @";
            return Err(BadUrl(format!("has an @ where none is expected; {means}")));
        }
        check_escapes(base)?;
        let mut own = Own::default();
        let mut rest: Vec<&str> = Vec::new();
        let mut said: Vec<&str> = Vec::new();
        for pair in query.split('&').filter(|pair| !pair.is_empty()) {
            let (name, value) = pair.split_once('=').unwrap_or((pair, ""));
            if !own.take(name, value)? {
                rest.push(pair);
            } else if said.contains(&name) {
                return Err(BadUrl(format!("says {name} twice")));
            } else {
                said.push(name);
            }
        }
        let joint = if rest.is_empty() { "" } else { "?" };
        let plain = format!("{base}{joint}{}", rest.join("&"));
        let mut config = Config::from_str(&plain).map_err(|_| BadUrl(misunderstood(base, &rest)))?;
        if config.get_hosts().is_empty() && config.get_hostaddrs().is_empty() {
            return Err(BadUrl("names no host; write postgres://USER@HOST/DATABASE".to_owned()));
        }
        if config.get_user().is_none_or(str::is_empty) {
            return Err(BadUrl("names no user; write postgres://USER@HOST/DATABASE".to_owned()));
        }
        if config.get_application_name().is_none() {
            config.application_name("tidegate");
        }
        own.options(config)
    }

    /// The same, with this password if the URL has none.
    #[must_use]
    pub fn or_password(mut self, password: &str) -> Options {
        if self.config.get_password().is_none() {
            self.config.password(password);
        }
        self
    }

    /// Where it is, without who and by what password.
    pub fn place(&self) -> String {
        let host = match self.config.get_hosts().first() {
            Some(Host::Tcp(name)) => name.clone(),
            Some(Host::Unix(path)) => path.display().to_string(),
            None => self.config.get_hostaddrs().first().map(ToString::to_string).unwrap_or_default(),
        };
        let port = self.config.get_ports().first().copied().unwrap_or(5432);
        let database = self.config.get_dbname().or(self.config.get_user()).unwrap_or_default();
        format!("postgres://{host}:{port}/{database}?schema={}", self.schema)
    }

    /// How long a connection may take to be made: each host has its time, one after the other.
    pub(crate) fn connecting(&self) -> Duration {
        let hosts = self.config.get_hosts().len().max(self.config.get_hostaddrs().len()).max(1);
        let each = self.config.get_connect_timeout().copied().unwrap_or(USUAL_CONNECT);
        each.saturating_mul(u32::try_from(hosts).unwrap_or(u32::MAX))
    }

    /// The user that connects.
    pub(crate) fn user(&self) -> &str {
        self.config.get_user().unwrap_or_default()
    }
}

impl fmt::Debug for Options {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Options").field("place", &self.place()).finish_non_exhaustive()
    }
}

/// The parameters that are ours.
struct Own {
    schema: String,
    pool_size: usize,
    connect_timeout: Duration,
    lock_timeout: Duration,
    statement_timeout: Duration,
    mode: Mode,
    roots: Option<PathBuf>,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Mode {
    Disable,
    Prefer,
    Require,
    VerifyFull,
}

impl Default for Own {
    fn default() -> Own {
        Own {
            schema: USUAL_SCHEMA.to_owned(),
            pool_size: USUAL_POOL,
            connect_timeout: USUAL_CONNECT,
            lock_timeout: Duration::from_secs(1),
            statement_timeout: Duration::from_secs(2),
            mode: Mode::Prefer,
            roots: None,
        }
    }
}

impl Own {
    /// Whether it was one of ours.
    fn take(&mut self, name: &str, value: &str) -> Result<bool, BadUrl> {
        let value = decoded(name, value)?;
        match name {
            "schema" => self.schema = schema(value)?,
            "pool_size" => self.pool_size = number(name, &value, 1, LARGEST_POOL as u64)?,
            "connect_timeout" => {
                self.connect_timeout = Duration::from_secs(number(name, &value, 1, 3600)?);
            }
            "lock_timeout_ms" => {
                self.lock_timeout = Duration::from_millis(number(name, &value, 1, 600_000)?);
            }
            "statement_timeout_ms" => {
                self.statement_timeout = Duration::from_millis(number(name, &value, 1, 600_000)?);
            }
            "sslrootcert" => self.roots = Some(PathBuf::from(value)),
            "sslmode" => {
                self.mode = match value.as_str() {
                    "disable" => Mode::Disable,
                    "prefer" => Mode::Prefer,
                    "require" => Mode::Require,
                    "verify-full" => Mode::VerifyFull,
                    _ => {
                        let allowed = "disable, prefer, require or verify-full";
                        return Err(BadUrl(format!("sslmode must be {allowed}, found '{value}'")));
                    }
                };
            }
            _ => return Ok(false),
        }
        Ok(true)
    }

    fn options(self, mut config: Config) -> Result<Options, BadUrl> {
        config.ssl_mode(match self.mode {
            Mode::Disable => SslMode::Disable,
            Mode::Prefer => SslMode::Prefer,
            Mode::Require | Mode::VerifyFull => SslMode::Require,
        });
        let tls = match (self.mode, self.roots) {
            (Mode::Disable, None) => Tls::Off,
            (Mode::Disable, Some(_)) => {
                return Err(BadUrl("sslrootcert is of no use with sslmode=disable".to_owned()));
            }
            (Mode::VerifyFull, roots) => Tls::Verified(roots),
            (_, Some(roots)) => Tls::Verified(Some(roots)),
            (_, None) => Tls::Unverified,
        };
        // What the database is to hold itself to, from the first statement on.
        let (lock, statement) = (self.lock_timeout.as_millis(), self.statement_timeout.as_millis());
        let said = config.get_options().map(|said| format!("{said} ")).unwrap_or_default();
        config.options(format!(
            "{said}-c search_path=\"{}\" -c lock_timeout={lock} -c statement_timeout={statement} \
             -c idle_in_transaction_session_timeout=30000 -c timezone=UTC {BY_NAME}",
            self.schema.replace('\\', "\\\\").replace(' ', "\\ ")
        ));
        config.connect_timeout(self.connect_timeout);
        Ok(Options {
            config,
            schema: self.schema,
            pool_size: self.pool_size,
            lock_timeout: self.lock_timeout,
            statement_timeout: self.statement_timeout,
            tls,
        })
    }
}

fn schema(name: String) -> Result<String, BadUrl> {
    let fine = |c: char| c.is_ascii_alphanumeric() || c == '_' || c == '-';
    if name.is_empty() || name.len() > LONGEST_SCHEMA || !name.chars().all(fine) || name.starts_with("pg_") {
        let allowed = format!("1 to {LONGEST_SCHEMA} letters, digits, - and _, not beginning with pg_");
        return Err(BadUrl(format!("schema must be {allowed}, found '{}'", name.escape_debug())));
    }
    Ok(name)
}

fn number<N: TryFrom<u64>>(name: &str, value: &str, least: u64, most: u64) -> Result<N, BadUrl> {
    let number = value.parse::<u64>().ok().filter(|number| (least..=most).contains(number));
    let number = number.and_then(|number| N::try_from(number).ok());
    number.ok_or_else(|| {
        BadUrl(format!(
            "{name} must be a whole number from {least} to {most}, found '{}'",
            value.escape_debug()
        ))
    })
}

/// A `%` that stands for nothing would be taken for itself, in a password that nobody can look at.
fn check_escapes(base: &str) -> Result<(), BadUrl> {
    let is_digit = |at: usize| base.as_bytes().get(at).is_some_and(u8::is_ascii_hexdigit);
    let is_odd = |(at, _): (usize, &str)| !is_digit(at + 1) || !is_digit(at + 2);
    if base.match_indices('%').any(is_odd) {
        let means = "write %25 for a % in a user or a password";
        return Err(BadUrl(format!("has a % without two hexadecimal digits behind it; {means}")));
    }
    Ok(())
}

/// What in particular is not understood, as far as that cannot be a part of a password: what is behind the `@`.
fn misunderstood(base: &str, pairs: &[&str]) -> String {
    let Some((_, place)) = base.rsplit_once('@') else { return not_understood() };
    let hosts = place.split('/').next().unwrap_or_default();
    let ports =
        hosts.split(',').filter_map(|host| host.rsplit_once(':')).filter(|(_, port)| !port.ends_with(']'));
    if let Some((_, port)) = ports.into_iter().find(|(_, port)| port.parse::<u16>().is_err()) {
        return format!(
            "has a port that must be a whole number from 1 to 65535, found '{}'",
            port.escape_debug()
        );
    }
    let is_odd = |pair: &&&str| Config::from_str(&format!("postgres://user@host/database?{pair}")).is_err();
    let Some(odd) = pairs.iter().find(is_odd) else { return not_understood() };
    let name = odd.split('=').next().unwrap_or_default();
    let meant = tidegate_config::text::suggestion(name, OWN);
    format!(
        "has the parameter '{}', which is not known or has no such value{meant}; {}",
        name.escape_debug(),
        known()
    )
}

/// The parser's own words, and the names of parameters it does not know, may be parts of a password.
fn not_understood() -> String {
    format!(
        "cannot be understood; write postgres://USER:PASSWORD@HOST:PORT/DATABASE?PARAMETER=VALUE&… {}",
        known()
    )
}

fn known() -> String {
    format!("with the parameters {}, or those that libpq knows, such as application_name", OWN.join(", "))
}

/// A value with `%` and two digits put back to the byte they stand for.
fn decoded(name: &str, value: &str) -> Result<String, BadUrl> {
    let mut bytes = Vec::with_capacity(value.len());
    let mut rest = value.as_bytes();
    while let [first, after @ ..] = rest {
        rest = after;
        if *first != b'%' {
            bytes.push(*first);
            continue;
        }
        let digits = after.get(..2).and_then(|digits| std::str::from_utf8(digits).ok());
        let byte = digits.and_then(|digits| u8::from_str_radix(digits, 16).ok());
        bytes.push(byte.ok_or_else(|| BadUrl(format!("{name} has a % without two digits behind it")))?);
        rest = &after[2..];
    }
    String::from_utf8(bytes).map_err(|_| BadUrl(format!("{name} is not UTF-8")))
}
