//! Records which refusals were logged.

use std::sync::{Arc, Mutex, PoisonError};

use tidegate_server::refusal_log::{RefusalLine, RefusalSink};

/// Recorded log lines. Clones share the record.
#[derive(Clone, Default)]
pub(crate) struct RefusalRecorder(Arc<Mutex<Vec<String>>>);

impl RefusalRecorder {
    /// The lines so far, in order.
    pub(crate) fn lines(&self) -> Vec<String> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner).clone()
    }
}

impl RefusalSink for RefusalRecorder {
    fn line(&self, line: &RefusalLine<'_>) {
        let RefusalLine { limit, item, key, protocol, left_out } = line;
        let key = key.as_deref().unwrap_or("nobody");
        let line = format!("{limit} {item} {key} {} {left_out}", protocol.word());
        self.0.lock().unwrap_or_else(PoisonError::into_inner).push(line);
    }
}
