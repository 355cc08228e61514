//! Refusals over RESP are logged.

use std::sync::Arc;

use tidegate::model::Tick;
use tidegate::store::LimitStore;
use tidegate_server::refusal_log::RefusalLog;
use tidegate_server::resp::{RespService, RespSession};

use crate::refusal_recorder::RefusalRecorder;
use crate::resp::fixture::{OPEN, ReplyTiming, RespFixture, StoreKind, converse, words};

#[test]
fn session_logs_refusals() {
    for timing in [ReplyTiming::Now, ReplyTiming::Durable, ReplyTiming::Later] {
        let paper = RefusalRecorder::default();
        let fixture = RespFixture::new(StoreKind::Memory, timing, OPEN);
        let refusals = Arc::new(RefusalLog::with_sink(paper.clone(), Tick::NANOSECOND));
        let service = RespService::new(Arc::clone(&fixture.store) as Arc<dyn LimitStore>, Arc::new(OPEN))
            .refusal_log(refusals);
        let mut session = RespSession::new(Arc::new(service));
        let lines = [
            "TG.ACQUIRE login ada 3",
            "TG.PEEK login ada 3",
            "TG.ACQUIRE login ada 3",
            "TG.ACQUIRE login bob 9",
            "THROTTLE cid 1 1 60",
            "THROTTLE cid 1 1 60",
        ];
        let input: Vec<u8> = lines.iter().flat_map(|line| words(line)).collect();
        converse(&mut session, [&input[..]]);
        fixture.clock.advance(std::time::Duration::from_secs(1));
        converse(&mut session, [&words("TG.ACQUIRE login ada 3")[..]]);
        assert_eq!(
            paper.lines(),
            [
                "login key/sliding-15s ada resp 0",
                "cl.throttle/1/1/60 key/bucket-60s cid resp 0",
                "login key/sliding-15s ada resp 1",
            ],
            "{timing:?}"
        );
    }
}
