//! `tidegate acquire` and `tidegate peek`: a question, and a decision as an exit code.

use std::time::Duration;

use serde::Serialize;

use super::ask::Ask;
use super::client::{Answered, Server};
use super::decision_text::{Mood, Told};
use crate::args::{AcquireArgs, PeekArgs, Wanted};
use crate::{Failure, answer};

/// A question as the server reads it.
#[derive(Debug, Default, Serialize)]
struct Question<'a> {
    #[serde(flatten)]
    one: Option<Ask>,
    #[serde(skip_serializing_if = "<[_]>::is_empty")]
    asks: &'a [Ask],
    #[serde(skip_serializing_if = "Option::is_none")]
    request_id: Option<&'a str>,
    #[serde(skip_serializing_if = "std::ops::Not::not")]
    hold: bool,
    #[serde(skip_serializing_if = "Option::is_none")]
    ttl_ms: Option<u64>,
    #[serde(skip_serializing_if = "Option::is_none")]
    max_wait_ms: Option<u64>,
}

impl<'a> Question<'a> {
    fn about(wanted: &'a Wanted) -> Question<'a> {
        let Wanted { limit, key, count, asks } = wanted;
        let one = limit.clone().map(|limit_id| Ask { limit_id, limit_key: key.clone(), count: *count });
        Question { one, asks, ..Question::default() }
    }

    fn put_to(&self, server: &Server, path: &str) -> Result<Answered, Failure> {
        let body = serde_json::to_string(self).map_err(|error| Failure::Failed(error.to_string()))?;
        server.post(path, &body)
    }
}

/// Takes what is wanted, or is refused.
pub(crate) fn acquire(args: &AcquireArgs) -> Result<(), Failure> {
    let question = Question {
        request_id: args.request_id.as_deref(),
        hold: args.hold,
        ttl_ms: args.ttl.map(milliseconds),
        max_wait_ms: args.wait.map(milliseconds),
        ..Question::about(&args.wanted)
    };
    let server = Server::patient(&args.server, args.wait.unwrap_or_default())?;
    tell(&question.put_to(&server, "/v1/acquire")?, args.json, Mood::Taken)
}

/// Asks the same and takes nothing.
pub(crate) fn peek(args: &PeekArgs) -> Result<(), Failure> {
    let server = Server::new(&args.server)?;
    tell(&Question::about(&args.wanted).put_to(&server, "/v1/peek")?, args.json, Mood::Asked)
}

fn tell(answered: &Answered, json: bool, mood: Mood) -> Result<(), Failure> {
    let told: Told = answered.read()?;
    if json {
        answer(&format!("{}\n", answered.text.trim_end()))?;
    } else {
        answer(&told.in_words(mood))?;
    }
    if told.allowed { Ok(()) } else { Err(Failure::Refused) }
}

pub(super) fn milliseconds(time: Duration) -> u64 {
    u64::try_from(time.as_millis()).unwrap_or(u64::MAX)
}
