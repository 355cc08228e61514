//! Watches for limits that other servers change.
//!
//! A dedicated connection listens for notifications, and the revision is polled every second as a fallback. Both only reduce the
//! delay. Every deciding transaction checks the revision while it holds the limits lock.

use std::future::poll_fn;
use std::sync::Arc;
use std::time::Duration;

use tokio::sync::Notify;
use tokio_postgres::AsyncMessage;

use crate::connections::DatabaseError;
use crate::engine::{Engine, channel};
use crate::tls;
use crate::url::PostgresOptions;

/// The interval between polls of the revision.
const POLL_INTERVAL: Duration = Duration::from_secs(1);

/// The number of failed polls in a row before the database counts as unreachable. A single one can be a restart.
const MAX_POLL_FAILURES: usize = 2;

impl Engine {
    /// Reloads the limits after a notification, and at every poll.
    pub(crate) async fn follow_limit_changes(self: Arc<Engine>, options: PostgresOptions) {
        let changed = Arc::new(Notify::new());
        tokio::spawn(listen(options, Arc::clone(&changed)));
        let mut failures = 0;
        loop {
            let _either = tokio::time::timeout(POLL_INTERVAL, changed.notified()).await;
            let Err(error) = self.refresh().await else {
                failures = 0;
                continue;
            };
            tracing::debug!(%error, "the revision of the limits could not be polled");
            failures += 1;
            // An idle server must notice an outage too, because a load balancer only checks its readiness.
            if failures >= MAX_POLL_FAILURES
                && matches!(error, DatabaseError::ConnectionLost(_) | DatabaseError::CommitUnknown(_))
            {
                self.mark_unreachable(&error.unavailable());
            }
        }
    }

    async fn refresh(&self) -> Result<(), DatabaseError> {
        let connection = self.shared_state.connections.get().await?;
        match tokio::time::timeout(self.round, self.shared_state.refresh(&connection)).await {
            Ok(Ok(())) => {
                // The next request does not have to detect the recovery.
                self.mark_healthy(false);
                Ok(())
            }
            Ok(Err(error)) => Err(error),
            Err(_) => {
                crate::connections::discard(connection);
                Err(DatabaseError::ConnectionLost("PostgreSQL did not answer in time".to_owned()))
            }
        }
    }
}

/// Signals every notification, and reconnects after an error.
async fn listen(options: PostgresOptions, changed: Arc<Notify>) {
    loop {
        if let Err(why) = listen_once(&options, &changed).await {
            tracing::debug!(
                why,
                "the notification listener is disconnected; limit changes are found by polling"
            );
        }
        tokio::time::sleep(POLL_INTERVAL).await;
    }
}

async fn listen_once(options: &PostgresOptions, changed: &Notify) -> Result<(), String> {
    let connector = tls::connector(&options.tls).map_err(|bad| bad.to_string())?;
    let connected =
        tokio::time::timeout(options.total_connect_timeout(), options.config.connect(connector)).await;
    let connected = connected.map_err(|_| "PostgreSQL did not answer in time".to_owned())?;
    let (client, mut connection) = connected.map_err(|error| crate::connections::describe_error(&error))?;
    let begun = async { client.batch_execute(&format!("LISTEN \"{}\"", channel(&options.schema))).await };
    let mut begun = Box::pin(begun);
    let mut is_listening = false;
    // The client makes progress only while its connection is polled.
    poll_fn(|context| {
        if !is_listening && begun.as_mut().poll(context).is_ready() {
            is_listening = true;
            changed.notify_one();
        }
        loop {
            match connection.poll_message(context) {
                std::task::Poll::Ready(Some(Ok(AsyncMessage::Notification(_)))) => changed.notify_one(),
                std::task::Poll::Ready(Some(Ok(_))) => {}
                std::task::Poll::Ready(Some(Err(error))) => {
                    return std::task::Poll::Ready(Err(crate::connections::describe_error(&error)));
                }
                std::task::Poll::Ready(None) => return std::task::Poll::Ready(Ok(())),
                std::task::Poll::Pending => {
                    if is_listening || begun.as_mut().poll(context).is_pending() {
                        return std::task::Poll::Pending;
                    }
                    is_listening = true;
                    changed.notify_one();
                }
            }
        }
    })
    .await
}
