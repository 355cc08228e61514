//! Store URLs: `postgres://USER:PASSWORD@HOST:PORT/DATABASE?schema=NAME&…`.
//!
//! | parameter | meaning | default |
//! |---|---|---|
//! | `schema` | the schema of the tables | `tidegate` |
//! | `pool_size` | connections for decisions | 4 |
//! | `connect_timeout` | timeout of a connection attempt, in seconds | 3 |
//! | `lock_timeout_ms`, `statement_timeout_ms` | longest wait for a lock, longest run of a statement | 1000, 2000 |
//! | `sslmode` | `disable`, `prefer`, `require`, `verify-full` | `prefer` |
//! | `sslrootcert` | a file with the trusted certificates | the system's |
//!
//! tokio-postgres handles all other parameters (`application_name`, several hosts, `target_session_attrs`). Messages never show a
//! password: they quote only other parts of the URL. If an extra `@`, or one after the `?`, makes it unclear which part is the
//! password, they quote nothing.

use std::fmt;
use std::path::PathBuf;
use std::str::FromStr;
use std::time::Duration;

use tokio_postgres::Config;
use tokio_postgres::config::{Host, SslMode};

/// The default schema.
pub const DEFAULT_SCHEMA: &str = "tidegate";
/// The longest schema name that PostgreSQL keeps, in bytes.
pub const MAX_SCHEMA_NAME_BYTES: usize = 63;
/// The default number of connections for decisions.
pub const DEFAULT_POOL_SIZE: usize = 4;
/// The largest number of connections for decisions.
pub const MAX_POOL_SIZE: usize = 64;
/// Rows are found by index, one by one. For a table of some thousand rows the planner would prefer a sequential scan, which is
/// cheaper by its estimate and slower in fact, more so as the table grows. JIT compilation never pays off for these short
/// statements, but the disabled plan types raise their estimated cost above its threshold.
const PLANNER_OPTIONS: &str =
    "-c enable_seqscan=off -c enable_hashjoin=off -c enable_mergejoin=off -c jit=off";
/// The default timeout of a connection attempt.
const DEFAULT_CONNECT_TIMEOUT: Duration = Duration::from_secs(3);
/// The parameters that this module reads.
const OWN: [&str; 7] = [
    "schema",
    "pool_size",
    "connect_timeout",
    "lock_timeout_ms",
    "statement_timeout_ms",
    "sslmode",
    "sslrootcert",
];

/// The connection options of a store.
#[derive(Clone)]
pub struct PostgresOptions {
    /// The configuration of tokio-postgres.
    pub(crate) config: Config,
    /// The schema of the tables.
    pub schema: String,
    /// The number of connections for decisions.
    pub pool_size: usize,
    /// The longest wait for a lock.
    pub lock_timeout: Duration,
    /// The longest run of a statement.
    pub statement_timeout: Duration,
    pub(crate) tls: TlsMode,
}

/// Whether to encrypt and what to trust.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) enum TlsMode {
    /// No encryption.
    Off,
    /// Encrypt if the server can, without verification.
    Unverified,
    /// Verify the certificate against this file, or against the system's certificates.
    Verified(Option<PathBuf>),
}

/// An error in a URL, without its password.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct InvalidUrl(pub String);

impl fmt::Display for InvalidUrl {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0)
    }
}

impl std::error::Error for InvalidUrl {}

impl PostgresOptions {
    /// Parses a URL.
    pub fn parse(url: &str) -> Result<PostgresOptions, InvalidUrl> {
        let scheme = ["postgres://", "postgresql://"].into_iter().find(|scheme| url.starts_with(scheme));
        if scheme.is_none() {
            return Err(InvalidUrl(usage_message()));
        }
        let (base, query) = url.split_once('?').map_or((url, ""), |(base, query)| (base, query));
        if query.contains('@') || base.matches('@').count() > 1 {
            let means = "in a password write %3F for a ? and %40 for an @";
            return Err(InvalidUrl(format!("has an @ where none is expected; {means}")));
        }
        check_escapes(base)?;
        let mut own = UrlParameters::default();
        let mut rest: Vec<&str> = Vec::new();
        let mut seen_names: Vec<&str> = Vec::new();
        for pair in query.split('&').filter(|pair| !pair.is_empty()) {
            let (name, value) = pair.split_once('=').unwrap_or((pair, ""));
            if !own.take(name, value)? {
                rest.push(pair);
            } else if seen_names.contains(&name) {
                return Err(InvalidUrl(format!("has {name} twice")));
            } else {
                seen_names.push(name);
            }
        }
        let joint = if rest.is_empty() { "" } else { "?" };
        let plain = format!("{base}{joint}{}", rest.join("&"));
        let mut config =
            Config::from_str(&plain).map_err(|_| InvalidUrl(describe_unparsable(base, &rest)))?;
        if config.get_hosts().is_empty() && config.get_hostaddrs().is_empty() {
            return Err(InvalidUrl("names no host; write postgres://USER@HOST/DATABASE".to_owned()));
        }
        if config.get_user().is_none_or(str::is_empty) {
            return Err(InvalidUrl("names no user; write postgres://USER@HOST/DATABASE".to_owned()));
        }
        if config.get_application_name().is_none() {
            config.application_name("tidegate");
        }
        own.options(config)
    }

