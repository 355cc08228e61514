//! A document taken apart: its directives and the commands of its console blocks.

use super::root;

/// What a document says in `<!-- console: … -->` comments.
#[derive(Debug, Default, PartialEq, Eq)]
pub(super) struct Directives {
    /// The server shares the tests' PostgreSQL.
    pub(super) has_postgres: bool,
    /// The settings file of the server, below the root.
    pub(super) config: Option<String>,
    /// Commands run in an empty directory.
    pub(super) has_empty_directory: bool,
    /// Programs without which the document is skipped.
    pub(super) programs: Vec<String>,
}

impl Directives {
    fn add(&mut self, path: &str, written: &str) {
        match written.split_once('=') {
            Some(("store", "postgres")) => self.has_postgres = true,
            Some(("config", file)) => self.config = Some(root().join(file).display().to_string()),
            Some(("directory", "empty")) => self.has_empty_directory = true,
            Some(("requires", program)) => self.programs.push(program.to_owned()),
            _ => panic!("{path}: unknown directive '{written}'; the head of tests/cli/docs.rs lists them"),
        }
    }

    /// A program that the document needs and that `PATH` does not have.
    pub(super) fn missing_program(&self) -> Option<&str> {
        let path = std::env::var_os("PATH").unwrap_or_default();
        let is_there =
            |program: &str| std::env::split_paths(&path).any(|folder| folder.join(program).is_file());
        self.programs.iter().map(String::as_str).find(|program| !is_there(program))
    }
}

/// How a command is run.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum ExampleKind {
    /// In a shell, until it ends.
    Shell,
    /// As the server of the commands that follow.
    Server,
}

/// One command of a document and the output that it shows.
#[derive(Debug, PartialEq, Eq)]
pub(super) struct Example {
    pub(super) kind: ExampleKind,
    /// The line of the document that begins the command.
    pub(super) line: usize,
    pub(super) command: String,
    pub(super) shown: String,
}

/// A document's text and its examples.
pub(super) struct Document<'a> {
    text: &'a str,
    pub(super) directives: Directives,
    pub(super) examples: Vec<Example>,
    /// For every line of the text, the example whose output it is.
    output_of: Vec<Option<usize>>,
}

/// What the lines of a block are.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Block {
    /// Console examples, until this line.
    Console(ExampleKind, &'static str),
    /// Something else in a fence of this many backquotes.
    Other(usize),
}

