//! Listening: changes of limits that other servers make.
//!
//! A connection of its own listens for them, and the revision is looked at every second in case nothing was heard. Both only make it sooner:
//! whoever decides looks at the revision while holding the limits' lock.

use std::future::poll_fn;
use std::sync::Arc;
use std::time::Duration;

use tokio::sync::Notify;
use tokio_postgres::AsyncMessage;

use crate::connections::DatabaseError;
use crate::engine::{Engine, channel};
use crate::tls;
use crate::url::PostgresOptions;

/// How often the revision is looked at although nothing was heard.
const POLL_INTERVAL: Duration = Duration::from_secs(1);

/// After how many looks in a row that failed the database counts as gone. One may have met a restart.
const MAX_POLL_FAILURES: usize = 2;

impl Engine {
    /// Reads limits again whenever there is reason to.
    pub(crate) async fn follow_limit_changes(self: Arc<Engine>, options: PostgresOptions) {
        let heard = Arc::new(Notify::new());
        tokio::spawn(listen(options, Arc::clone(&heard)));
        let mut failures = 0;
        loop {
            let _either = tokio::time::timeout(POLL_INTERVAL, heard.notified()).await;
            let Err(error) = self.refresh().await else {
                failures = 0;
                continue;
            };
            tracing::debug!(%error, "the limits could not be looked at");
            failures += 1;
            // A server that nobody asks has to know too: whoever balances load asks it nothing but whether it is ready.
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
                // Whoever asks next need not find out by themselves.
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

/// Rings whenever something is told, from connection to connection.
async fn listen(options: PostgresOptions, heard: Arc<Notify>) {
    loop {
        if let Err(why) = listen_once(&options, &heard).await {
            tracing::debug!(why, "nobody listens for changes; they are looked for");
        }
        tokio::time::sleep(POLL_INTERVAL).await;
    }
}

async fn listen_once(options: &PostgresOptions, heard: &Notify) -> Result<(), String> {
    let connector = tls::connector(&options.tls).map_err(|bad| bad.to_string())?;
    let connected =
        tokio::time::timeout(options.total_connect_timeout(), options.config.connect(connector)).await;
    let connected = connected.map_err(|_| "PostgreSQL did not answer in time".to_owned())?;
    let (client, mut connection) = connected.map_err(|error| crate::connections::describe_error(&error))?;
    let begun = async { client.batch_execute(&format!("LISTEN \"{}\"", channel(&options.schema))).await };
    let mut begun = Box::pin(begun);
    let mut is_listening = false;
    // The client speaks only while its connection is polled.
    poll_fn(|context| {
        if !is_listening && begun.as_mut().poll(context).is_ready() {
            is_listening = true;
            heard.notify_one();
        }
        loop {
            match connection.poll_message(context) {
                std::task::Poll::Ready(Some(Ok(AsyncMessage::Notification(_)))) => heard.notify_one(),
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
                    heard.notify_one();
                }
            }
        }
    })
    .await
}
