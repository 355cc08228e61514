//! The store: the contract of all stores, kept by a database.

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

use crate::connecting::Fault;
use crate::engine::{Engine, instant};
use crate::house::House;
use crate::job::{Job, OwnActual, OwnOrder, Task};
use crate::limits::Standing;
use crate::queue::Queue;
use crate::rows::{Needs, changes, needs_of};
use crate::schema::{self, OpenError};
use crate::time::Source;
use crate::url::Options;

/// Beyond what the database may take for a statement, this long is waited for its answer.
pub(crate) const SLACK: Duration = Duration::from_secs(1);

/// A store in PostgreSQL. Any number of them, in any number of processes, share one schema and decide as one.
pub struct PostgresStore {
    engine: Arc<Engine>,
    handle: Handle,
    capabilities: Capabilities,
    stop: Arc<Notify>,
    thread: Mutex<Option<JoinHandle<()>>>,
}

impl PostgresStore {
    /// Opens a store, and makes its tables if they are not there. Blocks until it can decide.
    pub fn open(options: Options) -> Result<PostgresStore, OpenError> {
        PostgresStore::open_with(options, Source::Database)
    }

    /// The same with another source of time.
    pub fn open_with(options: Options, source: Source) -> Result<PostgresStore, OpenError> {
        let house = House::new(&options, source).map_err(OpenError::Url)?;
        let capabilities = Capabilities {
            survival: Survival::Durable,
            reach: Reach::Fleet,
            atomicity: Atomicity::AllRows,
            tick: house.tick,
        };
        let round = options.statement_timeout.max(options.lock_timeout) + SLACK;
        let engine = Arc::new(Engine { house, queue: Queue::default(), round });
        let (stop, runs) = (Arc::new(Notify::new()), Arc::clone(&engine));
        let (ready, opened) = std::sync::mpsc::channel();
        let stopped = Arc::clone(&stop);
        let thread = std::thread::Builder::new().name("tidegate-postgres".to_owned()).spawn(move || {
            run(&runs, &options, &stopped, &ready);
        });
        let thread = thread.map_err(|error| OpenError::Failed(format!("no thread can be had: {error}")))?;
        let ended = |_| OpenError::Failed("the store's thread ended".to_owned());
        let handle = opened.recv().map_err(ended).and_then(|opened| opened)?;
        Ok(PostgresStore { engine, handle, capabilities, stop, thread: Mutex::new(Some(thread)) })
    }

    /// Why the database cannot be asked at this moment, if it cannot.
    pub fn outage(&self) -> Option<Unavailable> {
        self.engine.queue.outage()
    }

    /// Clears away what time has made meaningless, now and not in the next second: for tests.
    pub fn sweep(&self) -> Result<(), Unavailable> {
        let engine = Arc::clone(&self.engine);
        self.apart(async move { engine.sweep_once(true).await }).wait(self)
    }

    /// Ends it: what is under way is answered, what waits is told that the store is closed.
    pub fn close(&self) {
        self.engine.queue.close();
        self.stop.notify_one();
        let thread = self.thread.lock().unwrap_or_else(PoisonError::into_inner).take();
        if let Some(thread) = thread.filter(|thread| thread.thread().id() != std::thread::current().id()) {
            let _it_has_ended = thread.join();
        }
    }

