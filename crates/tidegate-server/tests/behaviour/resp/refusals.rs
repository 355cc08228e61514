//! RefusalLog are told to whoever samples them.

use std::sync::Arc;

use tidegate::model::Tick;
use tidegate::store::LimitStore;
use tidegate_server::refusal_log::RefusalLog;
use tidegate_server::resp::{RespService, RespSession};

use crate::paper::Paper;
use crate::resp::stage::{Kind, Manner, OPEN, Stage, converse, words};

#[test]
fn a_session_tells_whom_it_refuses() {
    for manner in [Manner::Now, Manner::Durable, Manner::Later] {
        let paper = Paper::default();
        let stage = Stage::new(Kind::Memory, manner, OPEN);
        let refusals = Arc::new(RefusalLog::with_sink(paper.clone(), Tick::NANOSECOND));
        let door = RespService::new(Arc::clone(&stage.store) as Arc<dyn LimitStore>, Arc::new(OPEN))
            .refusal_log(refusals);
        let mut session = RespSession::new(Arc::new(door));
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
        stage.clock.advance(std::time::Duration::from_secs(1));
        converse(&mut session, [&words("TG.ACQUIRE login ada 3")[..]]);
        assert_eq!(
            paper.lines(),
            [
                "login key/sliding-15s ada resp 0",
                "cl.throttle/1/1/60 key/bucket-60s cid resp 0",
                "login key/sliding-15s ada resp 1",
            ],
            "{manner:?}"
        );
    }
}
