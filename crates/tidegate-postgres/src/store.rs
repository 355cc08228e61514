//! The store interface on top of the engine.

use std::sync::{Arc, Mutex, PoisonError};
use std::thread::JoinHandle;
use std::time::Duration;

use tidegate::catalog::{
    ApplyError, Catalog, Edit, EditOutcome, ExpectedVersion, Origin, PutError, RemovalMode, Watcher,
};
use tidegate::reply::{OrderError, Replies};
use tidegate::store::{
    Actual, Atomicity, Capabilities, Later, LimitStats, Reach, Settlement, Store, StoreReply, Survival,
    Unavailable, Usage,
};
use tidegate_core::{LeaseId, LeaseTerm, Limit, LimitSpec, Order, Timestamp};
use tokio::runtime::Handle;
use tokio::sync::{Notify, oneshot};

use crate::connections::DatabaseError;
use crate::database_clock::TimeSource;
use crate::engine::{Engine, instant};
use crate::job::{Job, JobTask, QueuedActual, QueuedOrder};
use crate::job_queue::JobQueue;
use crate::limit_snapshot::LimitStatus;
use crate::row_names::{NeededRows, add_rows_of_job, changes};
use crate::schema::{self, PostgresOpenError};
use crate::shared_state::SharedState;
use crate::url::PostgresOptions;

/// The time allowed for an answer beyond the statement timeout of the database.
pub(crate) const ANSWER_MARGIN: Duration = Duration::from_secs(1);

/// A store in PostgreSQL. Any number of stores, in any number of processes, can share one schema.
pub struct PostgresStore {
    engine: Arc<Engine>,
    handle: Handle,
    capabilities: Capabilities,
    stop: Arc<Notify>,
    thread: Mutex<Option<JoinHandle<()>>>,
}

impl PostgresStore {
    /// Opens a store and creates its tables if they are missing. Blocks until the store can decide.
    pub fn open(options: PostgresOptions) -> Result<PostgresStore, PostgresOpenError> {
        PostgresStore::open_with(options, TimeSource::Database)
    }

    /// Opens a store with another source of time.
    pub fn open_with(
        options: PostgresOptions,
        source: TimeSource,
    ) -> Result<PostgresStore, PostgresOpenError> {
        let shared_state = SharedState::new(&options, source).map_err(PostgresOpenError::Url)?;
        let capabilities = Capabilities {
            survival: Survival::Durable,
            reach: Reach::Fleet,
            atomicity: Atomicity::AllRows,
            tick: shared_state.tick,
        };
        let round = options.statement_timeout.max(options.lock_timeout) + ANSWER_MARGIN;
        let engine = Arc::new(Engine { shared_state, queue: JobQueue::default(), round });
        let (stop, runs) = (Arc::new(Notify::new()), Arc::clone(&engine));
        let (ready, opened) = std::sync::mpsc::channel();
        let stopped = Arc::clone(&stop);
        let thread = std::thread::Builder::new().name("tidegate-postgres".to_owned()).spawn(move || {
            run(&runs, &options, &stopped, &ready);
        });
        let thread = thread.map_err(|error| {
            PostgresOpenError::Failed(format!("the store's thread cannot be started: {error}"))
        })?;
        let ended = |_| PostgresOpenError::Failed("the store's thread ended".to_owned());
        let handle = opened.recv().map_err(ended).and_then(|opened| opened)?;
        Ok(PostgresStore { engine, handle, capabilities, stop, thread: Mutex::new(Some(thread)) })
    }

    /// Why the database cannot decide now, if it cannot.
    pub fn outage(&self) -> Option<Unavailable> {
        self.engine.queue.outage()
    }

    /// Runs a full round of expiry now. For tests.
    pub fn run_expiry(&self) -> Result<(), Unavailable> {
        let engine = Arc::clone(&self.engine);
        self.spawn(async move { engine.expire_once(true).await }).wait(self)
    }

    /// Closes the store. Running jobs are answered; waiting jobs fail.
    pub fn close(&self) {
        self.engine.queue.close();
        self.stop.notify_one();
        let thread = self.thread.lock().unwrap_or_else(PoisonError::into_inner).take();
        if let Some(thread) = thread.filter(|thread| thread.thread().id() != std::thread::current().id()) {
            let _joined = thread.join();
        }
    }

