//! From text to a tree of values that know their places.
//!
//! YAML 1.2, of which JSON is a subset, through an event parser; the tree is built here, without recursion, so
//! that no text can exhaust the stack. Scalars stay text: whether `10` is a number is for the reader of the field
//! to say. Anchors and aliases work and share their nodes; the tree as it would be written out is bounded in
//! nodes and in depth, so aliases of aliases cannot grow it without end.
//!
//! Refused with a place: keys written twice, keys that are not text, tags, a second document, aliases of nothing
//! or of themselves. Reading goes on behind all of these. Behind broken syntax it cannot.

use std::fmt::Write as _;
use std::rc::Rc;

use granit_parser::{ErrorKind, Event, Parser, ScalarStyle, ScanError, Span};
use hashbrown::HashMap;

use crate::diagnostic::DiagnosticSink;
use crate::source::SourceSpan;
use crate::text::{quoted, shortened};

/// The deepest nesting.
const DEEPEST: usize = 64;
/// The most values, counting those behind aliases each time.
const MOST_NODES: usize = 4_000_000;

/// A value and where it stands.
pub struct YamlNode {
    /// Where it is in the text.
    pub span: SourceSpan,
    pub(crate) kind: YamlKind,
    /// How many nodes this is when written out.
    nodes: usize,
    /// How many levels.
    levels: usize,
}

/// What a value is, as far as syntax can say.
pub(crate) enum YamlKind {
    /// One text, quoted or plain; nothing written at all is [`YamlKind::Empty`].
    Scalar {
        text: String,
        plain: bool,
    },
    Empty,
    List(Vec<Rc<YamlNode>>),
    Map(Vec<YamlEntry>),
    /// Something that has been reported already.
    Broken,
}

/// A field of a mapping.
pub(crate) struct YamlEntry {
    pub(crate) key: String,
    pub(crate) key_span: SourceSpan,
    pub(crate) value: Rc<YamlNode>,
}

impl YamlNode {
    pub(crate) fn new(span: SourceSpan, kind: YamlKind) -> YamlNode {
        let (mut nodes, mut levels) = (1_usize, 0);
        let mut contain = |child: &YamlNode| {
            nodes = nodes.saturating_add(child.nodes);
            levels = levels.max(child.levels);
        };
        match &kind {
            YamlKind::List(children) => children.iter().for_each(|child| contain(child)),
            YamlKind::Map(entries) => entries.iter().for_each(|entry| contain(&entry.value)),
            YamlKind::Scalar { .. } | YamlKind::Empty | YamlKind::Broken => {}
        }
        YamlNode { span, kind, nodes, levels: levels + 1 }
    }

    /// Whether the document has no value.
    pub fn is_empty(&self) -> bool {
        matches!(self.kind, YamlKind::Empty)
    }

    /// Whether it is a list.
    pub fn is_list(&self) -> bool {
        matches!(self.kind, YamlKind::List(_))
    }

    /// The fields of a mapping; none if it is something else.
    pub(crate) fn entries(&self) -> &[YamlEntry] {
        match &self.kind {
            YamlKind::Map(entries) => entries,
            _ => &[],
        }
    }

    /// The value of a field of a mapping.
    pub fn field(&self, name: &str) -> Option<&YamlNode> {
        match &self.kind {
            YamlKind::Map(entries) => {
                entries.iter().find(|entry| entry.key == name).map(|entry| entry.value.as_ref())
            }
            _ => None,
        }
    }

    /// An element of a list.
    pub fn element(&self, index: usize) -> Option<&YamlNode> {
        match &self.kind {
            YamlKind::List(children) => children.get(index).map(Rc::as_ref),
            _ => None,
        }
    }

    /// What it is, in a message.
    pub(crate) fn found(&self) -> String {
        match &self.kind {
            YamlKind::Scalar { text, plain: true } if text.parse::<f64>().is_ok() || text == "null" => {
                shortened(text)
            }
            YamlKind::Scalar { text, .. } => format!("the text {}", quoted(text)),
            YamlKind::Empty => "nothing".to_owned(),
            YamlKind::List(_) => "a list".to_owned(),
            YamlKind::Map(_) => "a mapping".to_owned(),
            YamlKind::Broken => "something unreadable".to_owned(),
        }
    }
}

/// The tree of a text, or nothing if its syntax is broken. A text without any value is [`YamlKind::Empty`].
pub(crate) fn parse(sink: &mut DiagnosticSink<'_>) -> Option<Rc<YamlNode>> {
    let source = sink.source();
    let options = granit_parser::options! { emit_unresolved_aliases: true, emit_comments: false };
    let mut builder = Builder { stack: Vec::new(), anchors: HashMap::new(), nodes: 0, root: None, sink };
    for event in Parser::new_from_str_with_options(source.text, options) {
        match event {
            Ok((event, span)) => builder.take(event, place_of(&span)).ok()?,
            Err(error) => {
                let span = error.marker().byte_offset().unwrap_or(source.text.len());
                let help = syntax_help(&error);
                let message = match error.kind() {
                    ErrorKind::RecursionLimitExceeded => too_deep(),
                    _ => format!("this is not YAML: {}", error.info()),
                };
                builder.sink.error_with_help(SourceSpan::at(span), "", message, help);
                return None;
            }
        }
    }
    Some(builder.root.unwrap_or_else(|| Rc::new(YamlNode::new(SourceSpan::START, YamlKind::Empty))))
}

