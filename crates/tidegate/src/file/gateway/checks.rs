//! Backends and routes: whether each makes sense, and whether they fit together.

use std::hash::Hash;
use std::net::IpAddr;
use std::time::Duration;

use hashbrown::{HashMap, HashSet};

use super::patterns::{HostPattern, PathPattern};
use super::{Backend, Balance, Endpoint, Probe, RateLimits, Route};
use crate::file::diagnostic::Report;
use crate::file::record::{Path, Record};
use crate::file::source::Place;
use crate::text::{did_you_mean, nearest, quoted};

/// The longest name of a backend.
const LONGEST_NAME: usize = 128;

/// The backends of a file.
pub(super) struct Backends {
    pub(super) all: Vec<Backend>,
    /// The names that are written, also of backends that have errors; `None` if that cannot be told.
    names: Option<HashSet<String>>,
}

impl Backends {
    pub(super) fn names(&self) -> Option<&HashSet<String>> {
        self.names.as_ref()
    }
}

/// What was seen, and where first.
struct Seen<T>(HashMap<T, Place>);

impl<T: Hash + Eq> Seen<T> {
    fn new() -> Seen<T> {
        Seen(HashMap::new())
    }

    /// The line of the first one like this, if this is not the first.
    fn again(&mut self, report: &Report<'_>, one: T, place: Place) -> Option<usize> {
        if let Some(first) = self.0.get(&one) {
            return Some(report.source().line_and_column(*first).0);
        }
        self.0.insert(one, place);
        None
    }
}

pub(super) fn check_backends(
    report: &mut Report<'_>,
    records: Option<Vec<Record>>,
    readable: bool,
    file: Place,
) -> Backends {
    let path = Path::Field(&Path::Top, "backends");
    let records = records.unwrap_or_default();
    let mut names = (readable && !records.is_empty()).then(HashSet::new);
    let mut seen = Seen::new();
    let mut all = Vec::new();
    for (index, record) in records.into_iter().enumerate() {
        let path = Path::Element(&path, index);
        match record.text_and_place("name") {
            Some((name, place)) => {
                check_name(report, name, place, &path);
                if let Some(line) = seen.again(report, name.to_owned(), place) {
                    let message =
                        format!("{} is the name of the backend on line {line} too; rename one", quoted(name));
                    report.error(place, Path::Field(&path, "name"), message);
                }
                if let Some(names) = &mut names {
                    names.insert(name.to_owned());
                }
            }
            None => names = None,
        }
        all.extend(read_backend(report, record, &path));
    }
    if all.is_empty() && readable && !report.failed() {
        report.error(file, path, "must have at least one backend");
    }
    Backends { all, names }
}

fn check_name(report: &mut Report<'_>, name: &str, place: Place, path: &Path<'_>) {
    let odd = |letter: char| letter.is_control() || letter.is_whitespace();
    if name.is_empty() || name.len() > LONGEST_NAME || name.contains(odd) {
        let message = format!("must be 1 to {LONGEST_NAME} bytes without spaces, found {}", quoted(name));
        report.error(place, Path::Field(path, "name"), message);
    }
}

fn read_backend(report: &mut Report<'_>, mut record: Record, path: &Path<'_>) -> Option<Backend> {
    let endpoints_place = record.value_place("endpoints");
    let endpoints = record.list("endpoints").map(|list| read_endpoints(report, list, path));
    if let (Some((0, _)), Some(place)) = (&endpoints, endpoints_place) {
        let message = "must have at least one endpoint; write endpoints: [{host: 127.0.0.1, port: 8080}]";
        report.error(place, Path::Field(path, "endpoints"), message);
    }
    let probe = record.section("probe").map(|section| read_probe(report, section, path));
    let mut limits = record.section("rateLimit");
    let mut wait = |field, seconds| record.duration(field).unwrap_or(Duration::from_secs(seconds));
    let (connect_timeout, response_timeout, idle_timeout) =
        (wait("connectTimeout", 5), wait("responseTimeout", 60), wait("idleTimeout", 60));
    Some(Backend {
        balance: record.choice("loadBalance", &Balance::ALL, Balance::word).unwrap_or_default(),
        probe,
        endpoints: endpoints?.1,
        limits: RateLimits::read(limits.as_mut()),
        connect_timeout,
        response_timeout,
        idle_timeout,
        name: record.text("name")?,
    })
}