impl<'a> Document<'a> {
    /// Finds the examples of a text.
    ///
    /// # Panics
    ///
    /// If a directive is unknown or output comes before the first command.
    pub(super) fn parse(path: &str, text: &'a str) -> Document<'a> {
        let mut found =
            Document { text, directives: Directives::default(), examples: Vec::new(), output_of: Vec::new() };
        let mut block = None;
        // The end of the command that is read: a here-document's end word, or nothing after a backslash.
        let mut unfinished: Option<Option<String>> = None;
        let mut is_first = true;
        for (index, line) in text.lines().enumerate() {
            let mut output_of = None;
            match block {
                None => {
                    block = opened_block(path, line);
                    is_first = true;
                    if let Some(written) = line.strip_prefix("<!-- console: ") {
                        let written = written.strip_suffix(" -->").expect("a directive ends in its line");
                        found.directives.add(path, written);
                    }
                }
                Some(Block::Other(ticks)) => {
                    let is_fence = line.len() >= ticks && line.bytes().all(|byte| byte == b'`');
                    block = block.filter(|_| !is_fence);
                }
                Some(Block::Console(_, end)) if unfinished.is_none() && line == end => block = None,
                Some(Block::Console(kind, _)) => {
                    if let Some(end) = unfinished.take() {
                        let last = found.examples.last_mut().expect("a command has begun");
                        last.command.extend(["\n", line]);
                        unfinished = match end {
                            Some(word) if line != word => Some(Some(word)),
                            Some(_) => None,
                            None => continuation(line),
                        };
                    } else if let Some(command) = line.strip_prefix("$ ") {
                        unfinished = continuation(command);
                        let command = command.to_owned();
                        found.examples.push(Example { kind, line: index + 1, command, shown: String::new() });
                        is_first = false;
                    } else {
                        assert!(!is_first, "{path}:{}: output without a command", index + 1);
                        found.examples.last_mut().expect("not the first").shown.extend([line, "\n"]);
                        output_of = Some(found.examples.len() - 1);
                    }
                }
            }
            found.output_of.push(output_of);
        }
        assert!(block.is_none() && unfinished.is_none(), "{path}: its last block has no end");
        found
    }

    /// The text with these outputs in place of those it shows, one for each example.
    pub(super) fn with_outputs(&self, outputs: &[String]) -> String {
        let mut text = String::new();
        let mut written = 0;
        for (index, (line, output_of)) in self.text.lines().zip(&self.output_of).enumerate() {
            if output_of.is_some() {
                continue;
            }
            // An output belongs after the last line of its command: before the first line that is after it.
            while let Some(output) = outputs.get(written)
                && self.last_line(written) < index
            {
                text.push_str(output);
                written += 1;
            }
            text.extend([line, "\n"]);
        }
        text
    }

    /// The index of the last line of an example's command.
    fn last_line(&self, example: usize) -> usize {
        let Example { line, command, .. } = &self.examples[example];
        line - 1 + command.matches('\n').count()
    }
}

/// The block that a line opens.
fn opened_block(path: &str, line: &str) -> Option<Block> {
    if line == "<!-- console" {
        return Some(Block::Console(ExampleKind::Shell, "-->"));
    }
    let ticks = line.bytes().take_while(|&byte| byte == b'`').count();
    if ticks < 3 {
        return None;
    }
    Some(match &line[ticks..] {
        "console" => Block::Console(ExampleKind::Shell, "```"),
        "console server" => Block::Console(ExampleKind::Server, "```"),
        info => {
            let is_known = !info.starts_with("console") || info == "console no-run";
            assert!(is_known, "{path}: unknown block '{info}'; the head of tests/cli/docs.rs lists them");
            Block::Other(ticks)
        }
    })
}

/// Whether a command goes on after this line, and the end word of its here-document.
#[expect(clippy::option_option, reason = "the outer says whether it goes on, the inner until which word")]
fn continuation(line: &str) -> Option<Option<String>> {
    if let Some((_, after)) = line.split_once("<<") {
        let word: String = after
            .trim_start_matches(['-', '\'', '"'])
            .chars()
            .take_while(|c| c.is_ascii_alphanumeric() || *c == '_')
            .collect();
        if !word.is_empty() {
            return Some(Some(word));
        }
    }
    line.ends_with('\\').then_some(None)
}

#[test]
fn document_is_parsed_into_commands_and_outputs() {
    let text = "\
<!-- console: directory=empty -->
```console
$ a
1
$ b \\
  c
$ cat <<'EOF'
$ x
EOF
2
```
````text
```console
$ not run
```
````
```console no-run
$ not run
```
<!-- console
$ hidden
-->
```console server
$ tidegate serve
ready
```
";
    let document = Document::parse("x.md", text);
    assert!(document.directives.has_empty_directory);
    let found: Vec<_> =
        document.examples.iter().map(|it| (it.kind, it.line, &*it.command, &*it.shown)).collect();
    assert_eq!(
        found,
        [
            (ExampleKind::Shell, 3, "a", "1\n"),
            (ExampleKind::Shell, 5, "b \\\n  c", ""),
            (ExampleKind::Shell, 7, "cat <<'EOF'\n$ x\nEOF", "2\n"),
            (ExampleKind::Shell, 21, "hidden", ""),
            (ExampleKind::Server, 24, "tidegate serve", "ready\n"),
        ]
    );
    let shown: Vec<String> = document.examples.iter().map(|it| it.shown.clone()).collect();
    assert_eq!(document.with_outputs(&shown), text);
    let others = ["", "3\n4\n", "5\n", "", "6\n"].map(str::to_owned);
    let changed = document.with_outputs(&others);
    assert!(changed.contains("$ a\n$ b \\\n  c\n3\n4\n$ cat <<'EOF'\n$ x\nEOF\n5\n```\n"), "{changed}");
    assert!(changed.ends_with("$ tidegate serve\n6\n```\n"), "{changed}");
}
