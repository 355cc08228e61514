//! `tidegate cpu run`: the governor.
//!
//! ```text
//!   settings ─▶ undo leftovers ─▶ command started, paused ─▶ first limit in force ─▶ command resumed
//!                                                                                        │
//!             end of command, or signal ◀── measure, decide, enforce, display ◀──────────╯ every five seconds
//! ```

mod command;
mod display;
mod governed_target;

use std::ffi::{OsStr, OsString};
use std::fs;
use std::io;
use std::os::fd::AsFd;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::mpsc::{Receiver, RecvTimeoutError, Sender, channel};
use std::thread;

use signal_hook::consts::{SIGHUP, SIGINT, SIGTERM};
use signal_hook::iterator::Signals;
use tidegate_cpu::cgroups::FilesystemRoots;
use tidegate_cpu::clock::MachineClock;
use tidegate_cpu::journal::{JournalError, SampleJournal};
use tidegate_cpu::meter::cores;
use tidegate_cpu::metrics::{self, GovernorState};
use tidegate_cpu::runner::{RunError, Runner, recent};
use tidegate_cpu::settings::CpuSpec;
use tidegate_cpu::status::GovernorStatus;
use tidegate_cpu::watchdog::{CpuWatchdog, restore_left_behind, run_command_watchdog, watch};
use tidegate_cpu::{Governor, GovernorSettings};

use super::{atomic_file, format, settings, state_directory};
use crate::args::{CpuRunArgs, CpuWatchArgs};
use crate::{Failure, print_message};
use command::{ENDED_BY_SIGNAL, GovernedCommand};
use display::StatusDisplay;
use governed_target::GovernedTarget;

/// An event that ends or interrupts the wait for the next sample.
enum RunEvent {
    /// The command ended with this code.
    Ended(u8),
    /// A signal asks the governor to stop.
    Signaled(i32),
}

/// Governs until the command ends or a signal arrives.
pub(crate) fn run(args: &CpuRunArgs) -> Result<(), Failure> {
    let flags = args.spec();
    let file = settings::read(args.governor.config.as_deref(), &flags)?;
    let spec = flags.over(file);
    let settings = settings::settings(spec.clone(), CpuSpec::default())?;
    let program = args.command.first().map(|program| command::find(program)).transpose()?;
    if let Some(file) = &args.prometheus {
        // Checks that the file can be written; nothing is written yet.
        atomic_file::AtomicFile::begin_for("--prometheus", file)?;
    }
    let is_new = !args.state.exists();
    let done = run_in_state(args, spec, settings, program);
    if let (true, Err(_)) = (is_new, &done) {
        // A refused start leaves no directory. Otherwise the directory has samples and the removal fails.
        let _not_empty = fs::remove_dir(&args.state);
    }
    done
}

fn run_in_state(
    args: &CpuRunArgs,
    spec: CpuSpec,
    settings: GovernorSettings,
    program: Option<PathBuf>,
) -> Result<(), Failure> {
    let state = &args.state;
    fs::create_dir_all(state)
        .map_err(|error| Failure::BadInput(format!("--state {}: {error}", state.display())))?;
    let journal = SampleJournal::open(state, settings.retention).map_err(|error| match error {
        JournalError::InUse => {
            Failure::BadInput(format!("{error} ({}); name another one with --state", state.display()))
        }
        JournalError::Io(..) => Failure::Failed(error.to_string()),
    })?;
    undo_leftovers(state, args.quiet)?;
    let (events, received) = channel();
    listen_for_signals(events.clone())
        .map_err(|error| Failure::Failed(format!("cannot listen for signals: {error}")))?;
    let (watchdog, mut started) = start_watchdog(state, program, &args.command)?;
    let governed = govern(args, (spec, settings), journal, &watchdog, started.as_mut(), events, &received);
    if governed.is_err()
        && let Some(started) = &mut started
    {
        started.kill_waiting();
    }
    let finished = watchdog.finish().map_err(|error| Failure::Failed(error.to_string()));
    let code = governed?;
    finished?;
    match code {
        None | Some(0) => Ok(()),
        Some(code) => Err(Failure::Ended(code)),
    }
}

/// Undoes the changes that an earlier governor left behind.
fn undo_leftovers(state: &Path, is_quiet: bool) -> Result<(), Failure> {
    let restored = restore_left_behind(state).map_err(|error| Failure::Failed(error.to_string()))?;
    if !restored.undone.is_empty() && !is_quiet {
        let count = restored.undone.len();
        print_message(&format!("{count} changes of a governor that ended abnormally were undone"));
    }
    for (undo, error) in restored.failed {
        print_message(&format!("this change could not be undone: {undo:?}: {error}"));
    }
    Ok(())
}