/// How many are written, and those that make sense.
fn read_endpoints(report: &mut Report<'_>, list: Vec<Record>, path: &Path<'_>) -> (usize, Vec<Endpoint>) {
    let path = Path::Field(path, "endpoints");
    let written = list.len();
    let mut seen = Seen::new();
    let mut endpoints = Vec::new();
    for (index, mut record) in list.into_iter().enumerate() {
        let path = Path::Element(&path, index);
        let place = record.place;
        let host_place = record.value_place("host").unwrap_or(place);
        let host = record.text("host").map(|host| endpoint_host(&host));
        let host = match host {
            Some(Ok(host)) => host,
            Some(Err(why)) => {
                report.error(host_place, Path::Field(&path, "host"), why);
                continue;
            }
            None => continue,
        };
        let Some(port) = record.count("port").and_then(|port| u16::try_from(port).ok()) else { continue };
        if let Some(line) = seen.again(report, (host.clone(), port), host_place) {
            let message = format!("{host}:{port} is written on line {line} too; remove one of them");
            report.error(host_place, path, message);
        }
        endpoints.push(Endpoint { host, port, priority: record.count("priority").unwrap_or(1) });
    }
    (written, endpoints)
}

/// A name or an address to connect to.
fn endpoint_host(text: &str) -> Result<String, String> {
    let bare = text.strip_prefix('[').and_then(|rest| rest.strip_suffix(']')).unwrap_or(text);
    if let Ok(address) = bare.parse::<IpAddr>() {
        return Ok(address.to_string());
    }
    match HostPattern::parse(text) {
        Ok(HostPattern::Exact(host)) => Ok(host),
        _ => Err(format!(
            "must be a name or an address without a scheme and a port, such as 127.0.0.1, found {}",
            quoted(text)
        )),
    }
}

fn read_probe(report: &mut Report<'_>, mut section: Record, path: &Path<'_>) -> Probe {
    let path = Path::Field(path, "probe");
    let place = section.value_place("path").unwrap_or(section.place);
    let target = section.text("path").unwrap_or_else(|| "/".to_owned());
    if !target.starts_with('/') || !target.bytes().all(|byte| byte.is_ascii_graphic()) {
        let message = format!("must be a path such as /health, found {}", quoted(&target));
        report.error(place, Path::Field(&path, "path"), message);
    }
    let mut number = |field, otherwise| section.count(field).unwrap_or(otherwise);
    Probe {
        path: target,
        period: Duration::from_secs(number("periodSeconds", 10)),
        timeout: Duration::from_secs(number("timeoutSeconds", 1)),
        successes: number("successThreshold", 1),
        failures: number("failureThreshold", 3),
    }
}

pub(super) fn check_routes(
    report: &mut Report<'_>,
    records: Option<Vec<Record>>,
    backends: Option<&HashSet<String>>,
) -> Vec<Route> {
    let path = Path::Field(&Path::Top, "routes");
    let mut seen = Seen::new();
    let mut routes = Vec::new();
    for (index, mut record) in records.unwrap_or_default().into_iter().enumerate() {
        let path = Path::Element(&path, index);
        let place = record.value_place("host").or(record.value_place("path")).unwrap_or(record.place);
        check_backend(report, &record, backends, &path);
        let host = read_pattern(report, &mut record, "host", &path, HostPattern::Any, HostPattern::parse);
        let target = read_pattern(report, &mut record, "path", &path, PathPattern::any(), PathPattern::parse);
        let (Some(host), Some(target)) = (host, target) else { continue };
        if let Some(line) = seen.again(report, (host.clone(), target.clone()), place) {
            let message =
                format!("the route of {host} and {target} is written on line {line} too; remove one of them");
            report.error(place, path, message);
        }
        let mut limits = record.section("rateLimit");
        let Some(backend) = record.text("backend") else { continue };
        routes.push(Route { host, path: target, backend, limits: RateLimits::read(limits.as_mut()) });
    }
    routes
}

fn check_backend(
    report: &mut Report<'_>,
    record: &Record,
    backends: Option<&HashSet<String>>,
    path: &Path<'_>,
) {
    let (Some((name, place)), Some(known)) = (record.text_and_place("backend"), backends) else { return };
    if known.contains(name) {
        return;
    }
    let mut names: Vec<&str> = known.iter().map(String::as_str).collect();
    names.sort_unstable();
    let help = nearest(name, names.iter().copied()).map(did_you_mean);
    let message = format!("no backend is called {}; write one under backends", quoted(name));
    report.error_with_help(place, Path::Field(path, "backend"), message, help);
}

/// A pattern, what is meant if none is written, or nothing if it was reported.
fn read_pattern<T>(
    report: &mut Report<'_>,
    record: &mut Record,
    field: &str,
    path: &Path<'_>,
    otherwise: T,
    parse: fn(&str) -> Result<T, String>,
) -> Option<T> {
    let Some(place) = record.value_place(field) else { return Some(otherwise) };
    parse(&record.text(field)?).map_err(|why| report.error(place, Path::Field(path, field), why)).ok()
}
