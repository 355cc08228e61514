//! `tidegate cpu run`: the governor at work.
//!
//! ```text
//!   settings ─▶ what was left behind is put back ─▶ the command waits ─▶ limit in force ─▶ the command goes on
//!                                                                             │
//!             ended, or told to stop ◀── look, decide, enforce, tell ◀────────╯ every five seconds
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
use tidegate::file::CpuSpec;
use tidegate_cpu::cgroups::Roots;
use tidegate_cpu::clock::Clock;
use tidegate_cpu::guardian::{Guardian, restore_left_behind, tend, watch};
use tidegate_cpu::journal::{Journal, JournalError};
use tidegate_cpu::meter::cores;
use tidegate_cpu::metrics::{self, Governing};
use tidegate_cpu::runner::{RunError, Runner, recent};
use tidegate_cpu::status::Status;
use tidegate_cpu::{Governor, Settings};

use super::{atomic_file, format, settings, state_directory};
use crate::args::{CpuRunArgs, CpuWatchArgs};
use crate::{Failure, print_message};
use command::{ENDED_BY_SIGNAL, GovernedCommand};
use display::StatusDisplay;
use governed_target::GovernedTarget;

/// What ends or interrupts the waiting.
enum RunEvent {
    /// The command has ended, with this code.
    Ended(u8),
    /// Somebody says stop.
    Signaled(i32),
}

/// Governs until the command ends or somebody says stop.
pub(crate) fn run(args: &CpuRunArgs) -> Result<(), Failure> {
    let flags = args.spec();
    let file = settings::read(args.governor.config.as_deref(), &flags)?;
    let spec = flags.over(file);
    let settings = settings::settings(spec.clone(), CpuSpec::default())?;
    let program = args.command.first().map(|program| command::find(program)).transpose()?;
    if let Some(file) = &args.prometheus {
        // Whether it can be written at all; nothing is.
        atomic_file::AtomicFile::begin_for("--prometheus", file)?;
    }
    let is_new = !args.state.exists();
    let done = run_in_state(args, spec, settings, program);
    if let (true, Err(_)) = (is_new, &done) {
        // A start that was refused leaves nothing; one that was not has left samples there.
        let _not_empty = fs::remove_dir(&args.state);
    }
    done
}

fn run_in_state(
    args: &CpuRunArgs,
    spec: CpuSpec,
    settings: Settings,
    program: Option<PathBuf>,
) -> Result<(), Failure> {
    let state = &args.state;
    fs::create_dir_all(state)
        .map_err(|error| Failure::BadInput(format!("--state {}: {error}", state.display())))?;
    let journal = Journal::open(state, settings.retention).map_err(|error| match error {
        JournalError::InUse => {
            Failure::BadInput(format!("{error} ({}); name another one with --state", state.display()))
        }
        JournalError::Io(..) => Failure::Failed(error.to_string()),
    })?;
    put_back(state, args.quiet)?;
    let (events, received) = channel();
    listen_for_signals(events.clone())
        .map_err(|error| Failure::Failed(format!("signals cannot be heard: {error}")))?;
    let (guardian, mut started) = guard(state, program, &args.command)?;
    let governed = govern(args, (spec, settings), journal, &guardian, started.as_mut(), events, &received);
    if governed.is_err()
        && let Some(started) = &mut started
    {
        started.kill_waiting();
    }
    let finished = guardian.finish().map_err(|error| Failure::Failed(error.to_string()));
    let code = governed?;
    finished?;
    match code {
        None | Some(0) => Ok(()),
        Some(code) => Err(Failure::Ended(code)),
    }
}

/// What a governor before us could not put back.
fn put_back(state: &Path, is_quiet: bool) -> Result<(), Failure> {
    let restored = restore_left_behind(state).map_err(|error| Failure::Failed(error.to_string()))?;
    if !restored.undone.is_empty() && !is_quiet {
        let count = restored.undone.len();
        print_message(&format!("{count} changes of a governor that ended without a word were put back"));
    }
    for (undo, error) in restored.failed {
        print_message(&format!("this could not be put back: {undo:?}: {error}"));
    }
    Ok(())
}

/// The watchdog is this program too, and starts the command.
fn guard(
    state: &Path,
    program: Option<PathBuf>,
    command: &[OsString],
) -> Result<(Guardian, Option<GovernedCommand>), Failure> {
    let itself = std::env::current_exe().map_err(|error| Failure::Failed(format!("where am I: {error}")))?;
    let args = [OsStr::new("cpu"), OsStr::new("watch")];
    let guarded = match program {
        None => Guardian::spawn(state, &itself, &args).map(|guardian| (guardian, None)),
        Some(program) => {
            let rest = command.iter().skip(1).cloned();
            let command: Vec<OsString> = std::iter::once(program.into_os_string()).chain(rest).collect();
            Guardian::spawn_with(state, &itself, &args, &command)
                .map(|(guardian, ward)| (guardian, Some(GovernedCommand::new(ward))))
        }
    };
    guarded.map_err(|error| Failure::Failed(error.to_string()))
}

/// What the watchdog does: waits for the governor to end, and puts back what it could not.
pub(crate) fn run_watchdog(args: &CpuWatchArgs) -> Result<(), Failure> {
    let Some((program, rest)) = args.command.split_first() else {
        let _restored = watch(io::stdin().lock());
        return Ok(());
    };
    let failed = |error: io::Error| Failure::Failed(error.to_string());
    // They are meant for the governor. Caught rather than ignored, so that the command has them as they were.
    for signal in not_ignored().map_err(failed)? {
        signal_hook::flag::register(signal, Arc::default()).map_err(failed)?;
    }
    let _restored = tend(io::stdin().as_fd().try_clone_to_owned().map_err(failed)?, program.as_ref(), rest);
    Ok(())
}

