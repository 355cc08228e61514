//! `tidegate release`, `renew` and `settle`: what becomes of a lease.

use serde::Deserialize;
use serde_json::{Value, json};

use super::acquire::milliseconds;
use super::client::{Answered, Server};
use crate::args::{ReleaseArgs, RenewArgs, SettleArgs};
use crate::{Failure, answer};

#[derive(Deserialize)]
struct Released {
    released: bool,
}

#[derive(Deserialize)]
struct Renewed {
    expires_at: String,
}

/// Gives a lease back. One that was not there any more is a failure: somebody else may have what it held.
pub(crate) fn release(args: &ReleaseArgs) -> Result<(), Failure> {
    let body = json!({"lease_id": args.lease});
    let answered = Server::new(&args.server)?.post("/v1/release", &body.to_string())?;
    let Released { released } = answered.read()?;
    tell(&answered, args.json, || "released".to_owned(), released)?;
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
    let answered = Server::new(&args.server)?.post("/v1/renew", &body.to_string())?;
    let Renewed { expires_at } = answered.read()?;
    tell(&answered, args.json, || format!("renewed until {expires_at}"), true)
}

/// Corrects a held charge to its true cost.
pub(crate) fn settle(args: &SettleArgs) -> Result<(), Failure> {
    let actual: Value = match &*args.actual {
        [every] => (*every).into(),
        each => each.into(),
    };
    let body = json!({"lease_id": args.lease, "actual": actual});
    let answered = Server::new(&args.server)?.post("/v1/settle", &body.to_string())?;
    tell(&answered, args.json, || "settled".to_owned(), true)
}

/// The answer as it is, or in words if there is something to say.
fn tell(answered: &Answered, json: bool, words: impl Fn() -> String, done: bool) -> Result<(), Failure> {
    match (json, done) {
        (true, _) => answer(&format!("{}\n", answered.text.trim_end())),
        (false, true) => answer(&format!("{}\n", words())),
        (false, false) => Ok(()),
    }
}
