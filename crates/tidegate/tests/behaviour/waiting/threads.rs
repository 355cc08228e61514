//! Many waiters on many threads with real clocks: every waiter is served, and the limit is never exceeded.

use std::future::Future;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::task::{Context, Waker};
use std::time::Duration;

use tidegate::Limiter;
use tidegate::catalog::{Catalog, ExpectedVersion};
use tidegate::clock::SystemClock;
use tidegate::model::{ItemSpec, LimitSpec, Policy};

use super::Store;
use crate::fixture::{DecisionExt, FixtureStore, HandleExt};

const SLOTS: usize = 3;
const TASKS: usize = 16;
const TURNS: usize = 200;

/// The longest timeout. A waiter that misses its wakeup would be refused at its end.
const TIMEOUT: Duration = Duration::from_secs(60);

fn limiter() -> Limiter {
    let store = Store::with_clock(SystemClock::new());
    let slots = ItemSpec::of(Policy::Concurrency { ttl: Duration::from_secs(3600) }, SLOTS as u64);
    store.put(LimitSpec::named("l").with(slots), ExpectedVersion::Absent).expect("a valid limit");
    Limiter::new(Arc::new(store))
}

#[tokio::test(flavor = "multi_thread", worker_threads = 4)]
async fn all_waiters_are_served_within_limit() {
    let (limiter, inside) = (limiter(), Arc::new(AtomicUsize::new(0)));
    let tasks: Vec<_> = (0..TASKS)
        .map(|task| {
            let (limiter, inside) = (limiter.clone(), Arc::clone(&inside));
            tokio::spawn(async move {
                for turn in 0..TURNS {
                    if (task + turn) % 5 == 0 {
                        // Some waiters are polled once and dropped.
                        let mut cancelled = std::pin::pin!(limiter.handle("l").without_key().within(TIMEOUT));
                        let _answer = cancelled.as_mut().poll(&mut Context::from_waker(Waker::noop()));
                        tokio::task::yield_now().await;
                    }
                    let decision = limiter.handle("l").without_key().within(TIMEOUT).await;
                    let granted = decision.permit().expect("every waiter is served");
                    assert!(inside.fetch_add(1, Ordering::SeqCst) < SLOTS);
                    tokio::task::yield_now().await;
                    inside.fetch_sub(1, Ordering::SeqCst);
                    drop(granted);
                }
            })
        })
        .collect();
    for task in tasks {
        task.await.expect("no task fails");
    }
    assert_eq!(limiter.waiting_in_all(), 0);
    let all: Vec<_> = (0..SLOTS).map(|_| limiter.handle("l").without_key().try_acquire()).collect();
    assert!(all.iter().all(DecisionExt::is_granted), "all slots were released");
}

#[test]
fn concurrent_releases_of_lease_succeed_once() {
    let limiter = limiter();
    for turn in 0..2_000 {
        let granted = limiter.handle("l").without_key().try_acquire().permit();
        let lease = granted.and_then(tidegate::Permit::into_lease).expect("all slots were released");
        let id = lease.id();
        let other = limiter.clone();
        std::thread::scope(|scope| {
            let by_id = scope.spawn(move || other.release(id));
            let by_holder = (turn % 2 == 0).then(|| lease.release());
            let by_id = by_id.join().expect("no panic");
            assert!(by_holder.is_none_or(|by_holder| by_holder != by_id), "released once");
        });
    }
    let all: Vec<_> = (0..=SLOTS).map(|_| limiter.handle("l").without_key().try_acquire()).collect();
    assert_eq!(all.iter().filter(|decision| decision.is_granted()).count(), SLOTS);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 4)]
async fn renewed_leases_are_released_once() {
    let limiter = limiter();
    let tasks: Vec<_> = (0..TASKS)
        .map(|_| {
            let limiter = limiter.clone();
            tokio::spawn(async move {
                for _ in 0..TURNS {
                    let handle = limiter.handle("l");
                    let decision = handle.without_key().ttl(Duration::from_millis(1)).within(TIMEOUT).await;
                    let lease = decision.permit().and_then(tidegate::Permit::into_lease).expect("a lease");
                    lease.keep_alive();
                    tokio::task::yield_now().await;
                }
            })
        })
        .collect();
    for task in tasks {
        task.await.expect("no task fails");
    }
    assert_eq!(limiter.waiting_in_all(), 0);
    let all: Vec<_> = (0..=SLOTS).map(|_| limiter.handle("l").without_key().try_acquire()).collect();
    assert_eq!(all.iter().filter(|decision| decision.is_granted()).count(), SLOTS);
}
