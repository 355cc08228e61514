//! YAML parser: from text to a tree of values with their positions.
//!
//! The parser accepts YAML 1.2, which includes JSON. An event parser reads the text, and this module builds the tree without
//! recursion, so a deeply nested text cannot overflow the stack. Scalars stay text: the schema of a field decides whether `10`
//! is a number.
//!
//! Aliases share the nodes of their anchors. The expanded tree is limited to 4,000,000 nodes and 64 levels, so nested aliases
//! cannot grow it without bound.
//!
//! Duplicate keys, keys that are not text, tags and invalid aliases are reported with their positions, and parsing continues.
//! A second document and broken syntax end the parsing.

use std::fmt::Write as _;
use std::rc::Rc;

use granit_parser::{ErrorKind, Event, Parser, ScalarStyle, ScanError, Span};
use hashbrown::HashMap;

use crate::diagnostic::DiagnosticSink;
use crate::source::SourceSpan;
use crate::text::{quoted, shortened};

/// The maximum nesting depth.
const MAX_DEPTH: usize = 64;
/// The maximum number of values. Each use of an alias counts all values of its anchor.
const MAX_NODES: usize = 4_000_000;

/// A value with its position.
pub struct YamlNode {
    /// The position in the text.
    pub span: SourceSpan,
    pub(crate) kind: YamlKind,
    /// The number of nodes in the expanded subtree, this one included.
    nodes: usize,
    /// The number of levels in the subtree.
    levels: usize,
}