/// One look after another, until the end. The exit code of the command, if it was that which ended.
fn govern(
    args: &CpuRunArgs,
    (spec, settings): (CpuSpec, Settings),
    journal: Journal,
    guardian: &Guardian,
    mut started: Option<&mut GovernedCommand>,
    events: Sender<RunEvent>,
    received: &Receiver<RunEvent>,
) -> Result<Option<u8>, Failure> {
    let roots = &Roots::default();
    let clock = Clock::new(&roots.proc).map_err(|error| Failure::Failed(format!("the clock: {error}")))?;
    let samples =
        recent(&args.state, &settings, clock.now()).map_err(|error| Failure::Failed(error.to_string()))?;
    let target = GovernedTarget::find(args, &settings, roots, guardian, started.as_deref())?;
    let mut display = StatusDisplay::new(args, &target.description);
    let GovernedTarget { meter, part, enforcer, .. } = target;
    let mut runner =
        Runner::begin(settings, (journal, &samples), cores(), meter, part, enforcer, clock.now())
            .map_err(failed)?;
    // Whoever looks at the samples reads them by these; a start that was refused has none.
    state_directory::save_settings(&args.state, &spec)?;
    write_metrics(args, runner.governor(), Governing::Yes)
        .map_err(|failure| Failure::BadInput(format!("--prometheus: {failure}")))?;
    display.begin(runner.governor());
    if let Some(started) = &mut started {
        started.resume(events)?;
    }
    let mut has_forwarded = false;
    let (mut ungoverned, mut unwritten_metrics, mut unkept) =
        (RepeatedWarning::default(), RepeatedWarning::default(), RepeatedWarning::default());
    let (mut watchdog_gone, mut surplus_warning) = (RepeatedWarning::default(), RepeatedWarning::default());
    surplus_warning.is(surplus(&runner));
    let code = loop {
        match received.recv_timeout(runner.pause(clock.now())) {
            Err(RecvTimeoutError::Timeout) => {}
            Ok(RunEvent::Ended(code)) => break Some(code),
            Ok(RunEvent::Signaled(signal)) => match &started {
                // Its end is waited for; whoever says it twice does not want to.
                Some(started) if !has_forwarded => {
                    started.forward_signal(signal);
                    has_forwarded = true;
                    continue;
                }
                // The command runs on: that is not how it ended.
                Some(_) => break u8::try_from(ENDED_BY_SIGNAL + signal).ok(),
                None => break None,
            },
            Err(RecvTimeoutError::Disconnected) => break None,
        }
        let renewed = guardian.renew();
        watchdog_gone
            .is(renewed.err().map(|error| format!("the watchdog is gone, and there is no other: {error}")));
        let look = match runner.look(clock.now()) {
            Ok(look) => look,
            // What was governed is gone; its command says how.
            Err(error) if is_gone(&error) && started.is_some() => continue,
            Err(error) if is_gone(&error) => {
                display.gone();
                break None;
            }
            // It may be over in a moment; meanwhile somebody should know.
            Err(error) => {
                ungoverned.is(Some(format!("not governing at the moment: {error}")));
                continue;
            }
        };
        ungoverned.is(None);
        surplus_warning.is(surplus(&runner));
        display.look(runner.governor(), &look);
        let received = write_metrics(args, runner.governor(), Governing::Yes);
        unwritten_metrics.is(received.err().map(|failure| failure.to_string()));
        unkept.is(runner.unkept().map(|error| format!("samples cannot be kept, governing goes on: {error}")));
    };
    // What was used until now is known, unless it went with its counter.
    let _gone = runner.look(clock.now());
    let (mut governor, kept) = runner.finish().map_err(failed)?;
    unkept.is(kept.err().map(|error| format!("the last samples may not be kept: {error}")));
    let received = write_metrics(args, &mut governor, Governing::No);
    unwritten_metrics.is(received.err().map(|failure| failure.to_string()));
    display.end(&mut governor);
    Ok(code)
}

/// Something that is wrong and does not end the run: told once, until it is something else.
#[derive(Default)]
struct RepeatedWarning(Option<String>);

impl RepeatedWarning {
    fn is(&mut self, now: Option<String>) {
        if let Some(trouble) = now.as_ref().filter(|_| self.0 != now) {
            print_message(trouble);
        }
        self.0 = now;
    }
}

/// What to say if a counter rose by more than the machine can do.
fn surplus(runner: &Runner) -> Option<String> {
    let surplus = format::short_quota(runner.surplus()?);
    Some(format!("the counter rose by {surplus} more than all cores can do in that time; that is left out"))
}

/// Writes the metrics, if anybody wants them.
fn write_metrics(args: &CpuRunArgs, governor: &mut Governor, governing: Governing) -> Result<(), Failure> {
    let Some(file) = &args.prometheus else { return Ok(()) };
    atomic_file::write_atomically(file, &metrics::text(&Status::of(governor), governing))
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

/// Hears the signals by which programs are told to stop.
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

/// The signals by which programs are told to stop, without those that whoever started us wants ignored, as `nohup` does.
fn not_ignored() -> io::Result<Vec<i32>> {
    let status = fs::read_to_string("/proc/self/status")?;
    let ignored = status.lines().find_map(|line| line.strip_prefix("SigIgn:"));
    let ignored = ignored.and_then(|mask| u64::from_str_radix(mask.trim(), 16).ok()).unwrap_or_default();
    Ok([SIGINT, SIGTERM, SIGHUP].into_iter().filter(|signal| ignored >> (signal - 1) & 1 == 0).collect())
}
