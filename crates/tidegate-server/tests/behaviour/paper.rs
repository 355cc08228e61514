//! Paper: somebody who notes down which refusals were told.

use std::sync::{Arc, Mutex, PoisonError};

use tidegate_server::refusal_log::{RefusalLine, RefusalSink};

/// Lines as they were told. Copies are the same paper.
#[derive(Clone, Default)]
pub(crate) struct Paper(Arc<Mutex<Vec<String>>>);

impl Paper {
    /// What was told so far, in order.
    pub(crate) fn lines(&self) -> Vec<String> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner).clone()
    }
}

impl RefusalSink for Paper {
    fn line(&self, line: &RefusalLine<'_>) {
        let RefusalLine { limit, item, key, protocol, left_out } = line;
        let key = key.as_deref().unwrap_or("nobody");
        let told = format!("{limit} {item} {key} {} {left_out}", protocol.word());
        self.0.lock().unwrap_or_else(PoisonError::into_inner).push(told);
    }
}
