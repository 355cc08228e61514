//! Feeds arbitrary bytes to a RESP session: replies or a closed session, never a panic.
//!
//! The first byte is the piece size. Input in pieces must give the same output as the whole input. Otherwise the meaning of a
//! pipeline would depend on how the network splits it.

#![no_main]

use std::sync::Arc;

use libfuzzer_sys::fuzz_target;
use tidegate::catalog::ExpectedVersion;
use tidegate::clock::ManualClock;
use tidegate::model::{ItemSpec, LimitSpec, Policy, Timestamp};
use tidegate::store::{LimitStore, MapStore};
use tidegate_server::resp::{Authenticator, FeedNext, RespService, RespSession};
use tidegate_server::tokens::Permissions;

/// An authenticator that allows anonymous clients only.
struct AnonymousOnly;

impl Authenticator for AnonymousOnly {
    fn authenticate(&self, _token: &[u8]) -> Option<Permissions> {
        None
    }

    fn allows_anonymous(&self) -> bool {
        true
    }
}

fuzz_target!(|bytes: &[u8]| {
    let Some((size, bytes)) = bytes.split_first() else { return };
    let whole = session_output(bytes, bytes.len().max(1));
    assert_eq!(session_output(bytes, usize::from(*size).max(1)), whole, "pieces of {size} bytes");
});

/// The output of a new session for this input in pieces of `size` bytes.
fn session_output(bytes: &[u8], size: usize) -> Vec<u8> {
    let store = MapStore::new(ManualClock::at(Timestamp::EPOCH), 7);
    let store: Arc<dyn LimitStore> = Arc::new(store);
    let limit = LimitSpec::named("login").with(ItemSpec::of(Policy::Total, 5).per_key());
    store.put(limit, ExpectedVersion::Absent).expect("the limit is valid and new");
    let mut session = RespSession::new(Arc::new(RespService::new(store, Arc::new(AnonymousOnly))));
    let (mut buffer, mut output) = (Vec::new(), Vec::new());
    for piece in bytes.chunks(size) {
        buffer.extend_from_slice(piece);
        loop {
            let mut more = Vec::new();
            let fed = session.feed(&buffer, &mut more);
            buffer.drain(..fed.consumed);
            output.append(&mut more);
            match fed.then {
                FeedNext::Read => break,
                FeedNext::Feed => {}
                FeedNext::Close => return output,
                FeedNext::Wait(_) => unreachable!("this store replies at once"),
            }
        }
    }
    output
}
