//! RefusalLog are told to whoever samples them.

use std::sync::Arc;

use tidegate::model::Tick;
use tidegate_server::refusal_log::RefusalLog;

use crate::api::stage::Stage;
use crate::paper::Paper;

#[test]
fn acquire_and_the_gate_tell_whom_they_refuse() {
    let paper = Paper::default();
    let stage = Stage::with(&[
        r#"{"id": "a", "items": [{"policy": "total", "limit": 1, "per": "key"}]}"#,
        r#"{"id": "b", "items": [{"policy": "total", "limit": 0}]}"#,
        r#"{"id": "c", "items": [{"policy": "total", "limit": 0, "name": "none"}]}"#,
    ]);
    let refusals = Arc::new(RefusalLog::with_sink(paper.clone(), Tick::NANOSECOND));
    let stage = Stage { api: stage.api.refusal_log(refusals), ..stage };
    for _ in 0..3 {
        stage.ask("GET /v1/gate/a/ada", "");
    }
    let set = r#"{"asks": [{"limit_id": "a", "limit_key": "x"}, {"limit_id": "b", "limit_key": "bob\n"}]}"#;
    assert!(!stage.ask("POST /v1/acquire", set).allowed());
    assert!(!stage.ask("POST /v1/acquire", r#"{"limit_id": "c"}"#).allowed());
    stage.clock.advance(std::time::Duration::from_secs(1));
    assert!(!stage.ask("POST /v1/peek", r#"{"limit_id": "c"}"#).allowed(), "looks are not told");
    stage.ask("GET /v1/gate/a/ada", "");
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