/// The parser cannot or must not go on; the reason has been reported.
struct Stop;

struct Builder<'r, 's> {
    stack: Vec<Frame>,
    anchors: HashMap<usize, Rc<YamlNode>>,
    nodes: usize,
    root: Option<Rc<YamlNode>>,
    sink: &'r mut DiagnosticSink<'s>,
}

/// A list or a mapping that is still open.
struct Frame {
    span: SourceSpan,
    anchor: usize,
    open: Open,
}

enum Open {
    List(Vec<Rc<YamlNode>>),
    Map {
        entries: Vec<YamlEntry>,
        seen: HashMap<String, SourceSpan>,
        key: Option<Key>,
    },
    /// A list or a mapping with a tag, which has been reported.
    Tagged,
}

/// A key whose value comes next.
enum Key {
    Text(String, SourceSpan),
    Broken,
}

impl Builder<'_, '_> {
    fn take(&mut self, event: Event<'_>, span: SourceSpan) -> Result<(), Stop> {
        match event {
            Event::DocumentStart(..) if self.root.is_some() => {
                let message = "a second document begins here; a file has one, so remove this line";
                self.sink.error(span, "", message);
                return Err(Stop);
            }
            Event::Scalar(text, style, anchor, tag) => {
                let plain = style == ScalarStyle::Plain;
                let kind = match tag {
                    Some(tag) => self.refuse_tag(span, &tag.original()),
                    None if plain && span.is_empty() => YamlKind::Empty,
                    None => YamlKind::Scalar { text: text.into_owned(), plain },
                };
                self.close(YamlNode::new(span, kind), anchor)?;
            }
            Event::SequenceStart(_, anchor, tag) => {
                let tag = tag.map(|tag| tag.original());
                self.open(span, anchor, tag, Open::List(Vec::new()))?;
            }
            Event::MappingStart(_, anchor, tag) => {
                let empty = Open::Map { entries: Vec::new(), seen: HashMap::new(), key: None };
                self.open(span, anchor, tag.map(|tag| tag.original()), empty)?;
            }
            Event::SequenceEnd | Event::MappingEnd => {
                let frame = self.stack.pop().expect("the parser closes what it has opened");
                let kind = match frame.open {
                    Open::List(children) => YamlKind::List(children),
                    Open::Map { entries, .. } => YamlKind::Map(entries),
                    Open::Tagged => YamlKind::Broken,
                };
                self.close(YamlNode::new(frame.span, kind), frame.anchor)?;
            }
            Event::Alias(anchor) => match self.anchors.get(&anchor).cloned() {
                Some(node) => self.attach(span, node)?,
                None => self.refuse_alias(span, "this alias stands inside what it stands for")?,
            },
            Event::UnresolvedAlias(name) => {
                let name = shortened(&name);
                let message = format!(
                    "nothing before this is marked &{name}; if *{name} is meant as text, put it in quotes"
                );
                self.refuse_alias(span, &message)?;
            }
            _ => {}
        }
        Ok(())
    }

    fn open(&mut self, span: SourceSpan, anchor: usize, tag: Option<String>, open: Open) -> Result<(), Stop> {
        if self.stack.len() >= DEEPEST {
            return self.too_deep(span);
        }
        let open = match tag {
            Some(tag) => {
                self.refuse_tag(span, &tag);
                Open::Tagged
            }
            None => open,
        };
        self.stack.push(Frame { span, anchor, open });
        Ok(())
    }

    fn close(&mut self, node: YamlNode, anchor: usize) -> Result<(), Stop> {
        let node = Rc::new(node);
        if anchor != 0 {
            self.anchors.insert(anchor, Rc::clone(&node));
        }
        let span = node.span;
        self.attach(span, node)
    }