    /// Queues a job. It runs even if the reply is not awaited.
    fn enqueue<T: Send + 'static>(
        &self,
        is_read_only: bool,
        task: impl FnOnce(oneshot::Sender<Result<T, Unavailable>>) -> JobTask,
    ) -> StoreReply<T> {
        let (sender, receiver) = oneshot::channel();
        let mut job = Job { task: task(sender), since: instant(), row_hashes: Vec::new(), is_read_only };
        if !is_read_only {
            let mut needs = NeededRows::new();
            add_rows_of_job(&job, &self.engine.shared_state.limits(), &mut needs);
            job.row_hashes = needs.keys().map(|name| self.engine.shared_state.row_hash(name)).collect();
        }
        self.engine.queue.push(job);
        StoreReply::Later(await_reply(receiver))
    }

    /// Runs a future on the engine's thread, outside the queue.
    fn spawn<T: Send + 'static>(
        &self,
        act: impl Future<Output = Result<T, DatabaseError>> + Send + 'static,
    ) -> StoreReply<T> {
        let (sender, receiver) = oneshot::channel();
        self.handle.spawn(async move {
            let _receiver_dropped = sender.send(act.await.map_err(|error| error.unavailable()));
        });
        StoreReply::Later(await_reply(receiver))
    }

    fn edit_by(&self, edits: Vec<Edit>, by: Origin) -> StoreReply<Result<Vec<EditOutcome>, ApplyError>> {
        let engine = Arc::clone(&self.engine);
        let ids: Vec<String> = edits.iter().map(|edit| edit.id().to_owned()).collect();
        self.spawn(async move {
            Ok(match engine.edit(edits, by).await {
                Ok(edited) => edited,
                Err(error) => {
                    let why = PutError::Unavailable(error.unavailable());
                    Err(ApplyError { refused: ids.into_iter().map(|id| (id, why.clone())).collect() })
                }
            })
        })
    }

    /// Applies one edit and waits for it.
    fn edit_one(&self, edit: Edit) -> Result<EditOutcome, PutError> {
        let closed = |why| PutError::Unavailable(why);
        let edited = self.edit_by(vec![edit], Origin::Put).wait(self).map_err(closed)?;
        let silent = || PutError::Unavailable(Unavailable { reason: "the store gave no answer".to_owned() });
        match edited {
            Ok(mut edited) => edited.pop().ok_or_else(silent),
            Err(mut error) => Err(error.refused.pop().map_or_else(silent, |(_, why)| why)),
        }
    }

    /// Whether orders can be read without locks.
    fn can_read_without_locks(&self, orders: &[QueuedOrder]) -> bool {
        let limits = self.engine.shared_state.limits();
        let bounds = |id: &str| limits.get(id).is_some_and(|entry| entry.bounds_keys());
        orders.iter().all(|order| !changes(order) && !order.asks.iter().any(|ask| bounds(&ask.limit_id)))
    }
}

/// The main function of the engine's thread.
fn run(
    engine: &Arc<Engine>,
    options: &PostgresOptions,
    stop: &Notify,
    ready: &std::sync::mpsc::Sender<Result<Handle, PostgresOpenError>>,
) {
    let runtime = match tokio::runtime::Builder::new_current_thread().enable_all().build() {
        Ok(runtime) => runtime,
        Err(error) => {
            let _receiver_dropped = ready.send(Err(PostgresOpenError::Failed(format!(
                "the store's runtime cannot be created: {error}"
            ))));
            return;
        }
    };
    runtime.block_on(async {
        if let Err(error) = begin(engine, options).await {
            let _receiver_dropped = ready.send(Err(error));
            return;
        }
        let workers: Vec<_> =
            (0..options.pool_size).map(|_| tokio::spawn(Arc::clone(engine).work())).collect();
        tokio::spawn(Arc::clone(engine).expire_waiting_jobs());
        tokio::spawn(Arc::clone(engine).run_expiry());
        tokio::spawn(Arc::clone(engine).follow_limit_changes(options.clone()));
        let _receiver_dropped = ready.send(Ok(Handle::current()));
        stop.notified().await;
        for worker in workers {
            let _joined = worker.await;
        }
        engine.shared_state.connections.close();
    });
    // Pending futures outside the queue receive an error.
    runtime.shutdown_background();
}

/// Prepares the tables and loads the limits.
async fn begin(engine: &Engine, options: &PostgresOptions) -> Result<(), PostgresOpenError> {
    schema::prepare(options).await?;
    let failed = |error: DatabaseError| PostgresOpenError::Failed(error.to_string());
    let connection = engine.shared_state.connections.get().await.map_err(failed)?;
    let latest =
        connection.query_one("SELECT latest FROM store", &[]).await.map_err(|error| failed(error.into()))?;
    engine.shared_state.time.raise(crate::limit_snapshot::instant(latest.get(0)));
    engine.shared_state.refresh(&connection).await.map_err(failed)
}

fn await_reply<T: Send + 'static>(receiver: oneshot::Receiver<Result<T, Unavailable>>) -> Later<T> {
    Box::pin(async move {
        receiver.await.unwrap_or_else(|_| Err(Unavailable { reason: "the store is closed".to_owned() }))
    })
}

impl Store for PostgresStore {
    fn capabilities(&self) -> Capabilities {
        self.capabilities
    }

