//! Acquire and peek.

use std::future::{Future, poll_fn};
use std::pin::{Pin, pin};
use std::sync::Arc;

use ::http::{Response, StatusCode};
use bytes::Bytes;
use tidegate::limiter::Acquire;
use tidegate::model::{Ask, Hold, Limit};
use tidegate::store::LimitStore;
use tidegate::{AcquireError, Permit, Refused, Request};

use super::problem::Problem;
use super::wire::{acquire, decision, read};
use super::{ApiCall, HandlerReply, HttpApi, Reply, json_text};
use crate::metrics::Protocol;
use crate::refusal_log::RefusalEvent;
use crate::resp::described_buckets::{RESERVED_ID_MESSAGE, is_reserved};

impl<S: LimitStore + ?Sized> HttpApi<S> {
    /// Acquires immediately, or waits up to `max_wait_ms`.
    pub(super) async fn acquire(&self, call: &ApiCall<'_>) -> Result<HandlerReply, Problem> {
        let body: acquire::AcquireBody<'_> = read(call.body)?;
        let asks = authorized_asks(&body, call)?;
        asks.iter().try_for_each(|ask| require_chargeable(ask.limit_id))?;
        let max_wait = body.max_wait()?;
        let decided = if max_wait.is_zero() {
            self.question(&body, &asks).try_acquire_async().await
        } else {
            // Boxed: few requests wait, and the future is large.
            Box::pin(self.wait_in_queue(self.question(&body, &asks).within(max_wait))).await
        };
        if let Err(AcquireError::Refused(refused)) = &decided {
            self.record_refusal(refused, &asks);
        }
        self.decision_reply(decided, &asks)
    }

    /// Waits in the queue; a shutdown ends the wait with the current decision.
    async fn wait_in_queue(&self, mut waiting: Acquire) -> Result<Permit, AcquireError> {
        let mut shutdown = Some(pin!(self.shutdown.triggered()));
        poll_fn(|cx| {
            if shutdown.as_mut().is_some_and(|triggered| triggered.as_mut().poll(cx).is_ready()) {
                shutdown = None;
                waiting.stop_waiting();
            }
            Pin::new(&mut waiting).poll(cx)
        })
        .await
    }

    /// Logs a refusal.
    pub(super) fn record_refusal(&self, refused: &Refused, asks: &[Ask<'_>]) {
        if let Some(log) = &self.refusal_log {
            let (limit, item) = (refused.limit_id(), refused.item());
            let key = asks.iter().find(|ask| ask.limit_id == limit).and_then(|ask| ask.key);
            log.record(RefusalEvent { limit, item, key, protocol: Protocol::Http, at: refused.at() });
        }
    }

    /// Makes the same decision without changing anything.
    pub(super) async fn peek(&self, call: &ApiCall<'_>) -> Reply {
        let body: acquire::AcquireBody<'_> = read(call.body)?;
        let asks = authorized_asks(&body, call)?;
        body.max_wait()?;
        let decided = self.question(&body, &asks).peek_async().await;
        self.decision_reply(decided, &asks).map(|reply| reply.response)
    }

    fn question<'a>(&'a self, body: &'a acquire::AcquireBody<'_>, asks: &'a [Ask<'a>]) -> Request<'a> {
        let mut question = self.limiter.request(asks).readings();
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

    fn decision_reply(
        &self,
        decided: Result<Permit, AcquireError>,
        asks: &[Ask<'_>],
    ) -> Result<HandlerReply, Problem> {
        let (granted, body) = match decided {
            Ok(permit) => (true, decision::write(Ok(permit), self.tick)),
            Err(AcquireError::Refused(refused)) => (false, decision::write(Err(refused), self.tick)),
            Err(AcquireError::Unavailable(_)) => {
                let outage_refusal = self.outage_refusal(asks)?;
                (outage_refusal.is_none(), decision::write_outage_decision(outage_refusal.as_ref()))
            }
            Err(error) => return Err(error.into()),
        };
        Ok(HandlerReply { granted: Some(granted), ..decision_response(body).into() })
    }

    /// The first of the limits that denies during a store outage, if any does.
    pub(super) fn outage_refusal(&self, asks: &[Ask<'_>]) -> Result<Option<Arc<Limit>>, Problem> {
        let mut outage_refusal = None;
        for ask in asks {
            let limit = self.store.get(ask.limit_id).ok_or_else(|| Problem::unknown_limit(ask.limit_id))?;
            if limit.refuses_in_outage() && outage_refusal.is_none() {
                outage_refusal = Some(limit);
            }
        }
        Ok(outage_refusal)
    }
}

/// Refuses described buckets: their last use is known only to the RESP commands that create them.
pub(super) fn require_chargeable(limit_id: &str) -> Result<(), Problem> {
    if is_reserved(limit_id) { Err(Problem::bad_request(RESERVED_ID_MESSAGE)) } else { Ok(()) }
}

/// The response to a decision.
pub(super) fn decision_response(decision: Vec<u8>) -> Response<Bytes> {
    json_text(StatusCode::OK, decision)
}

/// The asks of the body, if the permissions cover all their limits.
fn authorized_asks<'a>(
    body: &'a acquire::AcquireBody<'_>,
    call: &ApiCall<'_>,
) -> Result<Vec<Ask<'a>>, Problem> {
    let asks = body.asks()?;
    asks.iter().try_for_each(|ask| call.require_limit(ask.limit_id))?;
    Ok(asks)
}