    /// Puts a job into the queue. It is begun whether or not somebody waits for it.
    fn put<T: Send + 'static>(
        &self,
        only_looks: bool,
        task: impl FnOnce(oneshot::Sender<Result<T, Unavailable>>) -> Task,
    ) -> StoreReply<T> {
        let (tell, told) = oneshot::channel();
        let mut job = Job { task: task(tell), since: instant(), touches: Vec::new(), only_looks };
        if !only_looks {
            let mut needs = Needs::new();
            needs_of(&job, &self.engine.house.limits(), &mut needs);
            job.touches = needs.keys().map(|name| self.engine.house.touch(name)).collect();
        }
        self.engine.queue.push(job);
        StoreReply::Later(heard(told))
    }

    /// Does something beside the queue.
    fn apart<T: Send + 'static>(
        &self,
        act: impl Future<Output = Result<T, Fault>> + Send + 'static,
    ) -> StoreReply<T> {
        let (tell, told) = oneshot::channel();
        self.handle.spawn(async move {
            let _nobody_waits = tell.send(act.await.map_err(|fault| fault.unavailable()));
        });
        StoreReply::Later(heard(told))
    }

    fn edit_by(&self, edits: Vec<Edit>, by: Origin) -> StoreReply<Result<Vec<EditOutcome>, ApplyError>> {
        let engine = Arc::clone(&self.engine);
        let ids: Vec<String> = edits.iter().map(|edit| edit.id().to_owned()).collect();
        self.apart(async move {
            Ok(match engine.edit(edits, by).await {
                Ok(edited) => edited,
                Err(fault) => {
                    let why = PutError::Unavailable(fault.unavailable());
                    Err(ApplyError { refused: ids.into_iter().map(|id| (id, why.clone())).collect() })
                }
            })
        })
    }

    /// Makes one edit, and waits for it.
    fn edit_one(&self, edit: Edit) -> Result<EditOutcome, PutError> {
        let closed = |why| PutError::Unavailable(why);
        let edited = self.edit_by(vec![edit], Origin::Put).wait(self).map_err(closed)?;
        let silent = || PutError::Unavailable(Unavailable { reason: "the store gave no answer".to_owned() });
        match edited {
            Ok(mut edited) => edited.pop().ok_or_else(silent),
            Err(mut error) => Err(error.refused.pop().map_or_else(silent, |(_, why)| why)),
        }
    }

    /// Whether orders may be looked at without locks.
    fn may_look(&self, orders: &[OwnOrder]) -> bool {
        let limits = self.engine.house.limits();
        let bounds = |id: &str| limits.get(id).is_some_and(|entry| entry.bounds_keys());
        orders.iter().all(|order| !changes(order) && !order.asks.iter().any(|ask| bounds(&ask.limit_id)))
    }
}

/// What the thread does.
fn run(
    engine: &Arc<Engine>,
    options: &Options,
    stop: &Notify,
    ready: &std::sync::mpsc::Sender<Result<Handle, OpenError>>,
) {
    let runtime = match tokio::runtime::Builder::new_current_thread().enable_all().build() {
        Ok(runtime) => runtime,
        Err(error) => {
            let _nobody_waits = ready.send(Err(OpenError::Failed(format!("no runtime can be had: {error}"))));
            return;
        }
    };
    runtime.block_on(async {
        if let Err(error) = begin(engine, options).await {
            let _nobody_waits = ready.send(Err(error));
            return;
        }
        let workers: Vec<_> =
            (0..options.pool_size).map(|_| tokio::spawn(Arc::clone(engine).work())).collect();
        tokio::spawn(Arc::clone(engine).mind_the_time());
        tokio::spawn(Arc::clone(engine).sweep());
        tokio::spawn(Arc::clone(engine).keep_up(options.clone()));
        let _nobody_waits = ready.send(Ok(Handle::current()));
        stop.notified().await;
        for worker in workers {
            let _it_has_ended = worker.await;
        }
        engine.house.connections.close();
    });
    // Whoever waits for something beside the queue hears that nobody will answer.
    runtime.shutdown_background();
}

/// Makes the tables and reads the limits.
async fn begin(engine: &Engine, options: &Options) -> Result<(), OpenError> {
    schema::prepare(options).await?;
    let failed = |fault: Fault| OpenError::Failed(fault.to_string());
    let connection = engine.house.connections.get().await.map_err(failed)?;
    let latest =
        connection.query_one("SELECT latest FROM store", &[]).await.map_err(|error| failed(error.into()))?;
    engine.house.time.raise(crate::limits::instant(latest.get(0)));
    engine.house.refresh(&connection).await.map_err(failed)
}

