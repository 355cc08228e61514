//! Limits from a file or from `--item` arguments.
//!
//! They are parsed here, with the parser that the server uses. Errors name line and column, or the field for
//! `--item`, and nothing is sent.

use std::path::Path;

use tidegate::model::LimitSpec;
use tidegate_config::Diagnostics;
use tidegate_server::settings;

use crate::args::LimitSource;
use crate::{Failure, color_of_stderr, read_whole};

/// Parses the limits; there is at least one.
pub(super) fn limits(source: &LimitSource) -> Result<Vec<LimitSpec>, Failure> {
    if source.items.is_empty() { of_file(&source.from) } else { typed(source).map(|limit| vec![limit]) }
}

fn of_file(path: &Path) -> Result<Vec<LimitSpec>, Failure> {
    let (name, bytes) = read_whole(path).map_err(|failure| {
        let id = path.display();
        Failure::BadInput(format!(
            "{failure}; to define a limit '{id}' without a file, give its items with --item"
        ))
    })?;
    let limits = settings::read_limits(&name, &bytes)
        .map_err(|wrong| Failure::BadInput(wrong.render(color_of_stderr())))?;
    if limits.is_empty() {
        return Err(Failure::BadInput(format!("{name} contains no limits")));
    }
    Ok(limits)
}

fn typed(source: &LimitSource) -> Result<LimitSpec, Failure> {
    let id = source.from.display().to_string();
    let items: Result<Vec<_>, _> = source.items.iter().map(|item| object(item)).collect();
    let text = format!("{{\"id\":{},\"items\":[{}]}}", quoted(&id), items?.join(","));
    tidegate_config::limits::read_limit("--item", text.as_bytes())
        .map_err(|wrong| Failure::BadInput(by_field(&wrong)))
}

/// `policy=day,limit=1` as a JSON object. Duplicate fields are kept; the parser refuses them.
fn object(item: &str) -> Result<String, Failure> {
    let fields: Result<Vec<_>, _> = item.split(',').map(field).collect();
    fields.map(|fields| format!("{{{}}}", fields.join(",")))
}

fn field(written: &str) -> Result<String, Failure> {
    let refuse = || {
        let example = "policy=sliding,limit=5,window=15s,per=key";
        Failure::BadInput(format!("--item must be fields such as {example}, found '{written}'"))
    };
    let (name, value) = written.split_once('=').ok_or_else(refuse)?;
    let (name, value) = (name.trim(), value.trim());
    if name.is_empty() {
        return Err(refuse());
    }
    // A name is text, even if it looks like a number.
    let is_number =
        ["limit", "burst"].contains(&name) && serde_json::from_str::<serde_json::Number>(value).is_ok();
    Ok(if is_number {
        format!("{}:{value}", quoted(name))
    } else {
        format!("{}:{}", quoted(name), quoted(value))
    })
}

fn by_field(wrong: &Diagnostics) -> String {
    let lines = wrong.iter().map(|found| {
        let help = found.help.as_deref().map(|help| format!("; {help}")).unwrap_or_default();
        match &*found.field {
            "" => format!("{}{help}", found.message),
            field => format!("{field}: {}{help}", found.message),
        }
    });
    lines.collect::<Vec<_>>().join("\n")
}

fn quoted(text: &str) -> String {
    serde_json::Value::from(text).to_string()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn typed_as(items: &[&str]) -> Result<LimitSpec, String> {
        let items = items.iter().map(|&item| item.to_owned()).collect();
        typed(&LimitSource { from: "login".into(), items }).map_err(|failure| failure.to_string())
    }

    #[test]
    fn item_arguments_equal_a_file() {
        let file = "{id: login, items: [{policy: sliding, limit: 5, window: 15s, per: key}, \
                    {policy: bucket, limit: -1, window: 1s, burst: 9, name: 007}]}";
        let written = tidegate_config::limits::read_limit("a file", file.as_bytes()).expect("a limit");
        let typed = typed_as(&[
            "policy=sliding,limit=5,window=15s,per=key",
            "policy=bucket, limit=-1,window=1s,burst=9,name=007",
        ]);
        assert_eq!(typed, Ok(written));
    }

    #[test]
    fn every_item_error_names_its_field() {
        let message =
            typed_as(&["policy=slidng,limit=5", "policy=day,limit=1.5"]).expect_err("two are wrong");
        let lines: Vec<_> = message.lines().collect();
        assert_eq!(lines.len(), 2, "{message}");
        assert!(
            lines[0].starts_with("items[0].policy: ") && lines[0].ends_with("did you mean 'sliding'?"),
            "{message}"
        );
        assert!(lines[1].starts_with("items[1].limit: "), "{message}");
        assert!(typed_as(&["policy=day,policy=week,limit=1"]).is_err(), "twice");
        for wrong in ["", "day", "=day", "policy=day,"] {
            let message = typed_as(&[wrong]).expect_err(wrong);
            assert!(message.starts_with("--item must be fields such as "), "{message}");
        }
    }
}
