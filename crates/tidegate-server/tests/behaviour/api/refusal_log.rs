//! Refusals over HTTP are logged.

use std::sync::Arc;

use tidegate::model::Tick;
use tidegate_server::refusal_log::RefusalLog;

use crate::api::fixture::ApiFixture;
use crate::refusal_recorder::RefusalRecorder;

#[test]
fn acquire_and_gate_log_refusals() {
    let paper = RefusalRecorder::default();
    let fixture = ApiFixture::with(&[
        r#"{"id": "a", "items": [{"policy": "total", "limit": 1, "per": "key"}]}"#,
        r#"{"id": "b", "items": [{"policy": "total", "limit": 0}]}"#,
        r#"{"id": "c", "items": [{"policy": "total", "limit": 0, "name": "none"}]}"#,
    ]);
    let refusals = Arc::new(RefusalLog::with_sink(paper.clone(), Tick::NANOSECOND));
    let fixture = ApiFixture { api: fixture.api.refusal_log(refusals), ..fixture };
    for _ in 0..3 {
        fixture.ask("GET /v1/gate/a/ada", "");
    }
    let set = r#"{"asks": [{"limit_id": "a", "limit_key": "x"}, {"limit_id": "b", "limit_key": "bob\n"}]}"#;
    assert!(!fixture.ask("POST /v1/acquire", set).allowed());
    assert!(!fixture.ask("POST /v1/acquire", r#"{"limit_id": "c"}"#).allowed());
    fixture.clock.advance(std::time::Duration::from_secs(1));
    assert!(!fixture.ask("POST /v1/peek", r#"{"limit_id": "c"}"#).allowed(), "peeks are not logged");
    fixture.ask("GET /v1/gate/a/ada", "");
    assert_eq!(
        paper.lines(),
        [
            "a key/total ada http 0",
            "b all/total bob\\n http 0",
            "c none nobody http 0",
            "a key/total ada http 1",
        ]
    );
}
