//! A layer that limits the calls of any tower service.
//!
//! What is counted lives in the [`Limiter`], never in the service: tower services are cloned for every connection and
//! often for every request, and a limiter that lives in a clone limits nobody. Readiness reserves nothing either. A
//! service that is polled ready and then not called would keep what it reserved; here the question is put when the call
//! runs, and only then.
//!
//! ```text
//!   request ──▶ ask ──▶ limiter ──granted──▶ inner service ──▶ respond ──▶ response, with the lease if there is one
//!                │          ├─────denied───▶ refuse ──▶ response
//!                │          └─────failed───▶ fail ────▶ response, or on to the inner service
//!                └─ not limited ───────────▶ inner service
//! ```
//!
//! A refused call does not reach the inner service. When there is no decision, because the limiter does not know the
//! limit or cannot ask its store, the call is refused as well, unless somebody says otherwise.
//!
//! Requests and responses are whatever the service takes and gives; [`http`] knows those that most have.

pub mod http;

mod asking;

use std::fmt;
use std::future::Future;
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll};
use std::time::Duration;

use tower_layer::Layer;
use tower_service::Service;

use tidegate_core::order::MAX_WAIT;

use crate::limiter::{AcquireError, Limiter, Permit, Refused};
use crate::reply::Detail;

pub use asking::Asking;

/// Limits calls with requests `Q` to services that answer with `I`; the limited service answers with `O`. Copies are
/// the same layer.
///
/// ```
/// use tidegate::layer::{Failure, LimitLayer};
/// use tidegate::Limiter;
/// use tidegate::catalog::ExpectedVersion;
/// use tidegate::model::{ItemSpec, LimitSpec, Policy};
/// use tower::{ServiceBuilder, ServiceExt, service_fn};
///
/// # #[tokio::main(flavor = "current_thread")]
/// # async fn main() -> Result<(), Box<dyn std::error::Error + Send + Sync>> {
/// let limiter = Limiter::in_memory();
/// let once = LimitSpec::named("echo").with(ItemSpec::of(Policy::Total, 1).per_key());
/// limiter.store().put(once, ExpectedVersion::Absent)?;
/// let layer = LimitLayer::new(
///     limiter,
///     |name: &String| ("echo", name.clone()),
///     |refused| format!("no: {}", refused.item()),
///     |error| Failure::Refuse(error.to_string()),
/// );
/// let echo = ServiceBuilder::new().layer(layer).service(service_fn(|name: String| async move {
///     Ok::<String, std::convert::Infallible>(name)
/// }));
///
/// assert_eq!(echo.clone().oneshot("ada".to_owned()).await?, "ada");
/// assert_eq!(echo.clone().oneshot("ada".to_owned()).await?, "no: key/total");
/// assert_eq!(echo.oneshot("bob".to_owned()).await?, "bob");
/// # Ok(())
/// # }
/// ```
pub struct LimitLayer<Q, I, O = I> {
    limiter: Limiter,
    mode: Mode,
    detail: Detail,
    ask: Ask<Q>,
    respond: Respond<I, O>,
    refuse: Refuse<O>,
    fail: Fail<O>,
}

type Ask<Q> = Arc<dyn Fn(&Q) -> Asking + Send + Sync>;
type Respond<I, O> = Arc<dyn Fn(I, Option<Permit>) -> O + Send + Sync>;
type Refuse<O> = Arc<dyn Fn(&Refused) -> O + Send + Sync>;
type Fail<O> = Arc<dyn Fn(&AcquireError) -> Failure<O> + Send + Sync>;

/// What happens to a call that does not fit now.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Mode {
    /// It is refused.
    Refuse,
    /// It waits this long, in line with the others.
    Wait(Duration),
}

/// What happens to a call that could not be decided.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Failure<O> {
    /// It is answered like this.
    Refuse(O),
    /// It is let through, and nobody is charged.
    Admit,
}

