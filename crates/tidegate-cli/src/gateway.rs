//! `tidegate gateway`: runs a reverse proxy with limits until it is stopped.

use std::io;
use std::net::SocketAddr;
use std::num::NonZeroUsize;
use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread::available_parallelism;
use std::time::Duration;

use signal_hook::consts::{SIGHUP, SIGINT, SIGTERM};
use signal_hook::iterator::Signals;
use tidegate_gateway::access_log::AccessLogFormat;
use tidegate_gateway::reload::Reloader;
use tidegate_gateway::settings::read_gateway;
use tidegate_gateway::{AccessLogWriter, Gateway, GatewayError, GatewayOptions, management_api};

use crate::args::{AccessLog, GatewayArgs};
use crate::serve::{descriptors, end_at_once};
use crate::{Failure, color_of_stderr, log, print_message, read_settings};

/// The maximum time to write the last access log lines.
const LAST_LINES: Duration = Duration::from_secs(1);

/// Serves until a signal stops it.
pub(crate) fn run(args: &GatewayArgs) -> Result<(), Failure> {
    log::init(args.logging.log, args.logging.log_level)?;
    // Register early, so that no signal is lost.
    let signals = Signals::new([SIGTERM, SIGINT, SIGHUP])
        .map_err(|error| Failure::Failed(format!("cannot wait for signals: {error}")))?;
    let served = serve(args, signals);
    log::finish();
    served
}

/// Looks up `${env:NAME}`.
#[expect(clippy::disallowed_methods, reason = "this is the crate that reads the environment")]
pub(crate) fn environment(name: &str) -> Option<String> {
    std::env::var(name).ok()
}

fn serve(args: &GatewayArgs, mut signals: Signals) -> Result<(), Failure> {
    if args.config == Path::new("-") {
        let why = "the settings must be a file, which can be read again; found standard input";
        return Err(Failure::BadInput(why.to_owned()));
    }
    let (name, bytes) = read_settings(&args.config)?;
    let spec = read_gateway(&name, &bytes, &environment)
        .map_err(|wrong| Failure::BadInput(wrong.render(color_of_stderr())))?;
    let management = spec.management;
    if let Some(address) = management {
        // Check the management port before the gateway serves requests.
        management_api::check(address).map_err(|error| unmanaged(address, error))?;
    }
    let access_log = access_log(args.access_log)?;
    let cores = || available_parallelism().map_or(1, NonZeroUsize::get);
    let means = GatewayOptions {
        workers: args.workers.map_or_else(cores, NonZeroUsize::get),
        connections: descriptors(),
        access_log: access_log.clone(),
        ..GatewayOptions::default()
    };
    let gateway = Gateway::start(spec, means).map_err(|error| match error {
        GatewayError::Thread(_) => Failure::Failed(error.to_string()),
        _ => Failure::BadInput(error.to_string()),
    })?;
    let reloader = Arc::new(gateway.reloader(&args.config, Box::new(environment)));
    let watching = reloader.watch_file();
    let _watching =
        watching.map_err(|error| Failure::Failed(format!("cannot watch the settings: {error}")))?;
    let managed = management.map(|address| managed(address, &reloader)).transpose()?;
    let at = managed.as_ref().map_or("off".to_owned(), |managed| managed.address().to_string());
    print_message(&format!("tidegate gateway ready http={} management={at}", gateway.address()));
    for signal in signals.forever() {
        if signal != SIGHUP {
            break;
        }
        // The result is in the log.
        let _told = reloader.reload_now();
    }
    tracing::info!("stopping; active requests are completed");
    // A second signal aborts the drain. A third one exits at once, without writing the remaining log lines.
    let abort = gateway.abort_signal();
    let is_hurried = Arc::new(AtomicBool::new(false));
    let hurried = Arc::clone(&is_hurried);
    std::thread::spawn(move || {
        let mut again = signals.forever().filter(|signal| *signal != SIGHUP);
        if again.next().is_some() {
            hurried.store(true, Ordering::Release);
            abort.trigger();
        }
        if again.next().is_some() {
            end_at_once();
        }
    });
    gateway.drain();
    if let Some(access_log) = access_log {
        access_log.finish(LAST_LINES);
    }
    if is_hurried.load(Ordering::Acquire) {
        return Err(Failure::Failed("stopped by a second signal; active requests were cut off".to_owned()));
    }
    Ok(())
}

/// Opens the management port.
fn managed(address: SocketAddr, reloader: &Arc<Reloader>) -> Result<management_api::ManagementPort, Failure> {
    management_api::start(address, Arc::clone(reloader) as _).map_err(|error| unmanaged(address, error))
}

fn unmanaged(address: SocketAddr, error: io::Error) -> Failure {
    let why = GatewayError::Address { address, error };
    Failure::BadInput(format!("the management port cannot be opened: {why}"))
}

/// Starts the access log writer, if enabled.
fn access_log(wanted: AccessLog) -> Result<Option<AccessLogWriter>, Failure> {
    let format = match wanted {
        AccessLog::Off => return Ok(None),
        AccessLog::Text => AccessLogFormat::Text,
        AccessLog::Json => AccessLogFormat::Json,
    };
    let access_log = AccessLogWriter::start(io::stdout(), format);
    access_log.map(Some).map_err(|error| Failure::Failed(format!("cannot start a thread: {error}")))
}
