//! Reads backends and routes, and checks their references to each other.

use std::hash::Hash;
use std::net::IpAddr;
use std::time::Duration;

use hashbrown::{HashMap, HashSet};
use tidegate_config::text::{did_you_mean, nearest, quoted};
use tidegate_config::{DiagnosticSink, FieldPath, Mapping, SourceSpan};

use super::patterns::{HostPattern, PathPattern};
use super::{BackendSpec, Balance, EndpointSpec, ProbeSpec, RateLimits, RouteSpec};

/// The maximum length of a backend name.
const MAX_BACKEND_NAME_BYTES: usize = 128;

/// The backends of a file.
pub(super) struct ParsedBackends {
    pub(super) all: Vec<BackendSpec>,
    /// All names in the file, including those of invalid backends; `None` if a name is unreadable.
    names: Option<HashSet<String>>,
}

impl ParsedBackends {
    pub(super) fn names(&self) -> Option<&HashSet<String>> {
        self.names.as_ref()
    }
}

/// Values with the position of their first occurrence.
struct FirstOccurrences<T>(HashMap<T, SourceSpan>);

impl<T: Hash + Eq> FirstOccurrences<T> {
    fn new() -> FirstOccurrences<T> {
        FirstOccurrences(HashMap::new())
    }

    /// Records a value. Returns the line of its first occurrence if it is a duplicate.
    fn record_duplicate(&mut self, sink: &DiagnosticSink<'_>, one: T, place: SourceSpan) -> Option<usize> {
        if let Some(first) = self.0.get(&one) {
            return Some(sink.source().line_and_column(*first).0);
        }
        self.0.insert(one, place);
        None
    }
}

pub(super) fn check_backends(
    sink: &mut DiagnosticSink<'_>,
    records: Option<Vec<Mapping>>,
    readable: bool,
    file: SourceSpan,
) -> ParsedBackends {
    let path = FieldPath::Field(&FieldPath::Top, "backends");
    let records = records.unwrap_or_default();
    let mut names = (readable && !records.is_empty()).then(HashSet::new);
    let mut seen = FirstOccurrences::new();
    let mut all = Vec::new();
    for (index, record) in records.into_iter().enumerate() {
        let path = FieldPath::Element(&path, index);
        match record.text_and_span("name") {
            Some((name, place)) => {
                check_name(sink, name, place, &path);
                if let Some(line) = seen.record_duplicate(sink, name.to_owned(), place) {
                    let message =
                        format!("{} is the name of the backend on line {line} too; rename one", quoted(name));
                    sink.error(place, FieldPath::Field(&path, "name"), message);
                }
                if let Some(names) = &mut names {
                    names.insert(name.to_owned());
                }
            }
            None => names = None,
        }
        all.extend(read_backend(sink, record, &path));
    }
    if all.is_empty() && readable && !sink.has_errors() {
        sink.error(file, path, "must have at least one backend");
    }
    ParsedBackends { all, names }
}

fn check_name(sink: &mut DiagnosticSink<'_>, name: &str, place: SourceSpan, path: &FieldPath<'_>) {
    let is_invalid = |letter: char| letter.is_control() || letter.is_whitespace();
    if name.is_empty() || name.len() > MAX_BACKEND_NAME_BYTES || name.contains(is_invalid) {
        let message =
            format!("must be 1 to {MAX_BACKEND_NAME_BYTES} bytes without spaces, found {}", quoted(name));
        sink.error(place, FieldPath::Field(path, "name"), message);
    }
}

fn read_backend(
    sink: &mut DiagnosticSink<'_>,
    mut record: Mapping,
    path: &FieldPath<'_>,
) -> Option<BackendSpec> {
    let endpoints_place = record.value_span("endpoints");
    let endpoints = record.take_list("endpoints").map(|list| read_endpoints(sink, list, path));
    if let (Some((0, _)), Some(place)) = (&endpoints, endpoints_place) {
        let message = "must have at least one endpoint; write endpoints: [{host: 127.0.0.1, port: 8080}]";
        sink.error(place, FieldPath::Field(path, "endpoints"), message);
    }
    let probe = record.take_section("probe").map(|section| read_probe(sink, section, path));
    let mut limits = record.take_section("rateLimit");
    let mut wait = |field, seconds| record.take_duration(field).unwrap_or(Duration::from_secs(seconds));
    let (connect_timeout, response_timeout, idle_timeout) =
        (wait("connectTimeout", 5), wait("responseTimeout", 60), wait("idleTimeout", 60));
    Some(BackendSpec {
        balance: record.take_choice("loadBalance", &Balance::ALL, Balance::word).unwrap_or_default(),
        probe,
        endpoints: endpoints?.1,
        limits: RateLimits::read(limits.as_mut()),
        connect_timeout,
        response_timeout,
        idle_timeout,
        name: record.take_text("name")?,
    })
}

