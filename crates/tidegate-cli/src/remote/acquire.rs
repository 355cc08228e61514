//! `tidegate acquire` and `tidegate peek`: a decision as text and exit code.

use std::time::Duration;

use serde::Serialize;

use super::ask::RemoteAsk;
use super::client::{ServerClient, ServerReply};
use super::decision_text::{DecisionKind, DecisionReply};
use crate::args::{AcquireArgs, AskArgs, PeekArgs};
use crate::{Failure, print_result};

/// The request body.
#[derive(Debug, Default, Serialize)]
struct AskRequest<'a> {
    #[serde(flatten)]
    one: Option<RemoteAsk>,
    #[serde(skip_serializing_if = "<[_]>::is_empty")]
    asks: &'a [RemoteAsk],
    #[serde(skip_serializing_if = "Option::is_none")]
    request_id: Option<&'a str>,
    #[serde(skip_serializing_if = "std::ops::Not::not")]
    hold: bool,
    #[serde(skip_serializing_if = "Option::is_none")]
    ttl_ms: Option<u64>,
    #[serde(skip_serializing_if = "Option::is_none")]
    max_wait_ms: Option<u64>,
}

impl<'a> AskRequest<'a> {
    fn for_args(wanted: &'a AskArgs) -> AskRequest<'a> {
        let AskArgs { limit, key, count, asks } = wanted;
        let one = limit.clone().map(|limit_id| RemoteAsk { limit_id, limit_key: key.clone(), count: *count });
        AskRequest { one, asks, ..AskRequest::default() }
    }

    fn send_to(&self, server: &ServerClient, path: &str) -> Result<ServerReply, Failure> {
        let body = serde_json::to_string(self).map_err(|error| Failure::Failed(error.to_string()))?;
        server.post(path, &body)
    }
}

/// Acquires.
pub(crate) fn acquire(args: &AcquireArgs) -> Result<(), Failure> {
    let request = AskRequest {
        request_id: args.request_id.as_deref(),
        hold: args.hold,
        ttl_ms: args.ttl.map(milliseconds),
        max_wait_ms: args.wait.map(milliseconds),
        ..AskRequest::for_args(&args.wanted)
    };
    let server = ServerClient::with_extra_timeout(&args.server, args.wait.unwrap_or_default())?;
    print_decision(&request.send_to(&server, "/v1/acquire")?, args.json, DecisionKind::Acquire)
}

/// Peeks: decides without charging.
pub(crate) fn peek(args: &PeekArgs) -> Result<(), Failure> {
    let server = ServerClient::new(&args.server)?;
    print_decision(
        &AskRequest::for_args(&args.wanted).send_to(&server, "/v1/peek")?,
        args.json,
        DecisionKind::Peek,
    )
}

fn print_decision(reply: &ServerReply, json: bool, kind: DecisionKind) -> Result<(), Failure> {
    let decision: DecisionReply = reply.read()?;
    if json {
        print_result(&format!("{}\n", reply.text.trim_end()))?;
    } else {
        print_result(&decision.text_for(kind))?;
    }
    if decision.allowed { Ok(()) } else { Err(Failure::Refused) }
}

pub(super) fn milliseconds(time: Duration) -> u64 {
    u64::try_from(time.as_millis()).unwrap_or(u64::MAX)
}
