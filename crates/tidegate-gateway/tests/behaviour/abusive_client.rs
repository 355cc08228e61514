//! Abusive clients against the limits, on a manual clock.

use std::time::Duration;

use crate::fixture::{limits, manager};

/// One client at 5,000 requests per second next to 100 clients at five, with 2,000 in total and 10 per
/// client.
#[test]
fn abusive_client_does_not_affect_other_clients() {
    const TICK: Duration = Duration::from_micros(200);
    let (manager, clock) = manager();
    manager.update_server_rate_limit_config(Some(limits(2000, -1, 10, -1))).expect("valid");
    let (mut abuser_admitted, mut honest_admitted, mut honest_sent) = (0, 0, 0);
    for tick in 0_u32..15_000 {
        abuser_admitted += u32::from(manager.try_acquire("b", b"abuser", None).is_ok());
        // Each honest client sends a request every 1000 ticks (200 ms); one of them is due every tenth tick.
        if tick % 10 == 0 {
            let client = (tick / 10) % 100;
            honest_sent += 1;
            honest_admitted += u32::from(manager.try_acquire("b", &client.to_be_bytes(), None).is_ok());
        }
        clock.advance(TICK);
    }
    assert_eq!(honest_admitted, honest_sent, "every honest request is served");
    assert_eq!(abuser_admitted, 30, "ten in each of three seconds");
}

/// A new connection for each request does not evade the client's limit.
#[test]
fn connection_per_request_does_not_evade_client_limit() {
    let (manager, clock) = manager();
    manager.update_server_rate_limit_config(Some(limits(-1, -1, 10, -1))).expect("valid");
    let plan = manager.plan("b", None);
    let mut admitted = 0;
    for _ in 0..1000 {
        let connection = manager.accept(Some(b"c")).expect("no limit");
        manager.admit_to_route(&connection, &plan).expect("no limit");
        admitted += u32::from(manager.try_request(&plan, b"c").is_ok());
        clock.advance(Duration::from_micros(500));
    }
    assert_eq!(admitted, 10);
    assert_eq!(manager.store().leases(), 0);
}