/// Starts the watchdog, which is this program too and starts the command.
fn start_watchdog(
    state: &Path,
    program: Option<PathBuf>,
    command: &[OsString],
) -> Result<(CpuWatchdog, Option<GovernedCommand>), Failure> {
    let program_path = std::env::current_exe()
        .map_err(|error| Failure::Failed(format!("cannot find this program: {error}")))?;
    let args = [OsStr::new("cpu"), OsStr::new("watch")];
    let guarded = match program {
        None => CpuWatchdog::spawn(state, &program_path, &args).map(|watchdog| (watchdog, None)),
        Some(program) => {
            let rest = command.iter().skip(1).cloned();
            let command: Vec<OsString> = std::iter::once(program.into_os_string()).chain(rest).collect();
            CpuWatchdog::spawn_with(state, &program_path, &args, &command)
                .map(|(watchdog, watched)| (watchdog, Some(GovernedCommand::new(watched))))
        }
    };
    guarded.map_err(|error| Failure::Failed(error.to_string()))
}

/// The watchdog: waits for the governor's end and undoes its remaining changes.
pub(crate) fn run_watchdog(args: &CpuWatchArgs) -> Result<(), Failure> {
    let Some((program, rest)) = args.command.split_first() else {
        let _restored = watch(io::stdin().lock());
        return Ok(());
    };
    let failed = |error: io::Error| Failure::Failed(error.to_string());
    // These signals are for the governor. A handler instead of `SIG_IGN` leaves the command's dispositions unchanged.
    for signal in not_ignored().map_err(failed)? {
        signal_hook::flag::register(signal, Arc::default()).map_err(failed)?;
    }
    let _restored = run_command_watchdog(
        io::stdin().as_fd().try_clone_to_owned().map_err(failed)?,
        program.as_ref(),
        rest,
    );
    Ok(())
}

/// Samples until the end. Returns the command's exit code, if the command ended.
fn govern(
    args: &CpuRunArgs,
    (spec, settings): (CpuSpec, GovernorSettings),
    journal: SampleJournal,
    watchdog: &CpuWatchdog,
    mut started: Option<&mut GovernedCommand>,
    events: Sender<RunEvent>,
    received: &Receiver<RunEvent>,
) -> Result<Option<u8>, Failure> {
    let roots = &FilesystemRoots::default();
    let clock =
        MachineClock::new(&roots.proc).map_err(|error| Failure::Failed(format!("the clock: {error}")))?;
    let samples =
        recent(&args.state, &settings, clock.now()).map_err(|error| Failure::Failed(error.to_string()))?;
    let target = GovernedTarget::find(args, &settings, roots, watchdog, started.as_deref())?;
    let mut display = StatusDisplay::new(args, &target.description);
    let GovernedTarget { meter, part, enforcer, .. } = target;
    let mut runner =
        Runner::start(settings, (journal, &samples), cores(), meter, part, enforcer, clock.now())
            .map_err(failed)?;
    // Readers of the samples need these settings. A refused start has no samples, so it saves nothing.
    state_directory::save_settings(&args.state, &spec)?;
    write_metrics(args, runner.governor(), GovernorState::Running)
        .map_err(|failure| Failure::BadInput(format!("--prometheus: {failure}")))?;
    display.begin(runner.governor());
    if let Some(started) = &mut started {
        started.resume(events)?;
    }
    let mut has_forwarded = false;
    let (mut ungoverned, mut unwritten_metrics, mut unkept) =
        (RepeatedWarning::default(), RepeatedWarning::default(), RepeatedWarning::default());
    let (mut watchdog_gone, mut surplus_warning) = (RepeatedWarning::default(), RepeatedWarning::default());
    surplus_warning.update(surplus(&runner));
    let code = loop {
        match received.recv_timeout(runner.next_sample_in(clock.now())) {
            Err(RecvTimeoutError::Timeout) => {}
            Ok(RunEvent::Ended(code)) => break Some(code),
            Ok(RunEvent::Signaled(signal)) => match &started {
                // The first signal is forwarded and the command's end is awaited. The second ends the governor.
                Some(started) if !has_forwarded => {
                    started.forward_signal(signal);
                    has_forwarded = true;
                    continue;
                }
                // The command goes on, so its exit code is unknown.
                Some(_) => break u8::try_from(ENDED_BY_SIGNAL + signal).ok(),
                None => break None,
            },
            Err(RecvTimeoutError::Disconnected) => break None,
        }
        let renewed = watchdog.restart_if_exited();
        watchdog_gone.update(
            renewed.err().map(|error| format!("the watchdog has ended and is not restarted: {error}")),
        );
        let look = match runner.sample(clock.now()) {
            Ok(look) => look,
            // The target is gone; the exit code of the command follows.
            Err(error) if is_gone(&error) && started.is_some() => continue,
            Err(error) if is_gone(&error) => {
                display.gone();
                break None;
            }
            // The failure may be temporary; meanwhile a warning is due.
            Err(error) => {
                ungoverned.update(Some(format!("not governing at the moment: {error}")));
                continue;
            }
        };
        ungoverned.update(None);
        surplus_warning.update(surplus(&runner));
        display.look(runner.governor(), &look);
        let written = write_metrics(args, runner.governor(), GovernorState::Running);
        unwritten_metrics.update(written.err().map(|failure| failure.to_string()));
        unkept.update(
            runner.journal_error().map(|error| format!("samples cannot be kept, governing goes on: {error}")),
        );
    };
    // Accounts for the time until now, unless the counter is gone.
    let _gone = runner.sample(clock.now());
    let (mut governor, kept) = runner.finish().map_err(failed)?;
    unkept.update(kept.err().map(|error| format!("the last samples may not be kept: {error}")));
    let written = write_metrics(args, &mut governor, GovernorState::Stopped);
    unwritten_metrics.update(written.err().map(|failure| failure.to_string()));
    display.end(&mut governor);
    Ok(code)
}

