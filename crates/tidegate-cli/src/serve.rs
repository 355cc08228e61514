//! `tidegate serve`: the engine behind HTTP and RESP, until somebody says stop.

use std::net::SocketAddr;
use std::num::NonZeroUsize;
use std::path::Path;
use std::sync::Arc;
use std::thread::available_parallelism;

use rustix::process::{Resource, Rlimit, getrlimit, setrlimit};
use signal_hook::consts::{SIGHUP, SIGINT, SIGTERM};
use signal_hook::iterator::Signals;
use tidegate::clock::SystemClock;
use tidegate::file::Settings;
use tidegate::store::{Memory, MemoryStore};
use tidegate::{Expect, FullStore, Limiter};
use tidegate_server::http::{Api, Readiness, State};
use tidegate_server::metrics::Metrics;
use tidegate_server::resp::Door;
use tidegate_server::serve::{Bounds, Places, Server, Service};
use tidegate_server::tokens::Tokens;

use crate::args::{ServeArgs, StoreUrl};
use crate::{Failure, color_of_stderr, log, read_whole, say};

/// Descriptors that are kept for other things than connections.
const SPARE_DESCRIPTORS: u64 = 64;

/// Serves until it is told to stop.
pub(crate) fn run(args: &ServeArgs) -> Result<(), Failure> {
    log::init(args.logging.log, args.logging.log_level)?;
    // Nobody's signal gets lost between here and the end.
    let mut signals = Signals::new([SIGTERM, SIGINT, SIGHUP])
        .map_err(|error| Failure::Failed(format!("cannot wait for signals: {error}")))?;
    let settings = args.config.as_deref().map(settings).transpose()?.unwrap_or_default();
    let places = places(args);
    check_public(&places, &settings, args.insecure)?;
    let store: Arc<dyn FullStore> = match args.store {
        StoreUrl::Memory => Arc::new(MemoryStore::new(SystemClock::new(), Memory::default())),
    };
    let limiter = Limiter::new(Arc::clone(&store));
    for limit in settings.limits {
        store
            .put(limit, Expect::Anything)
            .map_err(|error| Failure::BadInput(format!("a limit of the settings cannot be used: {error}")))?;
    }
    let tokens = match settings.tokens {
        None => Tokens::not_needed(),
        Some(tokens) => Tokens::new(tokens).map_err(|flaws| {
            let flaws: Vec<String> = flaws.iter().map(|flaw| format!("\n  {flaw}")).collect();
            Failure::BadInput(format!("the tokens of the settings make no sense{}", flaws.concat()))
        })?,
    };
    let doorman = Arc::new(tokens);
    let readiness = Arc::new(Readiness::new(State::Starting));
    let metrics = Arc::new(Metrics::new(places.workers));
    let api = Api::new(Arc::clone(&store), limiter.clone())
        .readiness(Arc::clone(&readiness))
        .metrics(Arc::clone(&metrics));
    let door = Door::new(store, Arc::clone(&doorman) as _).beside(limiter);
    let bounds = Bounds::default();
    let bounds = Bounds { connections: bounds.connections.min(descriptors()), ..bounds };
    let server = Server::start(Service { api, door, doorman, metrics }, &places, bounds)
        .map_err(|error| Failure::Failed(error.to_string()))?;
    readiness.set(State::Ready);
    say(&format!("tidegate ready http={} resp={} store=memory", shown(server.http()), shown(server.resp())));
    for signal in signals.forever() {
        if signal != SIGHUP {
            break;
        }
    }
    readiness.set(State::Draining);
    server.drain();
    Ok(())
}

fn settings(path: &Path) -> Result<Settings, Failure> {
    let (name, bytes) = read_whole(path)?;
    let color = color_of_stderr();
    let reading = tidegate::file::read(&name, &bytes)
        .map_err(|diagnostics| Failure::BadInput(diagnostics.render(color)))?;
    if !reading.warnings.is_empty() {
        say(&reading.warnings.render(color));
    }
    Ok(reading.settings)
}

fn places(args: &ServeArgs) -> Places {
    let workers = args.workers.or_else(|| available_parallelism().ok()).map_or(1, NonZeroUsize::get);
    Places { http: args.http.0, resp: args.resp.0, workers }
}

/// Whoever can be reached by strangers must know whom to answer.
fn check_public(places: &Places, settings: &Settings, insecure: bool) -> Result<(), Failure> {
    let public = [("http", places.http), ("resp", places.resp)]
        .into_iter()
        .find_map(|(door, place)| place.filter(|place| !place.ip().is_loopback()).map(|place| (door, place)));
    match public {
        Some((door, place)) if settings.tokens.is_none() && !insecure => Err(Failure::BadInput(format!(
            "{door}={place} can be reached from other machines, and nobody would need a token.\n\
             Make one with `tidegate token new` and write it into the settings under auth.tokens,\n\
             listen at 127.0.0.1, or say --insecure if something else keeps strangers away."
        ))),
        _ => Ok(()),
    }
}

/// How many connections the system lets this process have, after asking for as many as there are.
fn descriptors() -> usize {
    let limit = getrlimit(Resource::Nofile);
    let raised = Rlimit { current: limit.maximum, ..limit };
    let current = if setrlimit(Resource::Nofile, raised).is_ok() { raised.current } else { limit.current };
    let most = current.unwrap_or(u64::MAX).saturating_sub(SPARE_DESCRIPTORS).max(1);
    usize::try_from(most).unwrap_or(usize::MAX)
}

fn shown(address: Option<SocketAddr>) -> String {
    address.map_or("off".to_owned(), |address| address.to_string())
}
