//! `tidegate serve`: the rate-limit server over HTTP and RESP.

mod activity_environment;

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
use tidegate::store::LimitStore;
use tidegate_server::http::{HttpApi, Readiness, ReadinessState};
use tidegate_server::live_settings::LiveSettings;
use tidegate_server::metrics::ServerMetrics;
use tidegate_server::refusal_log::RefusalLog;
use tidegate_server::resp::RespService;
use tidegate_server::serve::{ConnectionBounds, ListenConfig, Server, ServerHandlers};
use tidegate_server::settings::{ActivitySpec, Listen, ServerSpec, Settings};
use tidegate_server::settings_reloader::SettingsReloader;

use crate::args::ServeArgs;
use crate::open_store::OpenStore;
use crate::{Failure, color_of_stderr, log, print_message, read_settings};

use activity_environment::environment;

/// File descriptors reserved for other uses than connections.
const SPARE_DESCRIPTORS: u64 = 64;

/// Default addresses.
const HTTP: SocketAddr = SocketAddr::new(IpAddr::V4(Ipv4Addr::LOCALHOST), 7700);
const RESP: SocketAddr = SocketAddr::new(IpAddr::V4(Ipv4Addr::LOCALHOST), 7701);

/// Runs the server until a stop signal.
pub(crate) fn run(args: &ServeArgs) -> Result<(), Failure> {
    log::init(args.logging.log, args.logging.log_level)?;
    // Installed first, so that no signal is lost.
    let signals = Signals::new([SIGTERM, SIGINT, SIGHUP])
        .map_err(|error| Failure::Failed(format!("cannot wait for signals: {error}")))?;
    let activity_overrides = environment()?;
    let settings = args.config.as_deref().map(read_server_settings).transpose()?.unwrap_or_default();
    let listen = listen_config(args, &settings.server);
    if listen.http.is_none() && listen.resp.is_none() {
        let why = "HTTP and RESP are both off; give --http or --resp an address";
        return Err(Failure::BadInput(why.to_owned()));
    }
    let is_public = check_public(&listen, &settings, args.insecure)?;
    let url = args.store.as_ref().or(settings.store.url.as_ref());
    let open_store = OpenStore::open(url, settings.store.memory)?;
    let served = serve(args, &settings, activity_overrides, &listen, is_public, &open_store, signals);
    // The store is closed cleanly after an error too, so that the next start needs no recovery.
    let stopped = open_store.stop();
    log::finish();
    served.and(stopped)
}

/// Runs the server on an open store.
fn serve(
    args: &ServeArgs,
    settings: &Settings,
    activity_overrides: ActivitySpec,
    listen: &ListenConfig,
    is_public: bool,
    open_store: &OpenStore,
    mut signals: Signals,
) -> Result<(), Failure> {
    let store = open_store.store();
    let limiter = Limiter::new(Arc::clone(&store));
    let activity = Activity::of_store(limiter.clone());
    let live_settings =
        LiveSettings::new(Arc::clone(&store)).with_activity(activity.clone(), activity_overrides);
    let live_settings =
        Arc::new(if is_public && !args.insecure { live_settings.require_tokens() } else { live_settings });
    let reloader =
        apply_settings(args.config.as_deref(), &live_settings).map_err(|why| match store.outage() {
            Some(_) => Failure::Failed(why),
            None => Failure::BadInput(why),
        })?;
    let mut readiness = Readiness::new(ReadinessState::Starting);
    let mut metrics = ServerMetrics::new(listen.workers);
    if let Some(reloader) = &reloader {
        readiness = readiness.with_settings(Arc::clone(reloader));
        metrics = metrics.reloads(Arc::clone(reloader));
    }
    let (readiness, metrics) = (Arc::new(readiness), Arc::new(metrics));
    let refusals = Arc::new(RefusalLog::new(store.capabilities().tick));
    let from_file = Arc::clone(&live_settings);
    let api = HttpApi::new(Arc::clone(&store), limiter.clone())
        .readiness(Arc::clone(&readiness))
        .metrics(Arc::clone(&metrics))
        .refusal_log(Arc::clone(&refusals))
        .activity(activity)
        .from_file(move |id| from_file.is_from_file(id));
    let authenticator = Arc::clone(live_settings.tokens());
    let resp =
        RespService::new(store, Arc::clone(&authenticator) as _).with_limiter(limiter).refusal_log(refusals);
    let service = ServerHandlers { api, resp, authenticator, metrics };
    let server = Server::start(service, listen, connection_bounds(&settings.server))
        .map_err(|error| Failure::Failed(error.to_string()))?;
    let watching = reloader.as_ref().map(SettingsReloader::watch_file).transpose();
    let _watching =
        watching.map_err(|error| Failure::Failed(format!("cannot watch the settings: {error}")))?;
    readiness.set(ReadinessState::Ready);
    let (http, resp) = (address_text(server.http()), address_text(server.resp()));
    print_message(&format!("tidegate ready http={http} resp={resp} store={}", open_store.kind()));
    let _watched = watch_store(open_store.store())?;
    for signal in signals.forever() {
        match (signal, &reloader) {
            // The reloader logs the outcome.
            (SIGHUP, Some(reloader)) => {
                let _outcome = reloader.reload_now();
            }
            (SIGHUP, None) => tracing::info!("no settings file to reload"),
            _ => break,
        }
    }
    tracing::info!("stop signal received; draining");
    readiness.set(ReadinessState::Draining);
    // A second signal ends the process without draining.
    std::thread::spawn(move || {
        if signals.forever().any(|signal| signal != SIGHUP) {
            end_at_once();
        }
    });
    server.drain();
    Ok(())
}

