//! Any bytes at all, said to a session: answered, or hung up on; never a panic, and the same in any pieces.
//!
//! The first byte says how large the pieces are. What goes in whole and what goes in piece by piece must come out alike, or a
//! pipeline would mean something else whenever the network cuts it.

#![no_main]

use std::sync::Arc;

use libfuzzer_sys::fuzz_target;
use tidegate::catalog::ExpectedVersion;
use tidegate::clock::ManualClock;
use tidegate::model::{ItemSpec, LimitSpec, Policy, Timestamp};
use tidegate::store::{LimitStore, MapStore};
use tidegate_server::resp::{RespService, Authenticator, RespSession, FeedNext};
use tidegate_server::tokens::Permissions;

/// Everybody may come in.
struct Nobody;

impl Authenticator for Nobody {
    fn authenticate(&self, _token: &[u8]) -> Option<Permissions> {
        None
    }

    fn allows_anonymous(&self) -> bool {
        true
    }
}

fuzz_target!(|bytes: &[u8]| {
    let Some((size, bytes)) = bytes.split_first() else { return };
    let whole = said(bytes, bytes.len().max(1));
    assert_eq!(said(bytes, usize::from(*size).max(1)), whole, "pieces of {size} bytes");
});

/// What a new session says to these bytes in pieces of this size.
fn said(bytes: &[u8], size: usize) -> Vec<u8> {
    let store = MapStore::new(ManualClock::at(Timestamp::EPOCH), 7);
    let store: Arc<dyn LimitStore> = Arc::new(store);
    let limit = LimitSpec::named("login").with(ItemSpec::of(Policy::Total, 5).per_key());
    store.put(limit, ExpectedVersion::Absent).expect("it is sound and the first");
    let mut session = RespSession::new(Arc::new(RespService::new(store, Arc::new(Nobody))));
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
                FeedNext::Wait(_) => unreachable!("a plain store speaks at once"),
            }
        }
    }
    output
}
