//! What is wrong with a file: where, what, and what to do about it.

use std::error::Error;
use std::fmt;

use crate::source::{ConfigSource, SourceExcerpt, SourceSpan};

/// The most diagnostics that are kept; the rest are counted.
pub const MOST_DIAGNOSTICS: usize = 1000;

/// Everything that was found in one file, in the order of the file.
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

    /// Whether nothing was found.
    pub fn is_empty(&self) -> bool {
        self.found.is_empty()
    }

    /// How many errors were found, those beyond [`MOST_DIAGNOSTICS`] included.
    pub fn errors(&self) -> usize {
        self.count(Severity::Error) + self.omitted
    }

    /// How many warnings were found.
    pub fn warnings(&self) -> usize {
        self.count(Severity::Warning)
    }

    /// The diagnostics as text for people, each with its line, and a count at the end.
    pub fn render(&self, color: Color) -> String {
        let mut text = String::new();
        for diagnostic in self {
            text.push_str(&diagnostic.render(color));
            text.push('\n');
        }
        text.push_str(&self.summary());
        text
    }

    /// The closing line: `3 errors in tidegate.yaml`.
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

    /// The diagnostics of a file that cannot be read at all.
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

/// One thing that is wrong, or will not have the effect it seems to have.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Diagnostic {
    /// Whether the file can be used in spite of it.
    pub severity: Severity,
    /// The name of the file.
    pub file: String,
    /// The line, from 1.
    pub line: usize,
    /// The column in characters, from 1.
    pub column: usize,
    /// The path of the field (`limits[0].items[2].burst`); empty if it is the text itself that is wrong.
    pub field: String,
    /// What is wrong and what is allowed.
    pub message: String,
    /// What was probably meant.
    pub help: Option<String>,
    /// The line it is about.
    pub excerpt: SourceExcerpt,
}

impl Diagnostic {
    /// The diagnostic as text for people, with the line it is about.
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

/// Whether a file can be used in spite of a diagnostic.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum Severity {
    /// It cannot.
    Error,
    /// It can.
    Warning,
}

impl Severity {
    /// The word shown to people.
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

/// Whether text for people is coloured.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Default)]
pub enum Color {
    /// It is not.
    #[default]
    Plain,
    /// With the escape codes of terminals.
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

/// The roles that are coloured.
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

/// Where a reader writes down what it finds.
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

    /// The text that is being read.
    pub fn source(&self) -> &'s ConfigSource<'s> {
        self.source
    }

    /// Whether any error was found, so that nothing of the file may be used.
    pub fn has_errors(&self) -> bool {
        self.failed
    }

    /// Adds an error. `field` is the path of the field, empty if the text itself is wrong.
    pub fn error(&mut self, span: SourceSpan, field: impl fmt::Display, message: impl Into<String>) {
        self.push(Severity::Error, span, &field, message.into(), None);
    }

    /// Adds an error with a line that says what was probably meant.
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
        if self.found.len() >= MOST_DIAGNOSTICS {
            self.omitted += usize::from(severity == Severity::Error);
            return;
        }
        let (line, column) = self.source.line_and_column(span);
        let secrets = self.source.secrets(span);
        let shown = |text: String| concealed(text, &secrets);
        self.found.push(Diagnostic {
            severity,
            file: self.source.name.to_owned(),
            line,
            column,
            field: shown(field.to_string()),
            message: shown(message),
            help: help.map(shown),
            excerpt: self.source.excerpt(span),
        });
    }
}

/// The text with `***` for every part of a password that stands in it as a word.
fn concealed(text: String, secrets: &[&str]) -> String {
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