/// The syntactic type of a value.
pub(crate) enum YamlKind {
    /// A text, quoted or plain. A plain scalar without text is [`YamlKind::Empty`].
    Scalar {
        text: String,
        plain: bool,
    },
    Empty,
    List(Vec<Rc<YamlNode>>),
    Map(Vec<YamlEntry>),
    /// A value with an error that was reported already.
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
        let mut add_child = |child: &YamlNode| {
            nodes = nodes.saturating_add(child.nodes);
            levels = levels.max(child.levels);
        };
        match &kind {
            YamlKind::List(children) => children.iter().for_each(|child| add_child(child)),
            YamlKind::Map(entries) => entries.iter().for_each(|entry| add_child(&entry.value)),
            YamlKind::Scalar { .. } | YamlKind::Empty | YamlKind::Broken => {}
        }
        YamlNode { span, kind, nodes, levels: levels + 1 }
    }

    /// Whether no value is written.
    pub fn is_empty(&self) -> bool {
        matches!(self.kind, YamlKind::Empty)
    }

    /// Whether the value is a list.
    pub fn is_list(&self) -> bool {
        matches!(self.kind, YamlKind::List(_))
    }

    /// The fields of a mapping. Empty for other values.
    pub(crate) fn entries(&self) -> &[YamlEntry] {
        match &self.kind {
            YamlKind::Map(entries) => entries,
            _ => &[],
        }
    }

    /// The value of a field. `None` if the value is not a mapping or lacks the field.
    pub fn field(&self, name: &str) -> Option<&YamlNode> {
        match &self.kind {
            YamlKind::Map(entries) => {
                entries.iter().find(|entry| entry.key == name).map(|entry| entry.value.as_ref())
            }
            _ => None,
        }
    }

    /// An element of a list. `None` if the value is not a list or is shorter.
    pub fn element(&self, index: usize) -> Option<&YamlNode> {
        match &self.kind {
            YamlKind::List(children) => children.get(index).map(Rc::as_ref),
            _ => None,
        }
    }

    /// A description of the value for messages.
    pub(crate) fn describe(&self) -> String {
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

/// Parses a text. Returns `None` after a syntax error. A text without a value becomes [`YamlKind::Empty`].
pub(crate) fn parse(sink: &mut DiagnosticSink<'_>) -> Option<Rc<YamlNode>> {
    let source = sink.source();
    let options = granit_parser::options! { emit_unresolved_aliases: true, emit_comments: false };
    let mut builder = TreeBuilder { stack: Vec::new(), anchors: HashMap::new(), nodes: 0, root: None, sink };
    for event in Parser::new_from_str_with_options(source.text, options) {
        match event {
            Ok((event, span)) => builder.handle_event(event, span_of(&span)).ok()?,
            Err(error) => {
                let span = error.marker().byte_offset().unwrap_or(source.text.len());
                let help = syntax_help(&error);
                let message = match error.kind() {
                    ErrorKind::RecursionLimitExceeded => depth_message(),
                    _ => format!("this is not YAML: {}", error.info()),
                };
                builder.sink.error_with_help(SourceSpan::at(span), "", message, help);
                return None;
            }
        }
    }
    Some(builder.root.unwrap_or_else(|| Rc::new(YamlNode::new(SourceSpan::START, YamlKind::Empty))))
}

/// Parsing ended early; the reason was reported.
struct ParseAborted;

struct TreeBuilder<'r, 's> {
    stack: Vec<OpenCollection>,
    anchors: HashMap<usize, Rc<YamlNode>>,
    nodes: usize,
    root: Option<Rc<YamlNode>>,
    sink: &'r mut DiagnosticSink<'s>,
}

/// A list or a mapping whose end was not read yet.
struct OpenCollection {
    span: SourceSpan,
    anchor: usize,
    contents: OpenContents,
}

enum OpenContents {
    List(Vec<Rc<YamlNode>>),
    Map {
        entries: Vec<YamlEntry>,
        first_keys: HashMap<String, SourceSpan>,
        key: Option<PendingKey>,
    },
    /// A list or a mapping with a tag; the tag was reported.
    Tagged,
}

/// A key whose value was not read yet.
enum PendingKey {
    Text(String, SourceSpan),
    Broken,
}

impl TreeBuilder<'_, '_> {
    fn handle_event(&mut self, event: Event<'_>, span: SourceSpan) -> Result<(), ParseAborted> {
        match event {
            Event::DocumentStart(..) if self.root.is_some() => {
                let message = "a second document begins here; a file has one, so remove this line";
                self.sink.error(span, "", message);
                return Err(ParseAborted);
            }
            Event::Scalar(text, style, anchor, tag) => {
                let plain = style == ScalarStyle::Plain;
                let kind = match tag {
                    Some(tag) => self.report_tag(span, &tag.original()),
                    None if plain && span.is_empty() => YamlKind::Empty,
                    None => YamlKind::Scalar { text: text.into_owned(), plain },
                };
                self.close_node(YamlNode::new(span, kind), anchor)?;
            }
            Event::SequenceStart(_, anchor, tag) => {
                let tag = tag.map(|tag| tag.original());
                self.open_collection(span, anchor, tag, OpenContents::List(Vec::new()))?;
            }
            Event::MappingStart(_, anchor, tag) => {
                let empty = OpenContents::Map { entries: Vec::new(), first_keys: HashMap::new(), key: None };
                self.open_collection(span, anchor, tag.map(|tag| tag.original()), empty)?;
            }
            Event::SequenceEnd | Event::MappingEnd => {
                let collection = self.stack.pop().expect("the parser closes what it has opened");
                let kind = match collection.contents {
                    OpenContents::List(children) => YamlKind::List(children),
                    OpenContents::Map { entries, .. } => YamlKind::Map(entries),
                    OpenContents::Tagged => YamlKind::Broken,
                };
                self.close_node(YamlNode::new(collection.span, kind), collection.anchor)?;
            }
            Event::Alias(anchor) => match self.anchors.get(&anchor).cloned() {
                Some(node) => self.attach_node(span, node)?,
                None => self.report_alias(span, "this alias stands inside what it stands for")?,
            },
            Event::UnresolvedAlias(name) => {
                let name = shortened(&name);
                let message = format!(
                    "nothing before this is marked &{name}; if *{name} is meant as text, put it in quotes"
                );
                self.report_alias(span, &message)?;
            }
            _ => {}
        }
        Ok(())
    }

    fn open_collection(
        &mut self,
        span: SourceSpan,
        anchor: usize,
        tag: Option<String>,
        contents: OpenContents,
    ) -> Result<(), ParseAborted> {
        if self.stack.len() >= MAX_DEPTH {
            return self.report_depth(span);
        }
        let contents = match tag {
            Some(tag) => {
                self.report_tag(span, &tag);
                OpenContents::Tagged
            }
            None => contents,
        };
        self.stack.push(OpenCollection { span, anchor, contents });
        Ok(())
    }

    fn close_node(&mut self, node: YamlNode, anchor: usize) -> Result<(), ParseAborted> {
        let node = Rc::new(node);
        if anchor != 0 {
            self.anchors.insert(anchor, Rc::clone(&node));
        }
        let span = node.span;
        self.attach_node(span, node)
    }

    /// Adds a finished node to the innermost open collection. `span` is its own position or that of an alias to it.
    fn attach_node(&mut self, span: SourceSpan, node: Rc<YamlNode>) -> Result<(), ParseAborted> {
        // The children of a node were counted when they were attached. An alias counts the whole subtree again.
        let added = if span == node.span { 1 } else { node.nodes };
        self.nodes = self.nodes.saturating_add(added);
        if self.nodes > MAX_NODES {
            let message =
                format!("this file has more than {MAX_NODES} values, counting those behind aliases");
            self.sink.error(span, "", message);
            return Err(ParseAborted);
        }
        if self.stack.len() + node.levels > MAX_DEPTH + 1 {
            return self.report_depth(span);
        }
        match self.stack.last_mut().map(|collection| &mut collection.contents) {
            None => self.root = Some(node),
            Some(OpenContents::Tagged) => {}
            Some(OpenContents::List(children)) => children.push(node),
            Some(OpenContents::Map { entries, first_keys, key }) => match key.take() {
                None => {
                    *key = Some(pending_key(&node, span));
                    self.check_key(span, &node);
                }
                Some(PendingKey::Broken) => {}
                Some(PendingKey::Text(text, key_span)) => {
                    if let Some(first) = first_keys.get(&text).copied() {
                        // The report needs the key for the path; it removes the key afterwards.
                        *key = Some(PendingKey::Text(text, key_span));
                        self.report_duplicate_key(key_span, first);
                    } else {
                        first_keys.insert(text.clone(), key_span);
                        entries.push(YamlEntry { key: text, key_span, value: node });
                    }
                }
            },
        }
        Ok(())
    }

    fn check_key(&mut self, span: SourceSpan, node: &YamlNode) {
        if !matches!(node.kind, YamlKind::Scalar { .. } | YamlKind::Broken) {
            let message = format!("a field's name must be text, found {}", node.describe());
            self.sink.error(span, self.next_path(), message);
        }
    }

    /// Reports a duplicate key and removes it from the innermost open collection.
    fn report_duplicate_key(&mut self, span: SourceSpan, first: SourceSpan) {
        let (line, _) = self.sink.source().line_and_column(first);
        let message = format!("is written twice; the first is on line {line}; remove one of them");
        self.sink.error(span, self.next_path(), message);
        if let Some(OpenCollection { contents: OpenContents::Map { key, .. }, .. }) = self.stack.last_mut() {
            *key = None;
        }
    }

    fn report_tag(&mut self, span: SourceSpan, tag: &str) -> YamlKind {
        let message = format!("tags are not read; remove {}", shortened(tag));
        self.sink.error(span, self.next_path(), message);
        YamlKind::Broken
    }

    fn report_alias(&mut self, span: SourceSpan, message: &str) -> Result<(), ParseAborted> {
        self.sink.error(span, self.next_path(), message);
        self.attach_node(span, Rc::new(YamlNode::new(span, YamlKind::Broken)))
    }

    fn report_depth(&mut self, span: SourceSpan) -> Result<(), ParseAborted> {
        self.sink.error(span, "", depth_message());
        Err(ParseAborted)
    }

    /// The path of the next value.
    fn next_path(&self) -> String {
        let mut path = String::new();
        for collection in &self.stack {
            match &collection.contents {
                OpenContents::List(children) => {
                    write!(path, "[{}]", children.len()).expect("writing to a string succeeds");
                }
                OpenContents::Map { key: Some(PendingKey::Text(text, _)), .. } => {
                    let dot = if path.is_empty() { "" } else { "." };
                    write!(path, "{dot}{}", shortened(text)).expect("writing to a string succeeds");
                }
                OpenContents::Map { .. } | OpenContents::Tagged => {}
            }
        }
        path
    }
}

fn pending_key(node: &YamlNode, span: SourceSpan) -> PendingKey {
    match &node.kind {
        YamlKind::Scalar { text, .. } => PendingKey::Text(text.clone(), span),
        _ => PendingKey::Broken,
    }
}

fn depth_message() -> String {
    format!("this is nested more than {MAX_DEPTH} levels deep")
}

/// A hint about the usual cause of a syntax error.
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

fn span_of(span: &Span) -> SourceSpan {
    span.byte_range().map_or(SourceSpan::START, |bytes| SourceSpan { start: bytes.start, end: bytes.end })
}