/// A warning about a persistent problem, printed once until it changes.
#[derive(Default)]
struct RepeatedWarning(Option<String>);

impl RepeatedWarning {
    fn update(&mut self, now: Option<String>) {
        if let Some(trouble) = now.as_ref().filter(|_| self.0 != now) {
            print_message(trouble);
        }
        self.0 = now;
    }
}

/// A warning if the counter rose by more than the machine can use.
fn surplus(runner: &Runner) -> Option<String> {
    let surplus = format::short_quota(runner.discarded_usage()?);
    Some(format!(
        "the counter rose by {surplus} more than all cores can use in that time; the excess is ignored"
    ))
}

/// Writes the metrics file, if requested.
fn write_metrics(
    args: &CpuRunArgs,
    governor: &mut Governor,
    governing: GovernorState,
) -> Result<(), Failure> {
    let Some(file) = &args.prometheus else { return Ok(()) };
    atomic_file::write_atomically(file, &metrics::text(&GovernorStatus::of(governor), governing))
}

fn is_gone(error: &RunError) -> bool {
    use tidegate_cpu::cgroups::CgroupError;
    use tidegate_cpu::enforcer::EnforceError;
    use tidegate_cpu::meter::MeterError;
    let gone = |error: &MeterError| {
        matches!(error, MeterError::Gone { .. } | MeterError::Cgroup(CgroupError::Missing { .. }))
    };
    match error {
        RunError::Meter(error) | RunError::Enforce(EnforceError::Meter(error)) => gone(error),
        RunError::Enforce(EnforceError::Gone { .. } | EnforceError::Cgroup(CgroupError::Missing { .. })) => {
            true
        }
        _ => false,
    }
}

#[expect(clippy::needless_pass_by_value, reason = "it is how errors are mapped")]
fn failed(error: RunError) -> Failure {
    Failure::Failed(error.to_string())
}

/// Listens for the signals that stop the governor.
fn listen_for_signals(events: Sender<RunEvent>) -> io::Result<()> {
    let mut signals = Signals::new(not_ignored()?)?;
    thread::Builder::new().name("signals".to_owned()).spawn(move || {
        for signal in signals.forever() {
            if events.send(RunEvent::Signaled(signal)).is_err() {
                return;
            }
        }
    })?;
    Ok(())
}

/// The stop signals, except those that the parent process ignores, as `nohup` does.
fn not_ignored() -> io::Result<Vec<i32>> {
    let status = fs::read_to_string("/proc/self/status")?;
    let ignored = status.lines().find_map(|line| line.strip_prefix("SigIgn:"));
    let ignored = ignored.and_then(|mask| u64::from_str_radix(mask.trim(), 16).ok()).unwrap_or_default();
    Ok([SIGINT, SIGTERM, SIGHUP].into_iter().filter(|signal| ignored >> (signal - 1) & 1 == 0).collect())
}