    fn submit(&self, orders: &[Order<'_>], buffer: Replies) -> StoreReply<Replies> {
        let orders: Vec<QueuedOrder> = orders.iter().map(QueuedOrder::of).collect();
        let is_read_only = self.can_read_without_locks(&orders);
        self.enqueue(is_read_only, |sender| JobTask::Orders { orders, answers: buffer, sender })
    }

    fn release(&self, lease: LeaseId) -> StoreReply<bool> {
        self.enqueue(false, |sender| JobTask::Release { id: lease, done: None, sender })
    }

    fn renew(
        &self,
        lease: LeaseId,
        ttl: Option<Duration>,
    ) -> StoreReply<Result<Option<Timestamp>, OrderError>> {
        self.enqueue(false, |sender| JobTask::Renew { id: lease, ttl, done: None, sender })
    }

    fn settle(&self, lease: LeaseId, actual: Actual<'_>) -> StoreReply<Result<Settlement, OrderError>> {
        let actual = QueuedActual::of(actual);
        self.enqueue(false, |sender| JobTask::Settle { id: lease, actual, done: None, sender })
    }

    fn reset(&self, limit_id: &str, key: Option<&[u8]>) -> StoreReply<Result<(), OrderError>> {
        let id: Box<str> = limit_id.into();
        if let Some(key) = key {
            self.enqueue(false, |sender| JobTask::Reset { limit_id: id, key: key.into(), done: None, sender })
        } else {
            let engine = Arc::clone(&self.engine);
            self.spawn(async move {
                let found = engine.reset(&id).await?;
                Ok(if found { Ok(()) } else { Err(OrderError::UnknownLimit { limit_id: id.into() }) })
            })
        }
    }

    fn usage(&self, limit_id: &str, key: Option<&[u8]>) -> StoreReply<Result<Usage, OrderError>> {
        let (limit_id, key) = (limit_id.into(), key.map(Into::into));
        self.enqueue(true, |sender| JobTask::Usage { limit_id, key, done: None, sender })
    }

    fn holders(&self, limit_id: &str, key: Option<&[u8]>) -> StoreReply<Result<Vec<LeaseTerm>, OrderError>> {
        let (limit_id, key) = (limit_id.into(), key.map(Into::into));
        self.enqueue(true, |sender| JobTask::Holders { limit_id, key, done: None, sender })
    }

    fn held_until(&self, leases: &[LeaseId]) -> StoreReply<Vec<Option<Timestamp>>> {
        let (engine, leases) = (Arc::clone(&self.engine), leases.to_vec());
        self.spawn(async move { engine.held_until(&leases).await })
    }

    fn outage(&self) -> Option<Unavailable> {
        self.outage()
    }

    fn observe(&self, limit_id: &str) -> Option<LimitStats> {
        self.engine.shared_state.observe(limit_id)
    }
}

impl Catalog for PostgresStore {
    fn get(&self, id: &str) -> Option<Arc<Limit>> {
        self.engine.shared_state.limits().get(id).map(|entry| Arc::clone(&entry.limit))
    }

    fn list(&self) -> Vec<Arc<Limit>> {
        let limits = self.engine.shared_state.limits();
        let in_force = limits.all().filter(|entry| entry.status == LimitStatus::Active);
        let mut all: Vec<Arc<Limit>> = in_force.map(|entry| Arc::clone(&entry.limit)).collect();
        all.sort_by(|a, b| a.id().cmp(b.id()));
        all
    }

    fn put(&self, spec: LimitSpec, expect: ExpectedVersion) -> Result<Arc<Limit>, PutError> {
        match self.edit_one(Edit::Put(spec, expect))? {
            EditOutcome::Added(limit)
            | EditOutcome::Replaced(limit)
            | EditOutcome::Unchanged(limit)
            | EditOutcome::Removed(limit) => Ok(limit),
            EditOutcome::Absent => Err(PutError::Unknown),
        }
    }

    fn remove(&self, id: &str, parting: RemovalMode) -> bool {
        matches!(self.edit_one(Edit::Remove(id.to_owned(), parting)), Ok(EditOutcome::Removed(_)))
    }

    fn apply(&self, edits: Vec<Edit>) -> Result<Vec<EditOutcome>, ApplyError> {
        let ids: Vec<String> = edits.iter().map(|edit| edit.id().to_owned()).collect();
        self.edit_by(edits, Origin::Applied).wait(self).unwrap_or_else(|why| {
            let why = PutError::Unavailable(why);
            Err(ApplyError { refused: ids.into_iter().map(|id| (id, why.clone())).collect() })
        })
    }

    fn edit(&self, edits: Vec<Edit>, origin: Origin) -> StoreReply<Result<Vec<EditOutcome>, ApplyError>> {
        self.edit_by(edits, origin)
    }

    fn watch(&self, watcher: Watcher) {
        self.engine.shared_state.watch(watcher);
    }

    fn applied(&self) -> Vec<String> {
        let limits = self.engine.shared_state.limits();
        let applied = limits.all().filter(|entry| entry.status == LimitStatus::Active && entry.applied);
        applied.map(|entry| entry.id().to_owned()).collect()
    }
}

impl Drop for PostgresStore {
    fn drop(&mut self) {
        self.close();
    }
}

impl std::fmt::Debug for PostgresStore {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("PostgresStore")
            .field("schema", &self.engine.shared_state.schema)
            .finish_non_exhaustive()
    }
}