    /// Puts a finished node where it belongs. `place` is its own, or that of the alias that stands for it.
    fn attach(&mut self, span: SourceSpan, node: Rc<YamlNode>) -> Result<(), Stop> {
        // What a node holds was counted when it was closed; an alias stands for all of it again.
        let added = if span == node.span { 1 } else { node.nodes };
        self.nodes = self.nodes.saturating_add(added);
        if self.nodes > MOST_NODES {
            let message =
                format!("this file has more than {MOST_NODES} values, counting those behind aliases");
            self.sink.error(span, "", message);
            return Err(Stop);
        }
        if self.stack.len() + node.levels > DEEPEST + 1 {
            return self.too_deep(span);
        }
        match self.stack.last_mut().map(|frame| &mut frame.open) {
            None => self.root = Some(node),
            Some(Open::Tagged) => {}
            Some(Open::List(children)) => children.push(node),
            Some(Open::Map { entries, seen, key }) => match key.take() {
                None => {
                    *key = Some(key_of(&node, span));
                    self.check_key(span, &node);
                }
                Some(Key::Broken) => {}
                Some(Key::Text(text, key_span)) => {
                    if let Some(first) = seen.get(&text).copied() {
                        // Put back for a moment: the report wants its path.
                        *key = Some(Key::Text(text, key_span));
                        self.refuse_second(key_span, first);
                    } else {
                        seen.insert(text.clone(), key_span);
                        entries.push(YamlEntry { key: text, key_span, value: node });
                    }
                }
            },
        }
        Ok(())
    }

    fn check_key(&mut self, span: SourceSpan, node: &YamlNode) {
        if !matches!(node.kind, YamlKind::Scalar { .. } | YamlKind::Broken) {
            let message = format!("a field's name must be text, found {}", node.found());
            self.sink.error(span, self.path(), message);
        }
    }

    /// Reports a key that is written twice and takes it off the frame.
    fn refuse_second(&mut self, span: SourceSpan, first: SourceSpan) {
        let (line, _) = self.sink.source().line_and_column(first);
        let message = format!("is written twice; the first is on line {line}; remove one of them");
        self.sink.error(span, self.path(), message);
        if let Some(Frame { open: Open::Map { key, .. }, .. }) = self.stack.last_mut() {
            *key = None;
        }
    }

    fn refuse_tag(&mut self, span: SourceSpan, tag: &str) -> YamlKind {
        let message = format!("tags are not read; remove {}", shortened(tag));
        self.sink.error(span, self.path(), message);
        YamlKind::Broken
    }

    fn refuse_alias(&mut self, span: SourceSpan, message: &str) -> Result<(), Stop> {
        self.sink.error(span, self.path(), message);
        self.attach(span, Rc::new(YamlNode::new(span, YamlKind::Broken)))
    }

    fn too_deep(&mut self, span: SourceSpan) -> Result<(), Stop> {
        self.sink.error(span, "", too_deep());
        Err(Stop)
    }

    /// The path of the value that comes next.
    fn path(&self) -> String {
        let mut path = String::new();
        for frame in &self.stack {
            match &frame.open {
                Open::List(children) => {
                    write!(path, "[{}]", children.len()).expect("a string takes all writes");
                }
                Open::Map { key: Some(Key::Text(text, _)), .. } => {
                    let dot = if path.is_empty() { "" } else { "." };
                    write!(path, "{dot}{}", shortened(text)).expect("a string takes all writes");
                }
                Open::Map { .. } | Open::Tagged => {}
            }
        }
        path
    }
}

fn key_of(node: &YamlNode, span: SourceSpan) -> Key {
    match &node.kind {
        YamlKind::Scalar { text, .. } => Key::Text(text.clone(), span),
        _ => Key::Broken,
    }
}

fn too_deep() -> String {
    format!("this is nested more than {DEEPEST} levels deep")
}

/// What usually causes a syntax error.
fn syntax_help(error: &ScanError) -> Option<String> {
    use ErrorKind as K;
    let help = match error.kind() {
        K::TabNotAllowed | K::TabInBlockIndentation | K::TabInIndentation | K::TabAtBlockScalarStart => {
            "indent with spaces, not tabs"
        }
        K::MappingValueNotAllowed
        | K::MappingKeyNotAllowed
        | K::InvalidIndentation
        | K::InvalidSimpleKey
        | K::ExpectedBlockMappingKey
        | K::ExpectedBlockSequenceEntry => "check the indentation; a text with ': ' in it must be in quotes",
        K::UnexpectedCharacter { .. } => "a text that begins with this character must be in quotes",
        K::UnclosedQuotedScalar | K::InvalidQuotedScalarIndent => "a closing quote may be missing",
        K::InvalidColonPlacement
        | K::ExpectedFlowMappingSeparator
        | K::ExpectedFlowSequenceSeparator
        | K::UnexpectedEofFlowMapping
        | K::UnexpectedEofFlowSequence => "a comma or a closing bracket may be missing before this",
        K::UnclosedFlowCollection { .. } | K::MismatchedFlowCollectionEnd { .. } => {
            "write the bracket that closes this one"
        }
        K::ExpectedDocumentStart => "nothing may follow the value; remove this, or check the indentation",
        K::UnknownQuotedScalarEscape => {
            "in double quotes a backslash begins an escape; write two for one, or use single quotes"
        }
        _ => return None,
    };
    Some(help.to_owned())
}

fn place_of(span: &Span) -> SourceSpan {
    span.byte_range().map_or(SourceSpan::START, |bytes| SourceSpan { start: bytes.start, end: bytes.end })
}
