//! Deciding: acquire and peek.

use std::future::{Future, poll_fn};
use std::pin::{Pin, pin};
use std::sync::Arc;

use ::http::{Response, StatusCode};
use bytes::Bytes;
use tidegate::{Acquire, AcquireError, Ask, Decision, Denial, Hold, Limit, LimitStore, Question};

use super::problem::Problem;
use super::wire::{acquire, decision, read};
use super::{Api, Call, Reply, Told, json_text};
use crate::metrics::DoorName;
use crate::refusal_log::Refusal;
use crate::resp::described_buckets::{BELONGS, is_reserved};

impl<S: LimitStore + ?Sized> Api<S> {
    /// Takes what is asked for, at once or within the asker's patience.
    pub(super) async fn acquire(&self, call: &Call<'_>) -> Result<Told, Problem> {
        let body: acquire::Question<'_> = read(call.body)?;
        let asks = permitted(&body, call)?;
        asks.iter().try_for_each(|ask| chargeable(ask.limit_id))?;
        let patience = body.patience()?;
        let decided = if patience.is_zero() {
            self.question(&body, &asks).try_acquire_async().await
        } else {
            // What waits owns its words. Few do, and what they need is large.
            Box::pin(self.waited(self.question(&body, &asks).acquire_within(patience))).await
        };
        if let Ok(Decision::Denied(denial)) = &decided {
            self.refused(denial, &asks);
        }
        self.decided(decided, &asks)
    }

    /// Waits in line, but not when the server is about to end.
    async fn waited(&self, mut waiting: Acquire) -> Result<Decision, AcquireError> {
        let mut ending = Some(pin!(self.ending.told()));
        poll_fn(|cx| {
            if ending.as_mut().is_some_and(|told| told.as_mut().poll(cx).is_ready()) {
                ending = None;
                waiting.hurry();
            }
            Pin::new(&mut waiting).poll(cx)
        })
        .await
    }

    /// Somebody was refused.
    pub(super) fn refused(&self, denial: &Denial, asks: &[Ask<'_>]) {
        if let Some(refusals) = &self.refusals {
            let (limit, item) = (denial.limit_id(), denial.item_name());
            let key = asks.iter().find(|ask| ask.limit_id == limit).and_then(|ask| ask.key);
            refusals.refused(Refusal { limit, item, key, door: DoorName::Http, at: denial.at });
        }
    }

    /// Replies the same question and changes nothing.
    pub(super) async fn peek(&self, call: &Call<'_>) -> Reply {
        let body: acquire::Question<'_> = read(call.body)?;
        let asks = permitted(&body, call)?;
        body.patience()?;
        let decided = self.question(&body, &asks).peek_async().await;
        self.decided(decided, &asks).map(|told| told.response)
    }

    fn question<'a>(&'a self, body: &'a acquire::Question<'_>, asks: &'a [Ask<'a>]) -> Question<'a> {
        let mut question = self.limiter.asks(asks).readings();
        if body.hold() == Hold::Yes {
            question = question.hold();
        }
        if let Some(ttl) = body.ttl() {
            question = question.ttl(ttl);
        }
        match body.request_id() {
            Some(id) => question.request_id(id),
            None => question,
        }
    }

    fn decided(&self, decided: Result<Decision, AcquireError>, asks: &[Ask<'_>]) -> Result<Told, Problem> {
        let (granted, said) = match decided {
            Ok(decided) => (decided.is_granted(), decision::write(decided, self.tick)),
            Err(AcquireError::Unavailable(_)) => {
                let refusing = self.refusing(asks)?;
                (refusing.is_none(), decision::by_rule(refusing.as_ref()))
            }
            Err(AcquireError::Rejected(rejection)) => return Err(rejection.into()),
        };
        Ok(Told { granted: Some(granted), ..spoken(said).into() })
    }

    /// While the store cannot answer: the first of the limits that says no then, if any does.
    pub(super) fn refusing(&self, asks: &[Ask<'_>]) -> Result<Option<Arc<Limit>>, Problem> {
        let mut refusing = None;
        for ask in asks {
            let limit = self.store.get(ask.limit_id).ok_or_else(|| Problem::unknown_limit(ask.limit_id))?;
            if limit.refuses_in_outage() && refusing.is_none() {
                refusing = Some(limit);
            }
        }
        Ok(refusing)
    }
}

/// Whether this door may charge the limit: described buckets are forgotten when nobody has used them, and only their own door
/// knows when that was.
pub(super) fn chargeable(limit_id: &str) -> Result<(), Problem> {
    if is_reserved(limit_id) { Err(Problem::bad_request(BELONGS)) } else { Ok(()) }
}

/// A decision as it is answered.
pub(super) fn spoken(decision: Vec<u8>) -> Response<Bytes> {
    json_text(StatusCode::OK, decision)
}

/// What is asked for, if the pass is for all of it.
fn permitted<'a>(body: &'a acquire::Question<'_>, call: &Call<'_>) -> Result<Vec<Ask<'a>>, Problem> {
    let asks = body.asks()?;
    asks.iter().try_for_each(|ask| call.concerns(ask.limit_id))?;
    Ok(asks)
}
