//! Fast path for acquire: one ask for a key, decided and encoded without the general machinery.
//!
//! The HTTP/1.1 fast path tries this first. If the request is not simple enough, nothing was done, and it is
//! [answered](HttpApi::respond) as usual. Otherwise the body is the same, byte for byte.

use tidegate::model::{Verdict, Wait};
use tidegate::reply::ItemReading;
use tidegate::store::LimitStore;
use tidegate::store::{CompactBatch, CompactReplies, CompactReply, CompactRequest, Survival};

use super::HttpApi;
use super::decision_json::{DecisionFields, DecisionVerdict, write_fields};
use super::wire::{compact_acquire, instant};
use crate::metrics::Protocol;
use crate::refusal_log::RefusalEvent;
use crate::resp::described_buckets::is_reserved;
use crate::tokens::{Permissions, Role};

/// The only path of this, with `POST`.
pub(crate) const ACQUIRE_PATH: &str = "/v1/acquire";

/// Buffers that keep their memory between requests.
#[derive(Debug, Default)]
pub(crate) struct CompactAcquireBuffers {
    replies: CompactReplies,
    /// The body of the response.
    pub(crate) body: Vec<u8>,
}

impl<S: LimitStore + ?Sized> HttpApi<S> {
    /// Decides a request and writes the response body. Returns whether it was granted; `None` if the request is not eligible, and then
    /// nothing was done.
    pub(crate) fn try_acquire_compact(
        &self,
        body: &[u8],
        permissions: &Permissions,
        buffers: &mut CompactAcquireBuffers,
    ) -> Option<bool> {
        // A decision that waits for a log needs the general path.
        if self.survival != Survival::Volatile || !permissions.allows(Role::Decide) {
            return None;
        }
        let compact_acquire::CompactAcquireBody { limit_id, limit_key, count } = compact_acquire::read(body)?;
        if !permissions.covers(limit_id) || is_reserved(limit_id) {
            return None;
        }
        let CompactAcquireBuffers { replies, body } = buffers;
        let request = CompactRequest { limit: 0, key: limit_key.as_bytes(), count };
        let batch = CompactBatch { limit_ids: &[limit_id], list: std::slice::from_ref(&request) };
        let durable = self.limiter.submit_compact(&batch, replies).ok()?;
        debug_assert!(durable.is_none(), "a store that keeps nothing has no log");
        let reply = replies.list().first()?;
        self.write_body(reply, replies, limit_key, body);
        let is_granted = reply.verdict == Verdict::Granted;
        replies.clear();
        Some(is_granted)
    }

    fn write_body(
        &self,
        reply: &CompactReply,
        replies: &CompactReplies,
        limit_key: &str,
        body: &mut Vec<u8>,
    ) {
        let CompactReply { verdict, reading, at, item, .. } = *reply;
        let limit = replies.text(reply);
        let readings = [ItemReading { limit: limit.clone(), item, reading }];
        let item_name = limit.items()[item].name();
        let verdict = match verdict {
            Verdict::Granted => DecisionVerdict::Granted(None),
            Verdict::Denied(wait) => {
                if let Some(log) = &self.refusal_log {
                    let key = Some(limit_key.as_bytes());
                    let (limit, item) = (limit.id(), item_name);
                    log.record(RefusalEvent { limit, item, key, protocol: Protocol::Http, at });
                }
                let retry_after = match wait {
                    Wait::Until(until) => Some(self.tick.duration(until.since(at))),
                    Wait::OnRelease | Wait::Never => None,
                };
                let wait = Some((wait, retry_after));
                DecisionVerdict::Denied { limit_id: limit.id(), item: item_name, wait }
            }
        };
        body.clear();
        body.push(b'{');
        let fields = DecisionFields { verdict, degraded: false, readings: &readings };
        write_fields(&fields, body, &mut |at, out| instant::write(at, self.tick, out));
        body.push(b'}');
    }
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;
    use std::task::{Context, Poll, Waker};
    use std::time::Duration;

    use ::http::Request;
    use bytes::Bytes;
    use proptest::prelude::*;
    use tidegate::Limiter;
    use tidegate::catalog::{Catalog, ExpectedVersion};
    use tidegate::clock::ManualClock;
    use tidegate::model::Timestamp;
    use tidegate::store::{Memory, MemoryStore, Store};

    use super::*;
    use crate::tokens::Caller;

    const LIMITS: &str = "limits:
  - {id: bucket, items: [{policy: bucket, limit: 3, window: 10s, per: key}]}
  - {id: day, items: [{policy: day, limit: 4, per: key}]}
  - {id: sale, items: [{policy: total, limit: 9}]}
  - {id: free, items: [{policy: total, limit: -1, per: key}]}
  - {id: two, items: [{policy: total, limit: 9}, {policy: interval, limit: 2, per: key, window: 10s}]}
  - {id: slots, items: [{policy: concurrency, limit: 1, ttl: 60s}]}
";

