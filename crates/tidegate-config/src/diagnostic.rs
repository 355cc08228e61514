//! Diagnostics of a file: the position, the problem and a suggestion.

use std::error::Error;
use std::fmt;

use crate::source::{ConfigSource, SourceExcerpt, SourceSpan};

/// The maximum number of diagnostics that are kept; further errors are only counted.
pub const MAX_DIAGNOSTICS: usize = 1000;

/// The diagnostics of one file, in the order of the file.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Diagnostics {
    file: String,
    found: Vec<Diagnostic>,
    omitted: usize,
}

impl Diagnostics {
    /// The diagnostics, by line and column.
    pub fn iter(&self) -> std::slice::Iter<'_, Diagnostic> {
        self.found.iter()
    }

    /// Whether there are no diagnostics.
    pub fn is_empty(&self) -> bool {
        self.found.is_empty()
    }

    /// The number of errors, including those beyond [`MAX_DIAGNOSTICS`].
    pub fn errors(&self) -> usize {
        self.count(Severity::Error) + self.omitted
    }

    /// The number of warnings.
    pub fn warnings(&self) -> usize {
        self.count(Severity::Warning)
    }

    /// Formats all diagnostics with their excerpts and a summary.
    pub fn render(&self, color: Color) -> String {
        let mut text = String::new();
        for diagnostic in self {
            text.push_str(&diagnostic.render(color));
            text.push('\n');
        }
        text.push_str(&self.summary());
        text
    }

    /// The summary line: `3 errors in tidegate.yaml`.
    pub fn summary(&self) -> String {
        let counted = |count: usize, noun: &str| match count {
            0 => None,
            1 => Some(format!("1 {noun}")),
            _ => Some(format!("{count} {noun}s")),
        };
        let parts = [counted(self.errors(), "error"), counted(self.warnings(), "warning")];
        let parts: Vec<_> = parts.into_iter().flatten().collect();
        let parts = if parts.is_empty() { "no errors".to_owned() } else { parts.join(" and ") };
        let shown = match self.omitted {
            0 => String::new(),
            _ => format!(" ({} shown)", self.found.len()),
        };
        format!("{parts} in {}{shown}", self.file)
    }

    /// The diagnostics of a file that cannot be opened or read.
    pub(crate) fn unreadable(file: &str, error: &std::io::Error) -> Diagnostics {
        let source = ConfigSource::new(file, "");
        let mut sink = DiagnosticSink::new(&source);
        sink.error(SourceSpan::START, "", format!("cannot be read: {error}"));
        sink.into_diagnostics()
    }

    fn count(&self, severity: Severity) -> usize {
        self.iter().filter(|diagnostic| diagnostic.severity == severity).count()
    }
}

impl fmt::Display for Diagnostics {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.render(Color::Plain))
    }
}

impl Error for Diagnostics {}

impl<'a> IntoIterator for &'a Diagnostics {
    type Item = &'a Diagnostic;
    type IntoIter = std::slice::Iter<'a, Diagnostic>;

    fn into_iter(self) -> Self::IntoIter {
        self.iter()
    }
}

impl IntoIterator for Diagnostics {
    type Item = Diagnostic;
    type IntoIter = std::vec::IntoIter<Diagnostic>;

    fn into_iter(self) -> Self::IntoIter {
        self.found.into_iter()
    }
}

/// An error, or a warning about a setting without effect.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Diagnostic {
    /// Error or warning.
    pub severity: Severity,
    /// The name of the file.
    pub file: String,
    /// The line, from 1.
    pub line: usize,
    /// The column in characters, from 1.
    pub column: usize,
    /// The path of the field (`limits[0].items[2].burst`). Empty if the problem is the text itself.
    pub field: String,
    /// The problem and the allowed values.
    pub message: String,
    /// A suggestion.
    pub help: Option<String>,
    /// The excerpt of the line.
    pub excerpt: SourceExcerpt,
}

impl Diagnostic {
    /// Formats the diagnostic with its excerpt.
    pub fn render(&self, color: Color) -> String {
        let gutter = self.line.to_string().len();
        let number = color.paint(Paint::Frame, &format!("{} |", self.line));
        let margin = color.paint(Paint::Frame, &format!("{:gutter$} |", ""));
        let paint = self.severity.paint();
        let mut text = format!(
            "{}: {}:{}:{}: ",
            color.paint(paint, self.severity.word()),
            self.file,
            self.line,
            self.column
        );
        if !self.field.is_empty() {
            text.push_str(&color.paint(Paint::Strong, &self.field));
            text.push_str(": ");
        }
        let SourceExcerpt { text: line, caret, width } = &self.excerpt;
        let mark = color.paint(paint, &"^".repeat(*width));
        let shown = if line.is_empty() { number } else { format!("{number} {line}") };
        text.push_str(&self.message);
        text.extend(["\n", &margin, "\n", &shown, "\n", &margin, " ", &" ".repeat(*caret), &mark, "\n"]);
        if let Some(help) = &self.help {
            let sign = color.paint(Paint::Frame, &format!("{:gutter$} =", ""));
            text.extend([&sign, " help: ", help, "\n"]);
        }
        text
    }
}

