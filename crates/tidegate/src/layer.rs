//! A [`tower_layer::Layer`] that limits the calls of any tower service.
//!
//! The counts live in the [`Limiter`], never in the service: tower clones services per connection and often per
//! request, and a limit inside a clone limits nothing. Readiness reserves nothing either, because a service that is
//! polled ready may never be called. The order is sent when the call runs.
//!
//! ```text
//!   request ──▶ ask ──▶ limiter ──granted──▶ inner service ──▶ respond ──▶ response, with the lease if there is one
//!                │          ├─────denied───▶ refuse ──▶ response
//!                │          └─────failed───▶ fail ────▶ response, or on to the inner service
//!                └─ not limited ───────────▶ inner service
//! ```
//!
//! A refused call does not reach the inner service. If there is no decision, because the limit is unknown or the store
//! cannot answer, the call is refused as well, unless [`FailureAction::Admit`] is returned.
//!
//! The layer is generic over requests and responses; [`http`] has the layer for HTTP.

pub mod http;

mod request_limits;

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

pub use request_limits::RequestLimits;

/// Limits calls with requests `Q` to a service that responds with `I`; the limited service responds with `O`. Clones
/// share one limiter.
///
/// ```
/// use tidegate::layer::{FailureAction, LimitLayer};
/// use tidegate::{Limiter, total};
/// use tower::{ServiceBuilder, ServiceExt, service_fn};
///
/// # #[tokio::main(flavor = "current_thread")]
/// # async fn main() -> Result<(), Box<dyn std::error::Error + Send + Sync>> {
/// let limiter = Limiter::builder().limit("echo", total(1).per_key()).build()?;
/// let layer = LimitLayer::new(
///     limiter,
///     |name: &String| ("echo", name.clone()),
///     |refused| format!("no: {}", refused.item()),
///     |error| FailureAction::Refuse(error.to_string()),
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

type Ask<Q> = Arc<dyn Fn(&Q) -> RequestLimits + Send + Sync>;
type Respond<I, O> = Arc<dyn Fn(I, Option<Permit>) -> O + Send + Sync>;
type Refuse<O> = Arc<dyn Fn(&Refused) -> O + Send + Sync>;
type Fail<O> = Arc<dyn Fn(&AcquireError) -> FailureAction<O> + Send + Sync>;

/// What happens to a call that does not fit now.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Mode {
    /// The call is refused.
    Refuse,
    /// The call waits in the queue for at most this long.
    Wait(Duration),
}

/// What happens to a call without a decision.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[non_exhaustive]
pub enum FailureAction<O> {
    /// The call gets this response.
    Refuse(O),
    /// The call reaches the inner service, and nothing is charged.
    Admit,
}

impl<Q, R> LimitLayer<Q, R> {
    /// Creates a layer. `ask` maps a request to its limits, `refuse` makes the response to a refused call, and `fail`
    /// handles a call without a decision. A lease is given back when the response is ready.
    pub fn new<A: Into<RequestLimits>>(
        limiter: Limiter,
        ask: impl Fn(&Q) -> A + Send + Sync + 'static,
        refuse: impl Fn(&Refused) -> R + Send + Sync + 'static,
        fail: impl Fn(&AcquireError) -> FailureAction<R> + Send + Sync + 'static,
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
    /// Queues a call that does not fit for up to `patience`, at most one minute, first come first served.
    pub fn waiting(mut self, patience: Duration) -> LimitLayer<Q, I, O> {
        self.mode = Mode::Wait(patience.min(MAX_WAIT));
        self
    }

    async fn decide(&self, limits: &RequestLimits) -> Result<Permit, AcquireError> {
        let asks = limits.asks();
        let mut request = self.limiter.request(&asks);
        if self.detail == Detail::Readings {
            request = request.readings();
        }
        match self.mode {
            Mode::Refuse => request.try_acquire_async().await,
            Mode::Wait(patience) => request.within(patience).await,
        }
    }

    async fn serve<S>(self, mut inner: S, request: Q) -> Result<O, S::Error>
    where
        S: Service<Q, Response = I>,
    {
        let limits = (self.ask)(&request);
        let permit = if limits.is_empty() {
            None
        } else {
            match self.decide(&limits).await {
                Ok(permit) => Some(permit),
                Err(AcquireError::Refused(refused)) => return Ok((self.refuse)(&refused)),
                Err(error) => match (self.fail)(&error) {
                    FailureAction::Refuse(response) => return Ok(response),
                    FailureAction::Admit => None,
                },
            }
        };
        if let Some(permit) = &permit {
            keep_alive(permit);
        }
        let response = inner.call(request).await?;
        Ok((self.respond)(response, permit))
    }
}

/// Renews the lease in the background while the call runs.
fn keep_alive(permit: &Permit) {
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
    type Service = LimitService<S, LimitLayer<Q, I, O>>;

    fn layer(&self, inner: S) -> Self::Service {
        LimitService { inner, layer: self.clone() }
    }
}

/// A service whose calls are limited by a [`LimitLayer`].
#[derive(Debug, Clone)]
pub struct LimitService<S, L> {
    inner: S,
    layer: L,
}

impl<S, Q, O> Service<Q> for LimitService<S, LimitLayer<Q, S::Response, O>>
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
        // This instance was polled ready: the call takes it and leaves a clone.
        let another = self.inner.clone();
        let inner = std::mem::replace(&mut self.inner, another);
        Box::pin(self.layer.clone().serve(inner, request))
    }
}
