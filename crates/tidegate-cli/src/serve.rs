//! `tidegate serve`: the engine behind HTTP and RESP, until somebody says stop.

use std::net::{IpAddr, Ipv4Addr, SocketAddr};
use std::num::NonZeroUsize;
use std::path::Path;
use std::sync::{Arc, mpsc};
use std::thread::available_parallelism;
use std::time::Duration;

use rustix::process::{Resource, Rlimit, getrlimit, setrlimit};
use signal_hook::consts::{SIGHUP, SIGINT, SIGTERM};
use signal_hook::iterator::Signals;
use tidegate::Limiter;
use tidegate::activity::Activity;
use tidegate::clock::SystemClock;
use tidegate::file::{ActivitySpec, Listen, ServerSpec, Settings};
use tidegate::store::LimitStore;
use tidegate_server::http::{HttpApi, Readiness, ReadinessState};
use tidegate_server::live_settings::LiveSettings;
use tidegate_server::metrics::ServerMetrics;
use tidegate_server::refusal_log::RefusalLog;
use tidegate_server::resp::RespService;
use tidegate_server::serve::{ConnectionBounds, ListenConfig, Server, ServerHandlers};
use tidegate_server::settings_reloader::SettingsReloader;

use crate::activity::environment;
use crate::args::ServeArgs;
use crate::open_store::OpenStore;
use crate::{Failure, color_of_stderr, log, print_message, read_settings};

/// Descriptors that are kept for other things than connections.
const SPARE_DESCRIPTORS: u64 = 64;

/// Where it listens unless said.
const HTTP: SocketAddr = SocketAddr::new(IpAddr::V4(Ipv4Addr::LOCALHOST), 7700);
const RESP: SocketAddr = SocketAddr::new(IpAddr::V4(Ipv4Addr::LOCALHOST), 7701);

/// Serves until it is told to stop.
pub(crate) fn run(args: &ServeArgs) -> Result<(), Failure> {
    log::init(args.logging.log, args.logging.log_level)?;
    // Nobody's signal gets lost between here and the end.
    let signals = Signals::new([SIGTERM, SIGINT, SIGHUP])
        .map_err(|error| Failure::Failed(format!("cannot wait for signals: {error}")))?;
    let over = environment()?;
    let settings = args.config.as_deref().map(settings).transpose()?.unwrap_or_default();
    let places = places(args, &settings.server);
    if places.http.is_none() && places.resp.is_none() {
        let why = "both doors are off, and nobody could ask anything; give --http or --resp an address";
        return Err(Failure::BadInput(why.to_owned()));
    }
    let is_public = check_public(&places, &settings, args.insecure)?;
    let url = args.store.as_ref().or(settings.store.url.as_ref());
    let open_store = OpenStore::open(url, settings.store.memory)?;
    let served = serve(args, &settings, over, &places, is_public, &open_store, signals);
    // Also if nothing came of it: who finds the store next should not have to wonder what happened.
    let stopped = open_store.stop();
    log::finish();
    served.and(stopped)
}

/// Serves from a store that is open.
fn serve(
    args: &ServeArgs,
    settings: &Settings,
    over: ActivitySpec,
    places: &ListenConfig,
    is_public: bool,
    open_store: &OpenStore,
    mut signals: Signals,
) -> Result<(), Failure> {
    let store = open_store.store();
    let limiter = Limiter::new(Arc::clone(&store));
    let activity = Activity::of_store(limiter.clone());
    let rules = LiveSettings::new(Arc::clone(&store)).with_activity(activity.clone(), over);
    let rules = Arc::new(if is_public && !args.insecure { rules.require_tokens() } else { rules });
    let reloader = started(args.config.as_deref(), &rules).map_err(|why| match store.trouble() {
        Some(_) => Failure::Failed(why),
        None => Failure::BadInput(why),
    })?;
    let mut readiness = Readiness::new(ReadinessState::Starting);
    let mut metrics = ServerMetrics::new(places.workers);
    if let Some(reloader) = &reloader {
        readiness = readiness.with_settings(Arc::clone(reloader));
        metrics = metrics.reloads(Arc::clone(reloader));
    }
    let (readiness, metrics) = (Arc::new(readiness), Arc::new(metrics));
    let refusals = Arc::new(RefusalLog::new(store.capabilities().tick));
    let from_file = Arc::clone(&rules);
    let api = HttpApi::new(Arc::clone(&store), limiter.clone())
        .readiness(Arc::clone(&readiness))
        .metrics(Arc::clone(&metrics))
        .refusal_log(Arc::clone(&refusals))
        .activity(activity)
        .from_file(move |id| from_file.is_from_file(id));
    let authenticator = Arc::clone(rules.tokens());
    let resp =
        RespService::new(store, Arc::clone(&authenticator) as _).with_limiter(limiter).refusal_log(refusals);
    let service = ServerHandlers { api, resp, authenticator, metrics };
    let server = Server::start(service, places, bounds(&settings.server))
        .map_err(|error| Failure::Failed(error.to_string()))?;
    let watching = reloader.as_ref().map(SettingsReloader::watch_file).transpose();
    let _watching =
        watching.map_err(|error| Failure::Failed(format!("cannot watch the settings: {error}")))?;
    readiness.set(ReadinessState::Ready);
    let (http, resp) = (shown(server.http()), shown(server.resp()));
    print_message(&format!("tidegate ready http={http} resp={resp} store={}", open_store.kind()));
    let _watched = watch_store(open_store.store())?;
    for signal in signals.forever() {
        match (signal, &reloader) {
            // How it went is in the log.
            (SIGHUP, Some(reloader)) => {
                let _told = reloader.reload_now();
            }
            (SIGHUP, None) => tracing::info!("there are no settings to read again"),
            _ => break,
        }
    }
    tracing::info!("told to stop; finishing what is under way");
    readiness.set(ReadinessState::Draining);
    // Whoever does not want to wait for that says so again.
    std::thread::spawn(move || {
        if signals.forever().any(|signal| signal != SIGHUP) {
            end_at_once();
        }
    });
    server.drain();
    Ok(())
}