    /// Sets the password if the URL has none.
    #[must_use]
    pub fn with_default_password(mut self, password: &str) -> PostgresOptions {
        if self.config.get_password().is_none() {
            self.config.password(password);
        }
        self
    }

    /// The URL without user and password.
    pub fn location(&self) -> String {
        let host = match self.config.get_hosts().first() {
            Some(Host::Tcp(name)) => name.clone(),
            Some(Host::Unix(path)) => path.display().to_string(),
            None => self.config.get_hostaddrs().first().map(ToString::to_string).unwrap_or_default(),
        };
        let port = self.config.get_ports().first().copied().unwrap_or(5432);
        let database = self.config.get_dbname().or(self.config.get_user()).unwrap_or_default();
        format!("postgres://{host}:{port}/{database}?schema={}", self.schema)
    }

    /// The longest time to connect. Each host has its own timeout, one after the other.
    pub(crate) fn total_connect_timeout(&self) -> Duration {
        let hosts = self.config.get_hosts().len().max(self.config.get_hostaddrs().len()).max(1);
        let each = self.config.get_connect_timeout().copied().unwrap_or(DEFAULT_CONNECT_TIMEOUT);
        each.saturating_mul(u32::try_from(hosts).unwrap_or(u32::MAX))
    }

    /// The user name.
    pub(crate) fn user(&self) -> &str {
        self.config.get_user().unwrap_or_default()
    }
}

impl fmt::Debug for PostgresOptions {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("PostgresOptions").field("place", &self.location()).finish_non_exhaustive()
    }
}

/// The parameters that this module reads.
struct UrlParameters {
    schema: String,
    pool_size: usize,
    connect_timeout: Duration,
    lock_timeout: Duration,
    statement_timeout: Duration,
    mode: SslModeParameter,
    roots: Option<PathBuf>,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum SslModeParameter {
    Disable,
    Prefer,
    Require,
    VerifyFull,
}

impl Default for UrlParameters {
    fn default() -> UrlParameters {
        UrlParameters {
            schema: DEFAULT_SCHEMA.to_owned(),
            pool_size: DEFAULT_POOL_SIZE,
            connect_timeout: DEFAULT_CONNECT_TIMEOUT,
            lock_timeout: Duration::from_secs(1),
            statement_timeout: Duration::from_secs(2),
            mode: SslModeParameter::Prefer,
            roots: None,
        }
    }
}

impl UrlParameters {
    /// Reads a parameter. Returns whether it is known here.
    fn take(&mut self, name: &str, value: &str) -> Result<bool, InvalidUrl> {
        let value = percent_decode(name, value)?;
        match name {
            "schema" => self.schema = schema(value)?,
            "pool_size" => self.pool_size = number(name, &value, 1, MAX_POOL_SIZE as u64)?,
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
                    "disable" => SslModeParameter::Disable,
                    "prefer" => SslModeParameter::Prefer,
                    "require" => SslModeParameter::Require,
                    "verify-full" => SslModeParameter::VerifyFull,
                    _ => {
                        let allowed = "disable, prefer, require or verify-full";
                        return Err(InvalidUrl(format!("sslmode must be {allowed}, found '{value}'")));
                    }
                };
            }
            _ => return Ok(false),
        }
        Ok(true)
    }

    fn options(self, mut config: Config) -> Result<PostgresOptions, InvalidUrl> {
        config.ssl_mode(match self.mode {
            SslModeParameter::Disable => SslMode::Disable,
            SslModeParameter::Prefer => SslMode::Prefer,
            SslModeParameter::Require | SslModeParameter::VerifyFull => SslMode::Require,
        });
        let tls = match (self.mode, self.roots) {
            (SslModeParameter::Disable, None) => TlsMode::Off,
            (SslModeParameter::Disable, Some(_)) => {
                return Err(InvalidUrl("sslrootcert cannot be used with sslmode=disable".to_owned()));
            }
            (SslModeParameter::VerifyFull, roots) => TlsMode::Verified(roots),
            (_, Some(roots)) => TlsMode::Verified(Some(roots)),
            (_, None) => TlsMode::Unverified,
        };
        // Session settings that apply from the first statement on.
        let (lock, statement) = (self.lock_timeout.as_millis(), self.statement_timeout.as_millis());
        let given = config.get_options().map(|given| format!("{given} ")).unwrap_or_default();
        config.options(format!(
            "{given}-c search_path=\"{}\" -c lock_timeout={lock} -c statement_timeout={statement} \
             -c idle_in_transaction_session_timeout=30000 -c timezone=UTC {PLANNER_OPTIONS}",
            self.schema.replace('\\', "\\\\").replace(' ', "\\ ")
        ));
        config.connect_timeout(self.connect_timeout);
        Ok(PostgresOptions {
            config,
            schema: self.schema,
            pool_size: self.pool_size,
            lock_timeout: self.lock_timeout,
            statement_timeout: self.statement_timeout,
            tls,
        })
    }
}

