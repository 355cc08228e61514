//! `tidegate check`: reports all errors of a file at once, before the file is used.

use std::net::SocketAddr;

use crate::file_kind::FileKind;
use serde::Serialize;
use tidegate::model::LimitSpec;
use tidegate_config::{Diagnostic, Diagnostics, Severity};
use tidegate_server::settings;
use tidegate_server::settings::StoreUrl;

use crate::args::CheckArgs;
use crate::open_store::postgres_options;
use crate::{Failure, color_of_stderr, gateway, print_message, print_result, read_whole};

/// Checks a file, or prints the JSON schema of settings files.
pub(crate) fn run(args: &CheckArgs) -> Result<(), Failure> {
    let Some(path) = &args.file else { return print_schema() };
    let read = read_whole(path);
    if let (true, Err(unreadable)) = (args.json, &read) {
        answer_json(&CheckReport::unreadable(&path.display().to_string(), &unreadable.to_string()))?;
    }
    let (name, bytes) = read?;
    match FileKind::of(&bytes) {
        FileKind::Cpu => check_cpu(args, &name, &bytes),
        FileKind::Gateway => check_gateway(args, &name, &bytes),
        FileKind::Settings => check_settings(args, &name, &bytes),
    }
}

/// Checks settings of the CPU governor.
fn check_cpu(args: &CheckArgs, name: &str, bytes: &[u8]) -> Result<(), Failure> {
    let spec = tidegate_cpu::settings::read_cpu(name, bytes);
    let flaw = spec.as_ref().ok().and_then(|spec| tidegate_cpu::GovernorSettings::of(spec.clone()).err());
    if let Some(flaw) = flaw {
        return refuse(
            args,
            CheckFinding { field: flaw.field, ..CheckFinding::of_file(name, &flaw.message) },
        );
    }
    match (spec, args.json) {
        (Ok(_), false) => print_result(&format!("{name}: ok, settings of the CPU governor\n")),
        (Ok(_), true) => answer_json(&CheckReport { ok: true, ..CheckReport::default() }),
        (Err(wrong), false) => Err(Failure::BadInput(wrong.render(color_of_stderr()))),
        (Err(wrong), true) => report(Err(&wrong)),
    }
}

/// Checks settings of the gateway, with the current environment and certificate files.
fn check_gateway(args: &CheckArgs, name: &str, bytes: &[u8]) -> Result<(), Failure> {
    let spec = tidegate_gateway::settings::read_gateway(name, bytes, &gateway::environment);
    let tls = spec.as_ref().ok().and_then(|spec| spec.tls.as_ref());
    if let Some(Err(wrong)) = tls.map(tidegate_gateway::check_certificate) {
        return refuse(
            args,
            CheckFinding { field: "tls", ..CheckFinding::of_file(name, &wrong.to_string()) },
        );
    }
    if let Some(address) = spec.as_ref().ok().and_then(colliding_address) {
        let why = format!("{address} is also the gateway's own address; choose another port");
        return refuse(args, CheckFinding { field: "management", ..CheckFinding::of_file(name, &why) });
    }
    match (spec, args.json) {
        (Ok(spec), false) => {
            let (backends, routes) = (spec.backends.len(), spec.routes.len());
            let message = format!("{}, {}", counted(backends, "backend"), counted(routes, "route"));
            print_result(&format!("{name}: ok, settings of the gateway, {message}\n"))
        }
        (Ok(_), true) => answer_json(&CheckReport { ok: true, ..CheckReport::default() }),
        (Err(wrong), false) => Err(Failure::BadInput(wrong.render(color_of_stderr()))),
        (Err(wrong), true) => report(Err(&wrong)),
    }
}

/// The management address, if it collides with the gateway's own.
fn colliding_address(spec: &tidegate_gateway::settings::GatewaySpec) -> Option<SocketAddr> {
    let (listen, management) = (spec.server.listen, spec.management?);
    let overlaps =
        listen.ip() == management.ip() || listen.ip().is_unspecified() || management.ip().is_unspecified();
    (listen.port() != 0 && listen.port() == management.port() && overlaps).then_some(management)
}

