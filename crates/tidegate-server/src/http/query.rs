//! Query parameters and percent-decoding.

use ::http::request::Parts;

use super::problem::Problem;

/// Query parameters, each given at most once.
pub(super) struct Query {
    found: Vec<(&'static str, String)>,
}

impl Query {
    /// Parses the parameters of these names. Unknown ones are refused: a misspelled one would have no effect.
    pub(super) fn read(head: &Parts, names: &[&'static str]) -> Result<Query, Problem> {
        let mut found: Vec<(&'static str, String)> = Vec::new();
        let written = head.uri.query().unwrap_or_default();
        for pair in written.split('&').filter(|pair| !pair.is_empty()) {
            let (name, value) = pair.split_once('=').unwrap_or((pair, ""));
            let name = decoded(&name.replace('+', " "), "a parameter's name")?;
            let Some(name) = names.iter().copied().find(|known| *known == name) else {
                let allowed = if names.is_empty() { "none".to_owned() } else { names.join(", ") };
                let detail =
                    format!("'{}' is not a parameter here; they are: {allowed}", name.escape_debug());
                return Err(Problem::bad_request(detail));
            };
            if found.iter().any(|(other, _)| *other == name) {
                return Err(Problem::bad_request(format!("the parameter {name} is given twice")));
            }
            found.push((name, decoded(&value.replace('+', " "), name)?));
        }
        Ok(Query { found })
    }

    /// The value of a parameter, if it was given.
    pub(super) fn get(&self, name: &str) -> Option<&str> {
        self.found.iter().find(|(known, _)| *known == name).map(|(_, value)| value.as_str())
    }
}

/// Percent-decodes text.
pub(super) fn decoded(text: &str, what: &str) -> Result<String, Problem> {
    let refuse = |why: &str| Problem::bad_request(format!("{what} {why}"));
    let mut bytes = Vec::with_capacity(text.len());
    let mut rest = text.as_bytes();
    while let Some((first, after)) = rest.split_first() {
        rest = after;
        if *first != b'%' {
            bytes.push(*first);
            continue;
        }
        let digit = |at: usize| after.get(at).and_then(|byte| char::from(*byte).to_digit(16));
        let (Some(high), Some(low)) = (digit(0), digit(1)) else {
            return Err(refuse("has a '%' without two hexadecimal digits; write '%25' for a percent sign"));
        };
        bytes.push(u8::try_from(high * 16 + low).unwrap_or_default());
        rest = &after[2..];
    }
    String::from_utf8(bytes).map_err(|_| refuse("must be UTF-8, percent-encoded"))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn query(text: &str, names: &[&'static str]) -> Result<Query, String> {
        let uri = format!("/?{text}");
        let (head, ()) = ::http::Request::builder().uri(uri).body(()).expect("a request").into_parts();
        Query::read(&head, names).map_err(|problem| problem.detail)
    }

    #[test]
    fn parts_are_percent_decoded() {
        for (written, meant) in [
            ("", ""),
            ("a+b", "a+b"),
            ("shop%2Fsale", "shop/sale"),
            ("%e6%b5%b7", "海"),
            ("%E6%B5%B7", "海"),
            ("100%25", "100%"),
        ] {
            assert_eq!(decoded(written, "it").as_deref(), Ok(meant));
        }
        for (written, why) in
            [("%", "two hexadecimal"), ("%2", "two hexadecimal"), ("%zz", "two"), ("%ff", "UTF-8")]
        {
            let problem = decoded(written, "it").expect_err(written);
            assert!(problem.detail.contains(why), "{written}: {}", problem.detail);
        }
    }

    #[test]
    fn unknown_and_repeated_parameters_are_refused() {
        let read = query("a=1+2&&b=%2B", &["a", "b", "c"]).expect("a query");
        assert_eq!((read.get("a"), read.get("b"), read.get("c")), (Some("1 2"), Some("+"), None));
        assert_eq!(query("a", &["a"]).expect("a query").get("a"), Some(""));
        for (text, why) in [("a=1&a=1", "twice"), ("d=1", "they are: a"), ("a=%f", "hexadecimal")] {
            let detail = query(text, &["a"]).err().expect(text);
            assert!(detail.contains(why), "{text}: {detail}");
        }
    }
}