fn schema(name: String) -> Result<String, InvalidUrl> {
    let fine = |c: char| c.is_ascii_alphanumeric() || c == '_' || c == '-';
    if name.is_empty()
        || name.len() > MAX_SCHEMA_NAME_BYTES
        || !name.chars().all(fine)
        || name.starts_with("pg_")
    {
        let allowed =
            format!("1 to {MAX_SCHEMA_NAME_BYTES} letters, digits, - and _, not beginning with pg_");
        return Err(InvalidUrl(format!("schema must be {allowed}, found '{}'", name.escape_debug())));
    }
    Ok(name)
}

fn number<N: TryFrom<u64>>(name: &str, value: &str, least: u64, most: u64) -> Result<N, InvalidUrl> {
    let number = value.parse::<u64>().ok().filter(|number| (least..=most).contains(number));
    let number = number.and_then(|number| N::try_from(number).ok());
    number.ok_or_else(|| {
        InvalidUrl(format!(
            "{name} must be a whole number from {least} to {most}, found '{}'",
            value.escape_debug()
        ))
    })
}

/// Refuses a `%` without two digits, which would silently become part of a password.
fn check_escapes(base: &str) -> Result<(), InvalidUrl> {
    let is_digit = |at: usize| base.as_bytes().get(at).is_some_and(u8::is_ascii_hexdigit);
    let is_odd = |(at, _): (usize, &str)| !is_digit(at + 1) || !is_digit(at + 2);
    if base.match_indices('%').any(is_odd) {
        let means = "write %25 for a % in a user or a password";
        return Err(InvalidUrl(format!("has a % that is not followed by two hexadecimal digits; {means}")));
    }
    Ok(())
}

/// Describes which part of the URL is invalid. Uses only parts after the `@`, which cannot contain the password.
fn describe_unparsable(base: &str, pairs: &[&str]) -> String {
    let Some((_, place)) = base.rsplit_once('@') else { return usage_message() };
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
    let Some(odd) = pairs.iter().find(is_odd) else { return usage_message() };
    let name = odd.split('=').next().unwrap_or_default();
    let meant = tidegate_config::text::suggestion(name, OWN);
    format!(
        "has the parameter '{}', which is unknown or has an invalid value{meant}; {}",
        name.escape_debug(),
        known_parameters()
    )
}

/// A generic message, because the parser's message and unknown names may contain parts of a password.
fn usage_message() -> String {
    format!(
        "cannot be parsed; write postgres://USER:PASSWORD@HOST:PORT/DATABASE?PARAMETER=VALUE&… {}",
        known_parameters()
    )
}

fn known_parameters() -> String {
    format!("with the parameters {}, or those that libpq knows, such as application_name", OWN.join(", "))
}

/// Decodes `%XX` escapes.
fn percent_decode(name: &str, value: &str) -> Result<String, InvalidUrl> {
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
        bytes.push(
            byte.ok_or_else(|| InvalidUrl(format!("{name} has a % that is not followed by two digits")))?,
        );
        rest = &after[2..];
    }
    String::from_utf8(bytes).map_err(|_| InvalidUrl(format!("{name} is not UTF-8")))
}
