//! An HTTP API over a store with a manual clock. Every response is also checked against `openapi.json` for its
//! path, method and status.

use std::future::Future;
use std::pin::pin;
use std::sync::Arc;
use std::task::{Context, Poll, Waker};
use std::time::Duration;

use bytes::Bytes;
use http::{Request, Response};
use serde_json::Value;
use tidegate::Limiter;
use tidegate::clock::ManualClock;
use tidegate::limiter::ManualHolderClock;
use tidegate::model::Timestamp;
use tidegate::store::{LimitStore, Memory, MemoryStore};
use tidegate_server::http::HttpApi;
use tidegate_server::metrics::ServerMetrics;
use tidegate_server::tokens::{Caller, Permissions, Role};

use crate::api::openapi;

/// 2026-01-20T00:00:00Z, a Tuesday.
pub(crate) const START: Duration = Duration::from_secs(1_768_867_200);

pub(crate) struct ApiFixture {
    pub(crate) api: HttpApi<dyn LimitStore>,
    pub(crate) clock: Arc<ManualClock>,
    pub(crate) pulse: ManualHolderClock,
    pub(crate) limiter: Limiter,
    pub(crate) store: Arc<dyn LimitStore>,
    pub(crate) metrics: Arc<ServerMetrics>,
}

impl ApiFixture {
    /// Without limits.
    pub(crate) fn empty() -> ApiFixture {
        ApiFixture::over(|clock| Arc::new(MemoryStore::new(clock, Memory::default())))
    }

    /// Over a store that is made with this clock.
    pub(crate) fn over(store: impl FnOnce(Arc<ManualClock>) -> Arc<dyn LimitStore>) -> ApiFixture {
        let nanos = u64::try_from(START.as_nanos()).expect("before 2554");
        let clock = Arc::new(ManualClock::at(Timestamp::from_ticks(nanos)));
        let pulse = ManualHolderClock::new();
        let store = store(Arc::clone(&clock));
        let limiter = Limiter::builder()
            .store(Arc::clone(&store))
            .holder_clock(pulse.clone())
            .build()
            .expect("no mistakes");
        let metrics = Arc::new(ServerMetrics::new(1));
        let api = HttpApi::new(Arc::clone(&store), limiter.clone()).metrics(Arc::clone(&metrics));
        ApiFixture { api, clock, pulse, limiter, store, metrics }
    }

    /// With these limits in JSON.
    pub(crate) fn with(limits: &[&str]) -> ApiFixture {
        let fixture = ApiFixture::empty();
        for limit in limits {
            fixture.ask("POST /v1/limits", limit).is(201);
        }
        fixture
    }

    /// Sends a request with all permissions; the response must be immediate.
    #[track_caller]
    pub(crate) fn ask(&self, line: &str, body: &str) -> ApiResponse {
        self.ask_as(&Caller::Authenticated(Permissions::all()), line, &[], body)
    }

    #[track_caller]
    pub(crate) fn get(&self, path: &str) -> ApiResponse {
        self.ask(&format!("GET {path}"), "")
    }

    /// Sends a request with these headers; the response must be immediate.
    #[track_caller]
    pub(crate) fn ask_as(
        &self,
        who: &Caller,
        line: &str,
        fields: &[(&str, &str)],
        body: &str,
    ) -> ApiResponse {
        let mut call = pin!(self.send(who, line, fields, body));
        match call.as_mut().poll(&mut Context::from_waker(Waker::noop())) {
            Poll::Ready(response) => response,
            Poll::Pending => panic!("{line} waits"),
        }
    }

    /// Sends a request whose response may take time.
    pub(crate) fn send(
        &self,
        who: &Caller,
        line: &str,
        fields: &[(&str, &str)],
        body: &str,
    ) -> impl Future<Output = ApiResponse> + Send + use<'_> {
        let (method, path) = line.split_once(' ').expect("METHOD PATH");
        let mut request = Request::builder().method(method).uri(path);
        for (name, value) in fields {
            request = request.header(*name, *value);
        }
        let request = request.body(Bytes::copy_from_slice(body.as_bytes())).expect("a request");
        let (who, line) = (who.clone(), line.to_owned());
        async move {
            let answered = self.api.respond(request, who).await;
            self.metrics.worker(0).http_answered(&answered, 1_000);
            let response = answered.response;
            openapi::knows(&line, &response);
            ApiResponse { response, line }
        }
    }
}

/// A caller with a token of this role for limits of this prefix.
pub(crate) fn holder(role: Role, prefix: &str) -> Caller {
    Caller::Authenticated(Permissions { role, prefix: prefix.to_owned() })
}

/// A response.
pub(crate) struct ApiResponse {
    pub(crate) response: Response<Bytes>,
    line: String,
}

impl ApiResponse {
    /// Checks the status.
    #[track_caller]
    pub(crate) fn is(self, status: u16) -> ApiResponse {
        assert_eq!(self.response.status(), status, "{}: {}", self.line, self.text());
        self
    }

    /// Checks the JSON.
    #[track_caller]
    pub(crate) fn says(self, json: &str) -> ApiResponse {
        let meant: Value = serde_json::from_str(json).expect("a test's JSON");
        assert_eq!(self.json(), meant, "{}", self.line);
        self
    }

    /// Checks status and code of a problem; returns its detail.
    #[track_caller]
    pub(crate) fn problem(self, status: u16, code: &str) -> String {
        let response = self.is(status);
        assert_eq!(response.header("content-type"), Some("application/problem+json"));
        let json = response.json();
        assert_eq!((&json["code"], &json["status"]), (&code.into(), &status.into()), "{}", response.text());
        assert!(json["title"].is_string() && json["type"].is_string());
        json["detail"].as_str().expect("a detail").to_owned()
    }

    /// Checks the fields of a problem's errors.
    #[track_caller]
    pub(crate) fn fields(self, status: u16, code: &str, fields: &[&str]) -> Vec<String> {
        let json = self.json();
        self.problem(status, code);
        let errors = json["errors"].as_array().expect("a list of errors");
        let found: Vec<_> = errors.iter().map(|error| error["field"].as_str().expect("a field")).collect();
        assert_eq!(found, fields, "{json}");
        errors.iter().map(|error| error["message"].as_str().expect("a message").to_owned()).collect()
    }

    #[track_caller]
    pub(crate) fn json(&self) -> Value {
        serde_json::from_slice(self.response.body())
            .unwrap_or_else(|error| panic!("{error}: {}", self.text()))
    }

    /// The value at this JSON pointer.
    #[track_caller]
    pub(crate) fn at(&self, pointer: &str) -> Value {
        self.json().pointer(pointer).unwrap_or_else(|| panic!("no {pointer} in {}", self.text())).clone()
    }

    /// Whether the decision was a grant.
    #[track_caller]
    pub(crate) fn allowed(&self) -> bool {
        assert_eq!(self.response.status(), 200, "{}: {}", self.line, self.text());
        self.at("/allowed").as_bool().expect("yes or no")
    }

    pub(crate) fn header(&self, name: &str) -> Option<&str> {
        self.response.headers().get(name).map(|value| value.to_str().expect("text"))
    }

    pub(crate) fn text(&self) -> String {
        String::from_utf8_lossy(self.response.body()).into_owned()
    }
}
