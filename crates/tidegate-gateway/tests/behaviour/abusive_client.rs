//! What the original could not do, on a clock that stands still in between.

use std::time::Duration;

use crate::fixture::{limits, manager};

/// An abuser at 5,000 requests a second beside a hundred honest clients at five, under 2,000 in all and 10 for each client.
#[test]
fn an_abuser_takes_nothing_from_honest_clients() {
    const TICK: Duration = Duration::from_micros(200);
    let (manager, clock) = manager();
    manager.update_server_rate_limit_config(Some(limits(2000, -1, 10, -1))).expect("it makes sense");
    let (mut abused, mut honest, mut asked) = (0, 0, 0);
    for tick in 0_u32..15_000 {
        abused += u32::from(manager.try_acquire("b", b"abuser", None).is_ok());
        // Each honest client asks once in 1000 ticks, a fifth of a second; every tenth tick it is somebody's turn.
        if tick % 10 == 0 {
            let client = (tick / 10) % 100;
            asked += 1;
            honest += u32::from(manager.try_acquire("b", &client.to_be_bytes(), None).is_ok());
        }
        clock.advance(TICK);
    }
    assert_eq!(honest, asked, "every honest request is served");
    assert_eq!(abused, 30, "ten in each of three seconds");
}

/// One connection for each request does not get around the limit of a client.
#[test]
fn a_connection_for_each_request_gains_nothing() {
    let (manager, clock) = manager();
    manager.update_server_rate_limit_config(Some(limits(-1, -1, 10, -1))).expect("it makes sense");
    let plan = manager.plan("b", None);
    let mut admitted = 0;
    for _ in 0..1000 {
        let connection = manager.accept(Some(b"c")).expect("no limit");
        manager.enter(&connection, &plan).expect("no limit");
        admitted += u32::from(manager.try_request(&plan, b"c").is_ok());
        clock.advance(Duration::from_micros(500));
    }
    assert_eq!(admitted, 10);
    assert_eq!(manager.store().leases(), 0);
}
