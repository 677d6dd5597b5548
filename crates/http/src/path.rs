//! The path and query of a request, byte for byte as they are sent.
//!
//! `http::Uri` refuses `<`, `>` and a backtick in paths and `"`, `<`, `>` in queries, which programs send all the same
//! (`?q={"a":1}`) and other proxies forward. A request with one of them carries its path beside its URI, which has these bytes
//! percent-encoded; no other request pays for that. A URI type of our own was rejected: `http::Request` is what callers, tower
//! and hyper speak.

use std::sync::Arc;

use http::{Extensions, uri::PathAndQuery};

/// A path and query that a URI of `http` cannot hold. In the extensions of a request, beside a URI with [`uri`](Self::uri), it is
/// what routes match and servers see.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct RawPath {
    text: Arc<str>,
    uri: PathAndQuery,
}

/// What is asked for.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Path {
    /// A path that a URI can hold: nearly every one. It begins with a slash, or is an asterisk.
    Uri(PathAndQuery),
    /// Any other.
    Raw(RawPath),
}

impl RawPath {
    /// Takes a path and query; `None` where it does not begin with a slash, or holds blanks, control characters, `#`, or bytes
    /// that are no UTF-8.
    pub fn new(text: &[u8]) -> Option<Self> {
        let text = std::str::from_utf8(text).ok()?;
        if !text.starts_with('/') || !text.bytes().all(is_sent) {
            return None;
        }
        let mut encoded = String::with_capacity(text.len() + 8);
        for char in text.chars() {
            match char {
                '"' => encoded.push_str("%22"),
                '<' => encoded.push_str("%3C"),
                '>' => encoded.push_str("%3E"),
                '`' => encoded.push_str("%60"),
                other => encoded.push(other),
            }
        }
        Some(Self { text: text.into(), uri: encoded.try_into().ok()? })
    }

    /// As it is sent.
    pub fn as_str(&self) -> &str {
        &self.text
    }

    /// The same where a URI is needed.
    pub fn uri(&self) -> &PathAndQuery {
        &self.uri
    }
}

impl Path {
    /// Takes a path and query, or the asterisk of OPTIONS (RFC 9113 8.3.1).
    ///
    /// # Errors
    /// What it lacks to be one, or has too much of.
    pub fn read(text: &[u8]) -> Result<Self, &'static str> {
        match text {
            [] => Err("a path is empty"),
            b"*" => Ok(Self::Uri(PathAndQuery::from_static("*"))),
            [b'/', ..] if text.iter().copied().all(is_sent) => match PathAndQuery::try_from(text) {
                Ok(path) => Ok(Self::Uri(path)),
                Err(_) => RawPath::new(text).map(Self::Raw).ok_or("a path is no UTF-8"),
            },
            [b'/', ..] => Err("a path has blanks, control characters or a fragment"),
            _ => Err("a path does not begin with a slash"),
        }
    }

    /// What a request asks for by its URI, and by the raw path in its extensions as long as that is of the same URI: who changed the
    /// one since means the other no more.
    pub fn of(uri: Option<PathAndQuery>, raw: Option<&RawPath>) -> Self {
        let uri = uri.unwrap_or_else(|| PathAndQuery::from_static("/"));
        match raw {
            Some(raw) if raw.uri == uri => Self::Raw(raw.clone()),
            _ => uri.into(),
        }
    }

    /// As it is sent.
    pub fn as_str(&self) -> &str {
        match self {
            Self::Uri(path) => path.as_str(),
            Self::Raw(path) => path.as_str(),
        }
    }

    /// What stands in a URI for it, and what goes beside that where it says something else.
    pub(crate) fn into_parts(self, extensions: &mut Extensions) -> PathAndQuery {
        match self {
            Self::Uri(path) => path,
            Self::Raw(path) => {
                let uri = path.uri.clone();
                extensions.insert(path);
                uri
            }
        }
    }
}

impl From<PathAndQuery> for Path {
    /// A query may stand alone in a URI, but not in a request (RFC 9112 3.2.1).
    fn from(path: PathAndQuery) -> Self {
        match path.as_str() {
            text if text.starts_with('/') || text == "*" => Self::Uri(path),
            text => Self::read(format!("/{text}").as_bytes()).unwrap_or(Self::Uri(path)),
        }
    }
}

/// Whether a byte may stand in a path or query as it is sent: all but blanks, control characters and what begins a fragment.
const fn is_sent(byte: u8) -> bool {
    matches!(byte, 0x21..=0x7e | 0x80..) && byte != b'#'
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_a_uri_refuses_is_kept_beside_one_that_it_does_not() {
        for (text, uri) in [
            (r#"/?q={"a":1}"#, "/?q={%22a%22:1}"),
            ("/<a>`b", "/%3Ca%3E%60b"),
            ("/é?\"ü", "/é?%22ü"),
            ("/?<>", "/?%3C%3E"),
        ] {
            let path = Path::read(text.as_bytes()).unwrap();
            assert_eq!(path.as_str(), text);
            let mut extensions = Extensions::new();
            let told = path.clone().into_parts(&mut extensions);
            assert_eq!(told.as_str(), uri);
            assert_eq!(Path::of(Some(told), extensions.get()), path);
            let other = PathAndQuery::from_static("/other");
            assert_eq!(
                Path::of(Some(other), extensions.get()).as_str(),
                "/other",
                "the URI was changed since"
            );
        }
    }

    #[test]
    fn every_byte_that_may_be_sent_is_kept_and_no_other() {
        for byte in 0..0x80 {
            for text in [[b'/', byte, b'a'].to_vec(), [b'/', b'?', byte].to_vec()] {
                let path = Path::read(&text);
                assert_eq!(path.is_ok(), byte > b' ' && byte != 0x7f && byte != b'#', "{byte:#x}: {path:?}");
                assert!(path.is_err() || path.unwrap().as_str().as_bytes() == text);
            }
        }
        assert!(Path::read(b"/\xff").is_err() && Path::read(b"/?\xc3").is_err(), "what is no UTF-8");
        for wrong in ["", "a", "?a", "**", "*a"] {
            assert!(Path::read(wrong.as_bytes()).is_err(), "{wrong}");
        }
    }

    #[test]
    fn a_query_does_not_stand_alone() {
        let path = |text| Path::from(PathAndQuery::from_static(text));
        assert_eq!((path("?a").as_str(), path("/?a").as_str(), path("*").as_str()), ("/?a", "/?a", "*"));
    }
}
