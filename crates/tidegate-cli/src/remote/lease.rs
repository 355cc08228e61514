//! `tidegate release`, `renew` and `settle`.

use serde::Deserialize;
use serde_json::{Value, json};

use super::acquire::milliseconds;
use super::client::{ServerClient, ServerReply};
use crate::args::{ReleaseArgs, RenewArgs, SettleArgs};
use crate::{Failure, print_result};

#[derive(Deserialize)]
struct ReleaseReply {
    released: bool,
}

#[derive(Deserialize)]
struct RenewReply {
    expires_at: String,
}

/// Releases a lease. An unknown lease is a failure: another client may hold its units by now.
pub(crate) fn release(args: &ReleaseArgs) -> Result<(), Failure> {
    let body = json!({"lease_id": args.lease});
    let reply = ServerClient::new(&args.server)?.post("/v1/release", &body.to_string())?;
    let ReleaseReply { released } = reply.read()?;
    print_reply(&reply, args.json, || "released".to_owned(), released)?;
    if released {
        return Ok(());
    }
    let why = "not released: the lease was released before, has expired, or was never granted";
    Err(Failure::Failed(why.to_owned()))
}

/// Renews a lease.
pub(crate) fn renew(args: &RenewArgs) -> Result<(), Failure> {
    let mut body = json!({"lease_id": args.lease});
    if let Some(ttl) = args.ttl {
        body["ttl_ms"] = milliseconds(ttl).into();
    }
    let reply = ServerClient::new(&args.server)?.post("/v1/renew", &body.to_string())?;
    let RenewReply { expires_at } = reply.read()?;
    print_reply(&reply, args.json, || format!("renewed until {expires_at}"), true)
}

/// Settles a held charge to its actual cost.
pub(crate) fn settle(args: &SettleArgs) -> Result<(), Failure> {
    let actual: Value = match &*args.actual {
        [every] => (*every).into(),
        each => each.into(),
    };
    let body = json!({"lease_id": args.lease, "actual": actual});
    let reply = ServerClient::new(&args.server)?.post("/v1/settle", &body.to_string())?;
    print_reply(&reply, args.json, || "settled".to_owned(), true)
}

/// Prints the JSON reply, or text for a success.
fn print_reply(
    reply: &ServerReply,
    json: bool,
    words: impl Fn() -> String,
    done: bool,
) -> Result<(), Failure> {
    match (json, done) {
        (true, _) => print_result(&format!("{}\n", reply.text.trim_end())),
        (false, true) => print_result(&format!("{}\n", words())),
        (false, false) => Ok(()),
    }
}
