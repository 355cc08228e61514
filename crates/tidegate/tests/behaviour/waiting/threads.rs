//! Many who wait on many threads, by real clocks: nobody is forgotten, and never are there more than allowed.

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
use crate::stage::{DecisionExt, Staged};

const SLOTS: usize = 3;
const TASKS: usize = 16;
const TURNS: usize = 200;

/// The longest patience there is: whoever is forgotten by a release would be refused at its end.
const PATIENCE: Duration = Duration::from_secs(60);

fn limiter() -> Limiter {
    let store = Store::keeping(SystemClock::new());
    let slots = ItemSpec::of(Policy::Concurrency { ttl: Duration::from_secs(3600) }, SLOTS as u64);
    store.put(LimitSpec::named("l").with(slots), ExpectedVersion::Absent).expect("a valid limit");
    Limiter::new(Arc::new(store))
}

#[tokio::test(flavor = "multi_thread", worker_threads = 4)]
async fn everybody_is_served_and_never_too_many_at_once() {
    let (limiter, inside) = (limiter(), Arc::new(AtomicUsize::new(0)));
    let tasks: Vec<_> = (0..TASKS)
        .map(|task| {
            let (limiter, inside) = (limiter.clone(), Arc::clone(&inside));
            tokio::spawn(async move {
                for turn in 0..TURNS {
                    if (task + turn) % 5 == 0 {
                        // Some come, look once, and go.
                        let mut fickle = std::pin::pin!(limiter.ask_all("l").within(PATIENCE));
                        let _answer = fickle.as_mut().poll(&mut Context::from_waker(Waker::noop()));
                        tokio::task::yield_now().await;
                    }
                    let decision = limiter.ask_all("l").within(PATIENCE).await;
                    let granted = decision.permit().expect("everybody is served");
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
    let all: Vec<_> = (0..SLOTS).map(|_| limiter.ask_all("l").try_acquire()).collect();
    assert!(all.iter().all(DecisionExt::is_granted), "everything was given back");
}

#[test]
fn whoever_releases_first_releases_once() {
    let limiter = limiter();
    for turn in 0..2_000 {
        let granted = limiter.ask_all("l").try_acquire().permit();
        let lease = granted.and_then(tidegate::Permit::into_lease).expect("everything was given back");
        let id = lease.id();
        let other = limiter.clone();
        std::thread::scope(|scope| {
            let by_id = scope.spawn(move || other.release(id));
            let by_holder = (turn % 2 == 0).then(|| lease.release());
            let by_id = by_id.join().expect("no panic");
            assert!(by_holder.is_none_or(|by_holder| by_holder != by_id), "released once");
        });
    }
    let all: Vec<_> = (0..=SLOTS).map(|_| limiter.ask_all("l").try_acquire()).collect();
    assert_eq!(all.iter().filter(|decision| decision.is_granted()).count(), SLOTS);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 4)]
async fn leases_that_are_kept_alive_are_given_back_once() {
    let limiter = limiter();
    let tasks: Vec<_> = (0..TASKS)
        .map(|_| {
            let limiter = limiter.clone();
            tokio::spawn(async move {
                for _ in 0..TURNS {
                    let question = limiter.ask_all("l").ttl(Duration::from_millis(1));
                    let decision = question.within(PATIENCE).await;
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
    let all: Vec<_> = (0..=SLOTS).map(|_| limiter.ask_all("l").try_acquire()).collect();
    assert_eq!(all.iter().filter(|decision| decision.is_granted()).count(), SLOTS);
}
