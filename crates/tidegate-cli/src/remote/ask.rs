//! One ask of a set, as it is typed: `limit=ID[,count=N][,key=KEY]`, or JSON as the server reads it.
//!
//! The key is last and takes the rest, commas and all: a key is somebody else's text, and must not be able to say what the
//! ask is. One that looks as if it did is refused rather than guessed at; in JSON it can be told apart.

use serde::{Deserialize, Serialize};

/// How much of one limit, for which key.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub(crate) struct RemoteAsk {
    pub(crate) limit_id: String,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub(crate) limit_key: Option<String>,
    #[serde(default = "one")]
    pub(crate) count: u64,
}

const fn one() -> u64 {
    1
}

impl RemoteAsk {
    /// Reads what somebody typed, or says what is wrong with it.
    pub(crate) fn parse(text: &str) -> Result<RemoteAsk, String> {
        if text.starts_with('{') {
            return serde_json::from_str(text).map_err(|error| {
                format!(
                    "must be an ask such as {{\"limit_id\":\"a\",\"limit_key\":\"x\",\"count\":1}}: {error}"
                )
            });
        }
        let (fields, limit_key) = match text.split_once(",key=") {
            Some((fields, key)) => (fields, Some(key_alone(key)?)),
            None => (text, None),
        };
        let (mut limit_id, mut count) = (None, None);
        for field in fields.split(',') {
            match field.split_once('=') {
                Some(("limit", id)) if limit_id.is_none() && !id.is_empty() => limit_id = Some(id.to_owned()),
                Some(("count", number)) if count.is_none() => {
                    let number = number.parse();
                    count = Some(number.map_err(|_| format!("count must be a whole number in '{field}'"))?);
                }
                _ => return Err(format!("must be limit=ID[,count=N][,key=KEY], found '{field}'")),
            }
        }
        let limit_id = limit_id.ok_or("must say which limit: limit=ID[,count=N][,key=KEY]")?;
        Ok(RemoteAsk { limit_id, limit_key, count: count.unwrap_or(1) })
    }
}

/// The key, unless it looks as if more were meant than a key.
fn key_alone(key: &str) -> Result<String, String> {
    match [",limit=", ",count=", ",key="].into_iter().find(|more| key.contains(more)) {
        Some(more) => Err(format!(
            "the key takes all that follows, and here that contains '{}'; write the key last, or the ask as JSON",
            more.trim_start_matches(',')
        )),
        None => Ok(key.to_owned()),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn ask(limit_id: &str, key: Option<&str>, count: u64) -> RemoteAsk {
        RemoteAsk { limit_id: limit_id.to_owned(), limit_key: key.map(str::to_owned), count }
    }

    #[test]
    fn asks_say_what_they_are_about() {
        for (text, meant) in [
            ("limit=a", ask("a", None, 1)),
            ("limit=shop/a:b,key=x", ask("shop/a:b", Some("x"), 1)),
            ("limit=a,count=3,key=x", ask("a", Some("x"), 3)),
            ("count=0,limit=a", ask("a", None, 0)),
            ("limit=a,key=x,y=z, w", ask("a", Some("x,y=z, w"), 1)),
            ("limit=a,key=", ask("a", Some(""), 1)),
            (r#"{"limit_id":"a"}"#, ask("a", None, 1)),
            (r#"{"limit_id":"a","limit_key":"x,count=0","count":2}"#, ask("a", Some("x,count=0"), 2)),
        ] {
            assert_eq!(RemoteAsk::parse(text), Ok(meant), "{text}");
        }
    }

    #[test]
    fn a_key_cannot_say_how_much() {
        for text in ["limit=a,key=x,count=0", "limit=a,key=x,limit=b", "limit=a,key=x,key=y"] {
            assert!(RemoteAsk::parse(text).expect_err(text).contains("write the key last"), "{text}");
        }
    }

    #[test]
    fn what_cannot_be_meant_is_refused() {
        for text in [
            "",
            "a",
            "a:x:1",
            "limit=",
            "key=x",
            "count=1",
            "limit=a,limit=b",
            "limit=a,count=-1",
            "limit=a,count=",
            "limit=a,who=x",
            "limit=a,",
            "{}",
            r#"{"limit_id":"a","who":"x"}"#,
            "{",
        ] {
            assert!(RemoteAsk::parse(text).is_err(), "{text}");
        }
    }
}