impl fmt::Display for Diagnostic {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.render(Color::Plain).trim_end())
    }
}

/// The severity of a diagnostic.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum Severity {
    /// The file cannot be used.
    Error,
    /// The file can be used.
    Warning,
}

impl Severity {
    /// The word in messages.
    pub const fn word(self) -> &'static str {
        match self {
            Severity::Error => "error",
            Severity::Warning => "warning",
        }
    }

    const fn paint(self) -> Paint {
        match self {
            Severity::Error => Paint::Error,
            Severity::Warning => Paint::Warning,
        }
    }
}

/// Whether messages contain terminal colors.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Default)]
pub enum Color {
    /// No colors.
    #[default]
    Plain,
    /// ANSI escape codes.
    Ansi,
}

impl Color {
    fn paint(self, paint: Paint, text: &str) -> String {
        match self {
            Color::Plain => text.to_owned(),
            Color::Ansi => format!("\u{1b}[{}m{text}\u{1b}[0m", paint.code()),
        }
    }
}

/// The colored parts of a message.
#[derive(Clone, Copy)]
enum Paint {
    Error,
    Warning,
    Frame,
    Strong,
}

impl Paint {
    const fn code(self) -> &'static str {
        match self {
            Paint::Error => "1;31",
            Paint::Warning => "1;33",
            Paint::Frame => "34",
            Paint::Strong => "1",
        }
    }
}

/// Collects diagnostics while a file is read.
pub struct DiagnosticSink<'s> {
    source: &'s ConfigSource<'s>,
    found: Vec<Diagnostic>,
    failed: bool,
    omitted: usize,
}

impl<'s> DiagnosticSink<'s> {
    pub(crate) fn new(source: &'s ConfigSource<'s>) -> DiagnosticSink<'s> {
        DiagnosticSink { source, found: Vec::new(), failed: false, omitted: 0 }
    }

    /// The source text.
    pub fn source(&self) -> &'s ConfigSource<'s> {
        self.source
    }

    /// Whether an error was reported. A file with an error gives no settings.
    pub fn has_errors(&self) -> bool {
        self.failed
    }

    /// Adds an error. `field` is the path of the field; it is empty if the problem is the text itself.
    pub fn error(&mut self, span: SourceSpan, field: impl fmt::Display, message: impl Into<String>) {
        self.push(Severity::Error, span, &field, message.into(), None);
    }

    /// Adds an error with a suggestion.
    pub fn error_with_help(
        &mut self,
        span: SourceSpan,
        field: impl fmt::Display,
        message: impl Into<String>,
        help: Option<String>,
    ) {
        self.push(Severity::Error, span, &field, message.into(), help);
    }

    /// Adds a warning.
    pub fn warning(&mut self, span: SourceSpan, field: impl fmt::Display, message: impl Into<String>) {
        self.push(Severity::Warning, span, &field, message.into(), None);
    }

    pub(crate) fn into_diagnostics(mut self) -> Diagnostics {
        self.found.sort_by_key(|diagnostic| (diagnostic.line, diagnostic.column));
        Diagnostics { file: self.source.name.to_owned(), found: self.found, omitted: self.omitted }
    }

    fn push(
        &mut self,
        severity: Severity,
        span: SourceSpan,
        field: &dyn fmt::Display,
        message: String,
        help: Option<String>,
    ) {
        self.failed |= severity == Severity::Error;
        if self.found.len() >= MAX_DIAGNOSTICS {
            self.omitted += usize::from(severity == Severity::Error);
            return;
        }
        let (line, column) = self.source.line_and_column(span);
        let secrets = self.source.secrets(span);
        let conceal = |text: String| conceal_secrets(text, &secrets);
        self.found.push(Diagnostic {
            severity,
            file: self.source.name.to_owned(),
            line,
            column,
            field: conceal(field.to_string()),
            message: conceal(message),
            help: help.map(conceal),
            excerpt: self.source.excerpt(span),
        });
    }
}

/// Replaces each part of a password by `***` where it is a whole word.
fn conceal_secrets(text: String, secrets: &[&str]) -> String {
    secrets.iter().fold(text, |text, secret| {
        let mut shown = String::with_capacity(text.len());
        let mut rest = &*text;
        while let Some(at) = rest.find(secret) {
            let (before, after) = (&rest[..at], &rest[at + secret.len()..]);
            let is_word =
                !before.ends_with(char::is_alphanumeric) && !after.starts_with(char::is_alphanumeric);
            shown.extend([before, if is_word { "***" } else { secret }]);
            rest = after;
        }
        shown + rest
    })
}
