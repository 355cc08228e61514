//! Forward authentication (`/v1/gate`): acquires one unit, for proxies that read only the status.
//!
//! nginx's `auth_request`, Traefik's `ForwardAuth` and curl in a shell understand 200 and 429. Any method is accepted, because proxies
//! forward the original one. During a store outage a limit that allows answers 200, and one that denies answers 503 without a
//! `Retry-After`, because none is known.

use ::http::HeaderValue;
use ::http::header::CACHE_CONTROL;
use bytes::Bytes;
use tidegate::AcquireError;
use tidegate::layer::http::{describe, too_many_requests};
use tidegate::model::Ask;
use tidegate::store::LimitStore;

use super::acquire::{decision_response, require_chargeable};
use super::problem::Problem;
use super::query::Query;
use super::wire::decision;
use super::{ApiCall, HandlerReply, HttpApi};

impl<S: LimitStore + ?Sized> HttpApi<S> {
    /// Acquires one unit; limit and key are in the path or in the query. The response must not be cached.
    pub(super) async fn gate(&self, target: Option<&(String, String)>, call: &ApiCall<'_>) -> HandlerReply {
        let reply = match target {
            Some((limit_id, key)) => match Query::read(call.head, &[]) {
                Ok(_) => self.acquire_one(limit_id, Some(key), call).await,
                Err(problem) => Err(problem),
            },
            None => self.acquire_from_query(call).await,
        };
        let mut reply = reply.unwrap_or_else(|problem| problem.into_response().into());
        reply.response.headers_mut().insert(CACHE_CONTROL, HeaderValue::from_static("no-store"));
        reply
    }

    async fn acquire_from_query(&self, call: &ApiCall<'_>) -> Result<HandlerReply, Problem> {
        let query = Query::read(call.head, &["limit_id", "limit_key"])?;
        let missing = || Problem::bad_request("the parameter limit_id is missing");
        let limit_id = query.get("limit_id").ok_or_else(missing)?;
        self.acquire_one(limit_id, query.get("limit_key"), call).await
    }

    async fn acquire_one(
        &self,
        limit_id: &str,
        key: Option<&str>,
        call: &ApiCall<'_>,
    ) -> Result<HandlerReply, Problem> {
        call.require_limit(limit_id)?;
        require_chargeable(limit_id)?;
        let asks = [Ask::one(limit_id, key.map(str::as_bytes))];
        match self.limiter.request(&asks).readings().try_acquire_async().await {
            Ok(permit) => {
                let (at, readings) = (permit.at().unwrap_or_default(), permit.readings().to_vec());
                let mut reply = decision_response(decision::write(Ok(permit), self.tick));
                describe(reply.headers_mut(), &readings, at);
                Ok(HandlerReply { granted: Some(true), ..reply.into() })
            }
            Err(AcquireError::Refused(refused)) => {
                self.record_refusal(&refused, &asks);
                Ok(HandlerReply {
                    granted: Some(false),
                    ..too_many_requests(&refused).map(Bytes::from).into()
                })
            }
            Err(AcquireError::Unavailable(unavailable)) => match self.outage_refusal(&asks)? {
                Some(_) => Err(unavailable.into()),
                None => Ok(HandlerReply {
                    granted: Some(true),
                    ..decision_response(decision::write_outage_decision(None)).into()
                }),
            },
            Err(error) => Err(error.into()),
        }
    }
}