/// Returns the number of endpoints in the file and the valid ones.
fn read_endpoints(
    sink: &mut DiagnosticSink<'_>,
    list: Vec<Mapping>,
    path: &FieldPath<'_>,
) -> (usize, Vec<EndpointSpec>) {
    let path = FieldPath::Field(path, "endpoints");
    let written = list.len();
    let mut seen = FirstOccurrences::new();
    let mut endpoints = Vec::new();
    for (index, mut record) in list.into_iter().enumerate() {
        let path = FieldPath::Element(&path, index);
        let place = record.span;
        let host_place = record.value_span("host").unwrap_or(place);
        let host = record.take_text("host").map(|host| endpoint_host(&host));
        let host = match host {
            Some(Ok(host)) => host,
            Some(Err(why)) => {
                sink.error(host_place, FieldPath::Field(&path, "host"), why);
                continue;
            }
            None => continue,
        };
        let Some(port) = record.take_count("port").and_then(|port| u16::try_from(port).ok()) else {
            continue;
        };
        if let Some(line) = seen.record_duplicate(sink, (host.clone(), port), host_place) {
            let message = format!("{host}:{port} is written on line {line} too; remove one of them");
            sink.error(host_place, path, message);
        }
        endpoints.push(EndpointSpec { host, port, priority: record.take_count("priority").unwrap_or(1) });
    }
    (written, endpoints)
}

/// Parses a host name or an address to connect to.
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

fn read_probe(sink: &mut DiagnosticSink<'_>, mut section: Mapping, path: &FieldPath<'_>) -> ProbeSpec {
    let path = FieldPath::Field(path, "probe");
    let place = section.value_span("path").unwrap_or(section.span);
    let target = section.take_text("path").unwrap_or_else(|| "/".to_owned());
    if !target.starts_with('/') || !target.bytes().all(|byte| byte.is_ascii_graphic()) {
        let message = format!("must be a path such as /health, found {}", quoted(&target));
        sink.error(place, FieldPath::Field(&path, "path"), message);
    }
    let mut number = |field, default| section.take_count(field).unwrap_or(default);
    ProbeSpec {
        path: target,
        period: Duration::from_secs(number("periodSeconds", 10)),
        timeout: Duration::from_secs(number("timeoutSeconds", 1)),
        successes: number("successThreshold", 1),
        failures: number("failureThreshold", 3),
    }
}

pub(super) fn check_routes(
    sink: &mut DiagnosticSink<'_>,
    records: Option<Vec<Mapping>>,
    backends: Option<&HashSet<String>>,
) -> Vec<RouteSpec> {
    let path = FieldPath::Field(&FieldPath::Top, "routes");
    let mut seen = FirstOccurrences::new();
    let mut routes = Vec::new();
    for (index, mut record) in records.unwrap_or_default().into_iter().enumerate() {
        let path = FieldPath::Element(&path, index);
        let place = record.value_span("host").or(record.value_span("path")).unwrap_or(record.span);
        check_backend(sink, &record, backends, &path);
        let host = read_pattern(sink, &mut record, "host", &path, HostPattern::Any, HostPattern::parse);
        let target = read_pattern(sink, &mut record, "path", &path, PathPattern::any(), PathPattern::parse);
        let (Some(host), Some(target)) = (host, target) else { continue };
        if let Some(line) = seen.record_duplicate(sink, (host.clone(), target.clone()), place) {
            let message =
                format!("the route of {host} and {target} is written on line {line} too; remove one of them");
            sink.error(place, path, message);
        }
        let mut limits = record.take_section("rateLimit");
        let Some(backend) = record.take_text("backend") else { continue };
        routes.push(RouteSpec { host, path: target, backend, limits: RateLimits::read(limits.as_mut()) });
    }
    routes
}

fn check_backend(
    sink: &mut DiagnosticSink<'_>,
    record: &Mapping,
    backends: Option<&HashSet<String>>,
    path: &FieldPath<'_>,
) {
    let (Some((name, place)), Some(known)) = (record.text_and_span("backend"), backends) else { return };
    if known.contains(name) {
        return;
    }
    let mut names: Vec<&str> = known.iter().map(String::as_str).collect();
    names.sort_unstable();
    let help = nearest(name, names.iter().copied()).map(did_you_mean);
    let message = format!("no backend is called {}; write one under backends", quoted(name));
    sink.error_with_help(place, FieldPath::Field(path, "backend"), message, help);
}

/// Reads a pattern. Returns the default if the field is absent, and `None` after an error.
fn read_pattern<T>(
    sink: &mut DiagnosticSink<'_>,
    record: &mut Mapping,
    field: &str,
    path: &FieldPath<'_>,
    default: T,
    parse: fn(&str) -> Result<T, String>,
) -> Option<T> {
    let Some(place) = record.value_span(field) else { return Some(default) };
    parse(&record.take_text(field)?).map_err(|why| sink.error(place, FieldPath::Field(path, field), why)).ok()
}
