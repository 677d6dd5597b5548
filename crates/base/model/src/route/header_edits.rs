use std::collections::BTreeMap;

use crate::Invalid;

/// Maximum number of headers that a route edits in one direction.
const MAX_EDITS: usize = 32;
/// Maximum length of a header value, in bytes.
const MAX_VALUE_BYTES: usize = 4096;

/// Header edits for requests or responses. A name is in at most one of the three lists, so their order does not
/// matter. Names are in lower case.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct HeaderEdits {
    /// Headers whose value is replaced.
    pub set: BTreeMap<String, String>,
    /// Headers that are added to existing headers of the same name.
    pub add: BTreeMap<String, String>,
    /// Headers that are removed.
    pub remove: Vec<String>,
}

impl HeaderEdits {
    /// Whether there are no edits.
    pub fn is_empty(&self) -> bool {
        self.set.is_empty() && self.add.is_empty() && self.remove.is_empty()
    }

    pub(super) fn validate(&self) -> Result<(), Invalid> {
        let count = self.set.len() + self.add.len() + self.remove.len();
        if count > MAX_EDITS {
            return Err(Invalid::new(
                "",
                format!("edits {count} headers"),
                format!("edit at most {MAX_EDITS}"),
            ));
        }
        let named = |field: &'static str| move |name| (field, name);
        let names = self.set.keys().map(named("set")).chain(self.add.keys().map(named("add")));
        let mut seen = BTreeMap::new();
        for (field, name) in names.chain(self.remove.iter().map(named("remove"))) {
            check_name(name).map_err(|e| e.within(field))?;
            if let Some(other) = seen.insert(name, field) {
                let problem = format!("'{name}' is in '{other}' as well");
                return Err(Invalid::new(
                    field,
                    problem,
                    "name a header once: 'set' replaces existing values",
                ));
            }
        }
        let value = |(field, edits): (&'static str, &BTreeMap<String, String>)| {
            edits.iter().try_for_each(|(name, value)| {
                check_value(value).map_err(|e| e.within(format!("{field}.{name}")))
            })
        };
        [("set", &self.set), ("add", &self.add)].into_iter().try_for_each(value)
    }
}

/// Checks that a header may be edited. Connection-specific and message framing headers are refused (RFC 9110 7.6.1,
/// RFC 9112 6): readers that disagree on the end of a message allow request smuggling. Headers that Fairmesh itself
/// uses are refused too.
fn check_name(name: &str) -> Result<(), Invalid> {
    if !is_token(name) || name.bytes().any(|b| b.is_ascii_uppercase()) {
        return Err(Invalid::new(
            "",
            format!("'{name}' is not a header name"),
            "write it in lower case, without blanks",
        ));
    }
    let of_connection = [
        "connection",
        "content-length",
        "expect",
        "keep-alive",
        "proxy-connection",
        "te",
        "trailer",
        "transfer-encoding",
        "upgrade",
    ];
    if of_connection.contains(&name) {
        let problem = format!("'{name}' belongs to the connection or frames the message");
        return Err(Invalid::new("", problem, "leave it to Fairmesh, which writes it for each connection"));
    }
    if name == "host" {
        return Err(Invalid::new("", "'host' is not edited as a header", "write 'rewrite: {host: …}'"));
    }
    let ours =
        ["x-fairmesh-", "fairmesh-", "endpoint-load-metrics", "grpc-status", "grpc-timeout", "grpc-encoding"];
    if ours.iter().any(|ours| name.starts_with(ours)) {
        let problem = format!("'{name}' is used between callers and servers of the mesh");
        return Err(Invalid::new("", problem, "choose another name"));
    }
    Ok(())
}

fn check_value(value: &str) -> Result<(), Invalid> {
    let plain = value.bytes().all(|b| b == b'\t' || (b' '..=b'~').contains(&b));
    if plain && value.len() <= MAX_VALUE_BYTES && value.trim() == value {
        return Ok(());
    }
    let hint = "write up to 4096 printable ASCII characters, without a blank at either end";
    Err(Invalid::new("", "is not a header value", hint))
}

/// Whether `text` is a `token` (RFC 9110 section 5.6.2), which is the form of methods and header names.
pub(crate) fn is_token(text: &str) -> bool {
    let allowed = |c: char| c.is_ascii_alphanumeric() || "!#$%&'*+-.^_`|~".contains(c);
    !text.is_empty() && text.chars().all(allowed)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn set(name: &str, value: &str) -> HeaderEdits {
        HeaderEdits { set: [(name.to_owned(), value.to_owned())].into(), ..HeaderEdits::default() }
    }

    #[test]
    fn framing_header_edits_are_refused() {
        for name in [
            "content-length",
            "transfer-encoding",
            "connection",
            "te",
            "host",
            "x-fairmesh-key",
            "grpc-status",
        ] {
            assert!(set(name, "1").validate().is_err(), "{name}");
            let gone = HeaderEdits { remove: vec![name.to_owned()], ..HeaderEdits::default() };
            assert!(gone.validate().is_err(), "{name}");
        }
        assert_eq!(set("x-team", "cart").validate(), Ok(()));
    }

    #[test]
    fn header_edits_cannot_inject_further_headers() {
        for value in ["a\r\nx: y", "a\nb", "\u{7f}", "é", " a", &"a".repeat(4097)] {
            assert!(set("x-a", value).validate().is_err(), "{value}");
        }
        for name in ["", "X-A", "x a", "x:", "x\r\n"] {
            assert!(set(name, "a").validate().is_err(), "{name}");
        }
    }

    #[test]
    fn repeated_edits_of_same_header_are_refused() {
        let twice = HeaderEdits { remove: vec!["x-a".into()], ..set("x-a", "1") };
        assert_eq!(twice.validate().unwrap_err().field, "remove");
    }
}