fn heard<T: Send + 'static>(told: oneshot::Receiver<Result<T, Unavailable>>) -> Later<T> {
    Box::pin(async move {
        told.await.unwrap_or_else(|_| Err(Unavailable { reason: "the store is closed".to_owned() }))
    })
}

impl Store for PostgresStore {
    fn capabilities(&self) -> Capabilities {
        self.capabilities
    }

    fn submit(&self, orders: &[Order<'_>], buffer: Replies) -> StoreReply<Replies> {
        let orders: Vec<OwnOrder> = orders.iter().map(OwnOrder::of).collect();
        let only_looks = self.may_look(&orders);
        self.put(only_looks, |tell| Task::Orders { orders, answers: buffer, tell })
    }

    fn release(&self, lease: LeaseId) -> StoreReply<bool> {
        self.put(false, |tell| Task::Release { id: lease, done: None, tell })
    }

    fn renew(
        &self,
        lease: LeaseId,
        ttl: Option<Duration>,
    ) -> StoreReply<Result<Option<Timestamp>, OrderError>> {
        self.put(false, |tell| Task::Renew { id: lease, ttl, done: None, tell })
    }

    fn settle(&self, lease: LeaseId, actual: Actual<'_>) -> StoreReply<Result<Settlement, OrderError>> {
        let actual = OwnActual::of(actual);
        self.put(false, |tell| Task::Settle { id: lease, actual, done: None, tell })
    }

    fn reset(&self, limit_id: &str, key: Option<&[u8]>) -> StoreReply<Result<(), OrderError>> {
        let id: Box<str> = limit_id.into();
        if let Some(key) = key {
            self.put(false, |tell| Task::Reset { limit_id: id, key: key.into(), done: None, tell })
        } else {
            let engine = Arc::clone(&self.engine);
            self.apart(async move {
                let found = engine.reset(&id).await?;
                Ok(if found { Ok(()) } else { Err(OrderError::UnknownLimit { limit_id: id.into() }) })
            })
        }
    }

    fn usage(&self, limit_id: &str, key: Option<&[u8]>) -> StoreReply<Result<Usage, OrderError>> {
        let (limit_id, key) = (limit_id.into(), key.map(Into::into));
        self.put(true, |tell| Task::Usage { limit_id, key, done: None, tell })
    }

    fn holders(&self, limit_id: &str, key: Option<&[u8]>) -> StoreReply<Result<Vec<LeaseTerm>, OrderError>> {
        let (limit_id, key) = (limit_id.into(), key.map(Into::into));
        self.put(true, |tell| Task::Holders { limit_id, key, done: None, tell })
    }

    fn held_until(&self, leases: &[LeaseId]) -> StoreReply<Vec<Option<Timestamp>>> {
        let (engine, leases) = (Arc::clone(&self.engine), leases.to_vec());
        self.apart(async move { engine.held_until(&leases).await })
    }

    fn trouble(&self) -> Option<Unavailable> {
        self.outage()
    }

    fn observe(&self, limit_id: &str) -> Option<LimitStats> {
        self.engine.house.observe(limit_id)
    }
}

impl Catalog for PostgresStore {
    fn get(&self, id: &str) -> Option<Arc<Limit>> {
        self.engine.house.limits().get(id).map(|entry| Arc::clone(&entry.limit))
    }

    fn list(&self) -> Vec<Arc<Limit>> {
        let limits = self.engine.house.limits();
        let in_force = limits.all().filter(|entry| entry.standing == Standing::InForce);
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
        self.engine.house.watch(watcher);
    }

    fn applied(&self) -> Vec<String> {
        let limits = self.engine.house.limits();
        let applied = limits.all().filter(|entry| entry.standing == Standing::InForce && entry.applied);
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
        f.debug_struct("PostgresStore").field("schema", &self.engine.house.schema).finish_non_exhaustive()
    }
}