    /// An API with its own store and clock.
    struct ApiFixture {
        clock: Arc<ManualClock>,
        store: Arc<MemoryStore>,
        api: HttpApi<MemoryStore>,
    }

    impl ApiFixture {
        fn new() -> ApiFixture {
            let clock = Arc::new(ManualClock::at(Timestamp::from_ticks(1_700_000_000_000_000_000)));
            let memory = Memory { secret: [7, 11], ..Memory::default() };
            let store = Arc::new(MemoryStore::new(Arc::clone(&clock), memory));
            for limit in tidegate_config::limits::read_text("limits.yaml", LIMITS).expect("they are sound") {
                store.put(limit, ExpectedVersion::Absent).expect("there is none yet");
            }
            let api = HttpApi::new(Arc::clone(&store), Limiter::new(Arc::clone(&store) as _));
            ApiFixture { clock, store, api }
        }

        /// Status and body on the general path.
        fn answered(&self, body: &str, permissions: &Permissions) -> (u16, String) {
            let request = Request::post(ACQUIRE_PATH).body(Bytes::copy_from_slice(body.as_bytes()));
            let request = request.expect("a request");
            let mut call = std::pin::pin!(self.api.call(request, Caller::Authenticated(permissions.clone())));
            let Poll::Ready(response) = call.as_mut().poll(&mut Context::from_waker(Waker::noop())) else {
                panic!("it does not wait")
            };
            (response.status().as_u16(), String::from_utf8_lossy(response.body()).into_owned())
        }

        /// Status and body on the fast path, or the general path if not eligible.
        fn in_short(
            &self,
            body: &str,
            permissions: &Permissions,
            buffers: &mut CompactAcquireBuffers,
        ) -> (u16, String) {
            match self.api.try_acquire_compact(body.as_bytes(), permissions, buffers) {
                Some(is_granted) => {
                    let fields = String::from_utf8_lossy(&buffers.body).into_owned();
                    assert_eq!(fields.contains("\"allowed\":true"), is_granted);
                    (200, fields)
                }
                None => self.answered(body, permissions),
            }
        }

        fn used(&self) -> Vec<String> {
            let places = ["bucket", "day", "sale", "free", "two"].into_iter();
            let places = places.flat_map(|id| ["a", "b"].map(|key| (id, key)));
            places
                .map(|(id, key)| format!("{:?}", self.store.usage(id, Some(key.as_bytes())).now()))
                .collect()
        }
    }

    fn body() -> impl Strategy<Value = String> {
        let ids = ["bucket", "day", "sale", "free", "two", "slots", "nobody", "cl.throttle/1/1/1"];
        let id = prop::sample::select(ids.to_vec());
        let key = prop::sample::select(vec![",\"limit_key\":\"a\"", ",\"limit_key\":\"b\"", ""]);
        let rest = prop::sample::select(vec![
            "",
            "",
            "",
            ",\"count\":2",
            ",\"count\":0",
            ",\"count\":-1",
            ",\"hold\":false",
            ",\"x\":1",
        ]);
        (id, key, rest).prop_map(|(id, key, rest)| format!("{{\"limit_id\":\"{id}\"{key}{rest}}}"))
    }

    proptest! {
        #[test]
        fn fast_path_answers_like_the_general_path(
            steps in prop::collection::vec((body(), 0..4000_u64, 0..8_u8), 1..40)
        ) {
            let (one, other) = (ApiFixture::new(), ApiFixture::new());
            let mut buffers = CompactAcquireBuffers::default();
            for (body, ms, who) in steps {
                let permissions = match who {
                    0 => Permissions { role: Role::Read, ..Permissions::all() },
                    1 => Permissions { role: Role::Decide, prefix: "da".to_owned() },
                    _ => Permissions::all(),
                };
                prop_assert_eq!(one.in_short(&body, &permissions, &mut buffers), other.answered(&body, &permissions), "{}", body);
                one.clock.advance(Duration::from_millis(ms));
                other.clock.advance(Duration::from_millis(ms));
            }
            prop_assert_eq!(one.used(), other.used());
            for id in ["bucket", "day", "sale", "free", "two"] {
                prop_assert_eq!(one.store.observe(id), other.store.observe(id));
            }
        }
    }

    #[test]
    fn common_requests_are_eligible() {
        let side = ApiFixture::new();
        let mut buffers = CompactAcquireBuffers::default();
        for (limit, is_granted) in
            [("bucket", Some(true)), ("sale", Some(true)), ("two", None), ("slots", None)]
        {
            let body = format!("{{\"limit_id\":\"{limit}\",\"limit_key\":\"a\"}}");
            assert_eq!(
                side.api.try_acquire_compact(body.as_bytes(), &Permissions::all(), &mut buffers),
                is_granted,
                "{limit}"
            );
        }
    }
}