/// Interval of the store health check.
const STORE_CHECK_INTERVAL: Duration = Duration::from_secs(1);

/// Logs when the store cannot write, and when it can again. Stops when the returned sender is dropped.
fn watch_store(store: Arc<dyn LimitStore>) -> Result<mpsc::Sender<()>, Failure> {
    let (stop, stopped) = mpsc::channel();
    let look = move || {
        let mut known = None;
        while stopped.recv_timeout(STORE_CHECK_INTERVAL) == Err(mpsc::RecvTimeoutError::Timeout) {
            let outage = store.outage();
            if outage == known {
                continue;
            }
            if let Some(why) = &outage {
                tracing::error!(reason = %why.reason, "the store cannot write; limits follow their on_outage");
            } else {
                tracing::info!("the store can write again");
            }
            known = outage;
        }
    };
    let begun = std::thread::Builder::new().name("tidegate-watch".to_owned()).spawn(look);
    begun.map_err(|error| Failure::Failed(format!("cannot start a thread: {error}")))?;
    Ok(stop)
}

/// Exits without draining.
#[expect(clippy::disallowed_methods, reason = "this is the crate that ends the process")]
pub(crate) fn end_at_once() -> ! {
    std::process::exit(1)
}

/// Reads the settings file before anything is started.
fn read_server_settings(path: &Path) -> Result<Settings, Failure> {
    let (name, bytes) = read_settings(path)?;
    let reading = tidegate_server::settings::read(&name, &bytes);
    Ok(reading.map_err(|wrong| Failure::BadInput(wrong.render(color_of_stderr())))?.settings)
}

/// Applies the limits of the file, or keeps those of the store.
fn apply_settings(
    path: Option<&Path>,
    live_settings: &Arc<LiveSettings>,
) -> Result<Option<Arc<SettingsReloader>>, String> {
    let Some(path) = path else {
        return live_settings.apply_defaults().map(|()| None).map_err(|error| error.to_string());
    };
    let reloader = Arc::new(SettingsReloader::new(path, Arc::clone(live_settings), SystemClock::new()));
    match reloader.reload_now().result {
        Ok(_) => Ok(Some(reloader)),
        Err(failed) => Err(failed.to_string()),
    }
}

fn listen_config(args: &ServeArgs, spec: &ServerSpec) -> ListenConfig {
    let address = |flag: Option<Listen>, setting: Option<Listen>, default: SocketAddr| match flag
        .or(setting)
        .unwrap_or(Listen::At(default))
    {
        Listen::At(address) => Some(address),
        Listen::Off => None,
    };
    let setting = spec.workers.and_then(|workers| usize::try_from(workers).ok());
    let cores = || available_parallelism().map_or(1, NonZeroUsize::get);
    ListenConfig {
        http: address(args.http, spec.http, HTTP),
        resp: address(args.resp, spec.resp, RESP),
        workers: args.workers.map(NonZeroUsize::get).or(setting).unwrap_or_else(cores),
    }
}

fn connection_bounds(spec: &ServerSpec) -> ConnectionBounds {
    let default = ConnectionBounds::default();
    let connections = spec.max_connections.and_then(|most| usize::try_from(most).ok());
    ConnectionBounds {
        connections: connections.unwrap_or(default.connections).min(descriptors()),
        idle: spec.idle_timeout.unwrap_or(default.idle),
        head: spec.header_timeout.unwrap_or(default.head),
        request: spec.request_timeout.unwrap_or(default.request),
        drain: spec.drain.unwrap_or(default.drain),
        ..default
    }
}

/// Whether the server has a public address. A public server needs tokens or `--insecure`.
fn check_public(listen: &ListenConfig, settings: &Settings, insecure: bool) -> Result<bool, Failure> {
    let protocols = [("http", listen.http), ("resp", listen.resp)];
    let public = protocols.into_iter().find_map(|(protocol, address)| {
        address
            .filter(|address| !address.ip().to_canonical().is_loopback())
            .map(|address| (protocol, address))
    });
    match public {
        Some((protocol, address)) if settings.tokens.is_none() && !insecure => {
            Err(Failure::BadInput(format!(
                "{protocol}={address} is a public address, and no tokens are configured.\n\
             Create one with `tidegate token new` and add it to auth.tokens in the settings,\n\
             listen on 127.0.0.1, or give --insecure if the network restricts access."
            )))
        }
        public => Ok(public.is_some()),
    }
}

/// The number of connections that this process may open, after raising its descriptor limit.
pub(crate) fn descriptors() -> usize {
    let limit = getrlimit(Resource::Nofile);
    let raised = Rlimit { current: limit.maximum, ..limit };
    let current = if setrlimit(Resource::Nofile, raised).is_ok() { raised.current } else { limit.current };
    let most = current.unwrap_or(u64::MAX).saturating_sub(SPARE_DESCRIPTORS).max(1);
    usize::try_from(most).unwrap_or(usize::MAX)
}

fn address_text(address: Option<SocketAddr>) -> String {
    address.map_or("off".to_owned(), |address| address.to_string())
}
