//! `tidegate limit`: add, change, show and delete limits of a running server.

use std::fmt::Write;

use serde::Deserialize;
use serde_json::json;
use serde_json::value::RawValue;
use tidegate::model::LimitSpec;
use tidegate_server::http::limit_as_json;

use super::client::{ServerClient, ServerReply};
use super::url::encoded;
use super::usage::UsageReply;
use super::{limit_source, table};
use crate::args::{AddArgs, DeleteArgs, GetArgs, LimitArgs, LimitCommand, ListArgs, ResetArgs, SetArgs};
use crate::{Failure, print_message, print_result};

/// Limits per request.
const LIMITS_PER_PAGE: usize = 500;

/// Runs a subcommand.
pub(crate) fn run(args: &LimitArgs) -> Result<(), Failure> {
    match &args.command {
        LimitCommand::Add(args) => add(args),
        LimitCommand::Set(args) => set(args),
        LimitCommand::Get(args) => get(args),
        LimitCommand::List(args) => list(args),
        LimitCommand::Delete(args) => delete(args),
        LimitCommand::Reset(args) => reset(args),
    }
}

fn add(args: &AddArgs) -> Result<(), Failure> {
    let limits = limit_source::limits(&args.source)?;
    let server = ServerClient::new(&args.server)?;
    send_each(&limits, "added", |limit| server.post("/v1/limits", &limit_as_json(limit)))
}

fn set(args: &SetArgs) -> Result<(), Failure> {
    let limits = limit_source::limits(&args.source)?;
    let version = args.if_version.as_deref();
    if version.is_some() && limits.len() > 1 {
        let why = format!("--if-version is for one limit, and there are {}", limits.len());
        return Err(Failure::BadInput(why));
    }
    let server = ServerClient::new(&args.server)?;
    send_each(&limits, "set", |limit| server.put(&path(&limit.id), &limit_as_json(limit), version))
}

/// Sends every limit and reports each outcome. Stops if the server is unreachable.
fn send_each(
    limits: &[LimitSpec],
    done: &str,
    send: impl Fn(&LimitSpec) -> Result<ServerReply, Failure>,
) -> Result<(), Failure> {
    let (mut failed, mut bad_input) = (0, false);
    for limit in limits {
        match send(limit) {
            Ok(answered) => print_result(&format!("{done} {}, version {}\n", limit.id, answered.version))?,
            Err(failure) if limits.len() == 1 || matches!(failure, Failure::Unreachable(_)) => {
                return Err(failure);
            }
            Err(failure) => {
                failed += 1;
                bad_input |= matches!(failure, Failure::BadInput(_));
                print_message(&format!("{}: {}", limit.id, failure.to_string().replace('\n', "\n  ")));
            }
        }
    }
    if failed == 0 {
        return Ok(());
    }
    let summary = format!("{} of {} limits were {done}", limits.len() - failed, limits.len());
    Err(if bad_input { Failure::BadInput(summary) } else { Failure::Failed(summary) })
}

fn delete(args: &DeleteArgs) -> Result<(), Failure> {
    ServerClient::new(&args.server)?.delete(&path(&args.id), args.if_version.as_deref())?;
    print_result(&format!("deleted {}\n", args.id))
}

fn reset(args: &ResetArgs) -> Result<(), Failure> {
    let body = json!({"limit_key": args.key});
    ServerClient::new(&args.server)?.post(&format!("{}/reset", path(&args.id)), &body.to_string())?;
    let key_text = args.key.as_ref().map(|key| format!(" for {key}")).unwrap_or_default();
    print_result(&format!("reset {}{key_text}\n", args.id))
}

fn list(args: &ListArgs) -> Result<(), Failure> {
    let server = ServerClient::new(&args.server)?;
    let prefix = args.prefix.as_deref().unwrap_or_default();
    let first = format!("/v1/limits?limit={LIMITS_PER_PAGE}&prefix={}", encoded(prefix));
    let mut limits = Vec::new();
    let mut next = Some(first.clone());
    while let Some(path) = next {
        let page: LimitPageReply = server.get(&path)?.read()?;
        limits.extend(page.limits);
        next = page.next.map(|after| format!("{first}&after={}", encoded(&after)));
    }
    if args.json {
        let written: Vec<_> = limits.iter().map(|limit| limit.get()).collect();
        return print_result(&format!("{{\"limits\":[{}]}}\n", written.join(",")));
    }
    if limits.is_empty() {
        print_message(if prefix.is_empty() { "there are no limits" } else { "there are no such limits" });
        return Ok(());
    }
    let rows: Result<Vec<_>, Failure> =
        limits.iter().map(|limit| LimitReply::read(limit).map(|it| it.row())).collect();
    print_result(&table::lines(["ID", "MODE", "ITEMS"], &rows?))
}

