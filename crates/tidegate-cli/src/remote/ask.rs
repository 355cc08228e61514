//! One ask of a set: `limit=ID[,count=N][,key=KEY]`, or JSON as in the HTTP API.
//!
//! The key is last and takes the rest, including commas. It is untrusted text and must not change the rest of the
//! ask. A key that looks like further fields is refused; JSON can express it.

use serde::{Deserialize, Serialize};

/// An ask on the wire.
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
    /// Parses an ask from the command line.
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

/// The key, unless it looks like further fields.
fn key_alone(key: &str) -> Result<String, String> {
    match [",limit=", ",count=", ",key="].into_iter().find(|more| key.contains(more)) {
        Some(more) => Err(format!(
            "the key takes the rest of the text, which contains '{}'; write the key last, or the ask as JSON",
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
    fn ask_is_parsed_from_text_or_json() {
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
    fn key_with_further_fields_is_refused() {
        for text in ["limit=a,key=x,count=0", "limit=a,key=x,limit=b", "limit=a,key=x,key=y"] {
            assert!(RemoteAsk::parse(text).expect_err(text).contains("write the key last"), "{text}");
        }
    }

    #[test]
    fn invalid_ask_is_refused() {
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