impl<Q, R> LimitLayer<Q, R> {
    /// A layer that asks `ask` what a request is to be counted as, answers those that are denied with `refuse`, and
    /// those that could not be decided as `fail` says. What is held is given back when the response is there.
    pub fn new<A: Into<Asking>>(
        limiter: Limiter,
        ask: impl Fn(&Q) -> A + Send + Sync + 'static,
        refuse: impl Fn(&Refused) -> R + Send + Sync + 'static,
        fail: impl Fn(&AcquireError) -> Failure<R> + Send + Sync + 'static,
    ) -> LimitLayer<Q, R> {
        LimitLayer {
            limiter,
            mode: Mode::Refuse,
            detail: Detail::Verdicts,
            ask: Arc::new(move |request| ask(request).into()),
            respond: Arc::new(|response, _permit| response),
            refuse: Arc::new(refuse),
            fail: Arc::new(fail),
        }
    }
}

impl<Q, I, O> LimitLayer<Q, I, O> {
    /// Lets a call that does not fit wait for as long as this, at most a minute, first come first served, before it is refused.
    pub fn waiting(mut self, patience: Duration) -> LimitLayer<Q, I, O> {
        self.mode = Mode::Wait(patience.min(MAX_WAIT));
        self
    }

    async fn decide(&self, asking: &Asking) -> Result<Permit, AcquireError> {
        let asks = asking.asks();
        let mut question = self.limiter.asks(&asks);
        if self.detail == Detail::Readings {
            question = question.readings();
        }
        match self.mode {
            Mode::Refuse => question.try_acquire_async().await,
            Mode::Wait(patience) => question.within(patience).await,
        }
    }

    async fn serve<S>(self, mut inner: S, request: Q) -> Result<O, S::Error>
    where
        S: Service<Q, Response = I>,
    {
        let asking = (self.ask)(&request);
        let permit = if asking.is_nothing() {
            None
        } else {
            match self.decide(&asking).await {
                Ok(permit) => Some(permit),
                Err(AcquireError::Refused(refused)) => return Ok((self.refuse)(&refused)),
                Err(error) => match (self.fail)(&error) {
                    Failure::Refuse(response) => return Ok(response),
                    Failure::Admit => None,
                },
            }
        };
        if let Some(permit) = &permit {
            keep(permit);
        }
        let response = inner.call(request).await?;
        Ok((self.respond)(response, permit))
    }
}

/// Keeps what is held from lapsing while the call goes on, however long that is.
fn keep(permit: &Permit) {
    if let Some(lease) = permit.lease()
        && tokio::runtime::Handle::try_current().is_ok()
    {
        lease.keep_alive();
    }
}

impl<Q, I, O> Clone for LimitLayer<Q, I, O> {
    fn clone(&self) -> LimitLayer<Q, I, O> {
        LimitLayer {
            limiter: self.limiter.clone(),
            mode: self.mode,
            detail: self.detail,
            ask: Arc::clone(&self.ask),
            respond: Arc::clone(&self.respond),
            refuse: Arc::clone(&self.refuse),
            fail: Arc::clone(&self.fail),
        }
    }
}

impl<Q, I, O> fmt::Debug for LimitLayer<Q, I, O> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("LimitLayer").field("mode", &self.mode).finish_non_exhaustive()
    }
}

impl<S, Q, I, O> Layer<S> for LimitLayer<Q, I, O> {
    type Service = Limit<S, LimitLayer<Q, I, O>>;

    fn layer(&self, inner: S) -> Self::Service {
        Limit { inner, layer: self.clone() }
    }
}

/// A service whose calls are limited by a [`LimitLayer`].
#[derive(Debug, Clone)]
pub struct Limit<S, L> {
    inner: S,
    layer: L,
}

impl<S, Q, O> Service<Q> for Limit<S, LimitLayer<Q, S::Response, O>>
where
    S: Service<Q> + Clone + Send + 'static,
    S::Future: Send,
    S::Response: 'static,
    Q: Send + 'static,
    O: 'static,
{
    type Response = O;
    type Error = S::Error;
    type Future = Pin<Box<dyn Future<Output = Result<O, S::Error>> + Send>>;

    fn poll_ready(&mut self, context: &mut Context<'_>) -> Poll<Result<(), S::Error>> {
        self.inner.poll_ready(context)
    }

    fn call(&mut self, request: Q) -> Self::Future {
        // It is this one that was polled ready; the call takes it along and leaves another.
        let another = self.inner.clone();
        let inner = std::mem::replace(&mut self.inner, another);
        Box::pin(self.layer.clone().serve(inner, request))
    }
}
