//! `tidegate release`, `renew` and `settle`: what becomes of a lease.

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

/// Gives a lease back. One that was not there any more is a failure: somebody else may have what it held.
pub(crate) fn release(args: &ReleaseArgs) -> Result<(), Failure> {
    let body = json!({"lease_id": args.lease});
    let reply = ServerClient::new(&args.server)?.post("/v1/release", &body.to_string())?;
    let ReleaseReply { released } = reply.read()?;
    print_reply(&reply, args.json, || "released".to_owned(), released)?;
    if released {
        return Ok(());
    }
    let why = "not released: the lease was given back before, has lapsed, or was never granted";
    Err(Failure::Failed(why.to_owned()))
}

/// Moves a lease's end.
pub(crate) fn renew(args: &RenewArgs) -> Result<(), Failure> {
    let mut body = json!({"lease_id": args.lease});
    if let Some(ttl) = args.ttl {
        body["ttl_ms"] = milliseconds(ttl).into();
    }
    let reply = ServerClient::new(&args.server)?.post("/v1/renew", &body.to_string())?;
    let RenewReply { expires_at } = reply.read()?;
    print_reply(&reply, args.json, || format!("renewed until {expires_at}"), true)
}

/// Corrects a held charge to its true cost.
pub(crate) fn settle(args: &SettleArgs) -> Result<(), Failure> {
    let actual: Value = match &*args.actual {
        [every] => (*every).into(),
        each => each.into(),
    };
    let body = json!({"lease_id": args.lease, "actual": actual});
    let reply = ServerClient::new(&args.server)?.post("/v1/settle", &body.to_string())?;
    print_reply(&reply, args.json, || "settled".to_owned(), true)
}

/// The answer as it is, or in words if there is something to say.
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