fn check_settings(args: &CheckArgs, name: &str, bytes: &[u8]) -> Result<(), Failure> {
    let reading = settings::read(name, bytes);
    let url = reading.as_ref().ok().and_then(|it| it.settings.store.url.as_ref());
    if let Some(Err(wrong)) = url.and_then(database) {
        return refuse(args, CheckFinding { field: "store.url", ..CheckFinding::of_file(name, &wrong) });
    }
    if args.json {
        let all = reading.as_ref().map(|it| it.settings.all_limits()).unwrap_or_default();
        return report(reading.as_ref().map(|it| (&*all, &it.warnings)));
    }
    let reading = reading.map_err(|wrong| Failure::BadInput(wrong.render(color_of_stderr())))?;
    if !reading.warnings.is_empty() {
        print_message(&reading.warnings.render(color_of_stderr()));
    }
    print_result(&ok_line(name, &reading.settings.all_limits()))
}

/// Reports a single error of a readable file.
fn refuse(args: &CheckArgs, finding: CheckFinding<'_>) -> Result<(), Failure> {
    let CheckFinding { file, field, message, .. } = finding;
    let message = format!("error: {file}: {field}: {message}\n1 error in {file}");
    if args.json {
        answer_json(&CheckReport::of_one(finding))?;
    }
    Err(Failure::BadInput(message))
}

/// Checks the URL of a PostgreSQL store, as a starting server does.
fn database(url: &StoreUrl) -> Option<Result<(), String>> {
    let StoreUrl::Postgres(url) = url else { return None };
    Some(postgres_options(url).map(|_| ()).map_err(|wrong| wrong.to_string()))
}

fn print_schema() -> Result<(), Failure> {
    print_result(&format!("{}\n", settings::schema()))
}

/// `3 limits`, `1 item`.
fn counted(count: usize, noun: &str) -> String {
    format!("{count} {noun}{}", if count == 1 { "" } else { "s" })
}

/// `tidegate.yaml: ok, 3 limits, 8 items`.
fn ok_line(name: &str, limits: &[LimitSpec]) -> String {
    let items = limits.iter().map(|limit| limit.items.len()).sum();
    format!("{name}: ok, {}, {}\n", counted(limits.len(), "limit"), counted(items, "item"))
}

/// Prints the diagnostics as JSON on standard output.
fn report(reading: Result<(&[LimitSpec], &Diagnostics), &Diagnostics>) -> Result<(), Failure> {
    let (limits, found) = match reading {
        Ok((limits, warnings)) => (limits, warnings),
        Err(wrong) => (&[][..], wrong),
    };
    let of =
        |severity| found.iter().filter(move |it| it.severity == severity).map(CheckFinding::of).collect();
    answer_json(&CheckReport {
        ok: reading.is_ok(),
        limits: limits.len(),
        items: limits.iter().map(|limit| limit.items.len()).sum(),
        errors: of(Severity::Error),
        warnings: of(Severity::Warning),
    })?;
    reading.map(|_| ()).map_err(|wrong| Failure::BadInput(wrong.summary()))
}

fn answer_json(report: &CheckReport<'_>) -> Result<(), Failure> {
    let text = serde_json::to_string(report).map_err(|error| Failure::Failed(error.to_string()))?;
    print_result(&format!("{text}\n"))
}

/// The JSON report.
#[derive(Default, Serialize)]
struct CheckReport<'a> {
    ok: bool,
    limits: usize,
    items: usize,
    errors: Vec<CheckFinding<'a>>,
    warnings: Vec<CheckFinding<'a>>,
}

impl<'a> CheckReport<'a> {
    /// The report of an unreadable file; the error has no line.
    fn unreadable(file: &'a str, message: &'a str) -> CheckReport<'a> {
        CheckReport::of_one(CheckFinding::of_file(file, message))
    }

    fn of_one(finding: CheckFinding<'a>) -> CheckReport<'a> {
        CheckReport { errors: vec![finding], ..CheckReport::default() }
    }
}

/// The JSON form of a diagnostic.
#[derive(Serialize)]
struct CheckFinding<'a> {
    file: &'a str,
    line: usize,
    column: usize,
    field: &'a str,
    message: &'a str,
    help: Option<&'a str>,
}

impl<'a> CheckFinding<'a> {
    /// An error without a line.
    fn of_file(file: &'a str, message: &'a str) -> CheckFinding<'a> {
        CheckFinding { file, line: 0, column: 0, field: "", message, help: None }
    }

    fn of(diagnostic: &'a Diagnostic) -> CheckFinding<'a> {
        let Diagnostic { file, line, column, field, message, help, .. } = diagnostic;
        CheckFinding { file, line: *line, column: *column, field, message, help: help.as_deref() }
    }
}