fn get(args: &GetArgs) -> Result<(), Failure> {
    let server = ServerClient::new(&args.server)?;
    let at = path(&args.id);
    let answered = server.get(&at)?;
    let usage = server.get(&format!("{at}/usage"))?;
    let of_key = match &args.key {
        Some(key) => Some(server.get(&format!("{at}/usage?limit_key={}", encoded(key)))?),
        None => None,
    };
    if args.json {
        let (limit, version) = (answered.text.trim_end(), &answered.version);
        let mut text =
            format!("{{\"limit\":{limit},\"version\":\"{version}\",\"usage\":{}", usage.text.trim_end());
        if let (Some(key), Some(of_key)) = (&args.key, &of_key) {
            let _infallible =
                write!(text, ",\"limit_key\":{},\"key_usage\":{}", json!(key), of_key.text.trim_end());
        }
        return print_result(&format!("{text}}}\n"));
    }
    let limit_reply: LimitReply = answered.read()?;
    let mut counted: UsageReply = usage.read()?;
    if let Some(of_key) = of_key {
        counted.policy_status.extend(of_key.read::<UsageReply>()?.policy_status);
    }
    print_result(&limit_reply.whole(&answered.version, &counted))
}

fn path(id: &str) -> String {
    format!("/v1/limits/{}", encoded(id))
}

#[derive(Deserialize)]
struct LimitPageReply {
    limits: Vec<Box<RawValue>>,
    next: Option<String>,
}

/// The parts of a limit that are shown.
#[derive(Debug, Deserialize)]
struct LimitReply {
    id: String,
    description: Option<String>,
    time_zone: String,
    starts_at: Option<String>,
    ends_at: Option<String>,
    mode: String,
    items: Vec<ItemReply>,
    overrides: Vec<OverrideReply>,
}

#[derive(Debug, Deserialize)]
struct ItemReply {
    name: Option<String>,
    policy: String,
    limit: i64,
    per: String,
    window: Option<String>,
    burst: Option<u64>,
}

#[derive(Debug, Deserialize)]
struct OverrideReply {
    key: String,
    item: String,
    limit: i64,
    until: Option<String>,
}

impl LimitReply {
    fn read(written: &RawValue) -> Result<LimitReply, Failure> {
        let cannot = |error| Failure::Failed(format!("cannot parse the server's limit: {error}"));
        serde_json::from_str(written.get()).map_err(cannot)
    }

    /// A row of the list.
    fn row(&self) -> [String; 3] {
        let items: Vec<_> =
            self.items.iter().map(|item| format!("{} {}", item.name(), item.most())).collect();
        [self.id.clone(), self.mode.clone(), items.join(", ")]
    }

    /// The full text.
    fn whole(&self, version: &str, counted: &UsageReply) -> String {
        let mut out = format!("{}  {}  version {version}\n", self.id, self.mode);
        let utc = self.time_zone == "UTC";
        for (what, value) in [
            ("", self.description.as_ref()),
            ("time zone ", Some(&self.time_zone).filter(|_| !utc)),
            ("from ", self.starts_at.as_ref()),
            ("until ", self.ends_at.as_ref()),
        ] {
            if let Some(value) = value {
                let _infallible = writeln!(out, "{what}{}", table::harmless(value));
            }
        }
        let rows: Vec<_> = self.items.iter().map(|item| item.row(counted)).collect();
        out.push('\n');
        out.push_str(&table::lines(["ITEM", " LIMIT", " USED", "LAST CHARGED"], &rows));
        if !self.overrides.is_empty() {
            let rows: Vec<_> = self.overrides.iter().map(OverrideReply::row).collect();
            out.push('\n');
            out.push_str(&table::lines(["OVERRIDE FOR", "ITEM", " LIMIT", "UNTIL"], &rows));
        }
        out
    }
}

impl ItemReply {
    /// The name: given, or derived.
    fn name(&self) -> String {
        let ItemReply { name, policy, per, window, .. } = self;
        match (name, window) {
            (Some(name), _) => name.clone(),
            (None, Some(window)) => format!("{per}/{policy}-{window}"),
            (None, None) => format!("{per}/{policy}"),
        }
    }

    fn most(&self) -> String {
        let burst = self.burst.map(|burst| format!(" burst {burst}")).unwrap_or_default();
        format!("{}{burst}", capacity(self.limit))
    }

    /// A row of the items. A dash stands for usage that is counted per key.
    fn row(&self, counted: &UsageReply) -> [String; 4] {
        let name = self.name();
        let status = counted.of(&name);
        let used = status.map_or("-".to_owned(), |status| status.current_count.to_string());
        let last = status.and_then(|status| status.last_time.clone()).unwrap_or_default();
        [name, self.most(), used, last]
    }
}

impl OverrideReply {
    fn row(&self) -> [String; 4] {
        let until = self.until.clone().unwrap_or_default();
        [table::harmless(&self.key), self.item.clone(), capacity(self.limit), until]
    }
}

fn capacity(limit: i64) -> String {
    if limit < 0 { "unlimited".to_owned() } else { limit.to_string() }
}