/// How often it is looked whether the store is well.
const STORE_CHECK_INTERVAL: Duration = Duration::from_secs(1);

/// Says in the log when the store's own log cannot be written, and when it can again; until the answer is dropped.
fn watch_store(store: Arc<dyn LimitStore>) -> Result<mpsc::Sender<()>, Failure> {
    let (watched, over) = mpsc::channel();
    let look = move || {
        let mut known = None;
        while over.recv_timeout(STORE_CHECK_INTERVAL) == Err(mpsc::RecvTimeoutError::Timeout) {
            let trouble = store.trouble();
            if trouble == known {
                continue;
            }
            if let Some(why) = &trouble {
                tracing::error!(reason = %why.reason, "the store cannot write; limits follow their on_outage");
            } else {
                tracing::info!("the store can write again");
            }
            known = trouble;
        }
    };
    let begun = std::thread::Builder::new().name("tidegate-watch".to_owned()).spawn(look);
    begun.map_err(|error| Failure::Failed(format!("cannot start a thread: {error}")))?;
    Ok(watched)
}

/// Nothing is waited for any more.
#[expect(clippy::disallowed_methods, reason = "this is the crate that ends the process")]
pub(crate) fn end_at_once() -> ! {
    std::process::exit(1)
}

/// The settings as they are before anything is started, or all that is wrong with them.
fn settings(path: &Path) -> Result<Settings, Failure> {
    let (name, bytes) = read_settings(path)?;
    let reading = tidegate::file::read(&name, &bytes);
    Ok(reading.map_err(|wrong| Failure::BadInput(wrong.render(color_of_stderr())))?.settings)
}

/// Puts the rules of the file into force, or leaves those of the store as they are; or says why that is not possible.
fn started(path: Option<&Path>, rules: &Arc<LiveSettings>) -> Result<Option<Arc<SettingsReloader>>, String> {
    let Some(path) = path else {
        return rules.apply_defaults().map(|()| None).map_err(|unfit| unfit.to_string());
    };
    let reloader = Arc::new(SettingsReloader::new(path, Arc::clone(rules), SystemClock::new()));
    match reloader.reload_now().result {
        Ok(_) => Ok(Some(reloader)),
        Err(failed) => Err(failed.to_string()),
    }
}

fn places(args: &ServeArgs, spec: &ServerSpec) -> ListenConfig {
    let place = |said: Option<Listen>, written: Option<Listen>, usual: SocketAddr| match said
        .or(written)
        .unwrap_or(Listen::At(usual))
    {
        Listen::At(address) => Some(address),
        Listen::Off => None,
    };
    let written = spec.workers.and_then(|workers| usize::try_from(workers).ok());
    let cores = || available_parallelism().map_or(1, NonZeroUsize::get);
    ListenConfig {
        http: place(args.http, spec.http, HTTP),
        resp: place(args.resp, spec.resp, RESP),
        workers: args.workers.map(NonZeroUsize::get).or(written).unwrap_or_else(cores),
    }
}

fn bounds(spec: &ServerSpec) -> ConnectionBounds {
    let usual = ConnectionBounds::default();
    let connections = spec.max_connections.and_then(|most| usize::try_from(most).ok());
    ConnectionBounds {
        connections: connections.unwrap_or(usual.connections).min(descriptors()),
        idle: spec.idle_timeout.unwrap_or(usual.idle),
        head: spec.header_timeout.unwrap_or(usual.head),
        request: spec.request_timeout.unwrap_or(usual.request),
        drain: spec.drain.unwrap_or(usual.drain),
        ..usual
    }
}

/// Whether strangers can reach the server. Whoever they can reach must know whom to answer.
fn check_public(places: &ListenConfig, settings: &Settings, insecure: bool) -> Result<bool, Failure> {
    let doors = [("http", places.http), ("resp", places.resp)];
    let public = doors.into_iter().find_map(|(door, place)| {
        place.filter(|place| !place.ip().to_canonical().is_loopback()).map(|place| (door, place))
    });
    match public {
        Some((door, place)) if settings.tokens.is_none() && !insecure => Err(Failure::BadInput(format!(
            "{door}={place} can be reached from other machines, and nobody would need a token.\n\
             Make one with `tidegate token new` and write it into the settings under auth.tokens,\n\
             listen at 127.0.0.1, or say --insecure if something else keeps strangers away."
        ))),
        public => Ok(public.is_some()),
    }
}

/// How many connections the system lets this process have, after asking for as many as there are.
pub(crate) fn descriptors() -> usize {
    let limit = getrlimit(Resource::Nofile);
    let raised = Rlimit { current: limit.maximum, ..limit };
    let current = if setrlimit(Resource::Nofile, raised).is_ok() { raised.current } else { limit.current };
    let most = current.unwrap_or(u64::MAX).saturating_sub(SPARE_DESCRIPTORS).max(1);
    usize::try_from(most).unwrap_or(usize::MAX)
}

fn shown(address: Option<SocketAddr>) -> String {
    address.map_or("off".to_owned(), |address| address.to_string())
}
