//! The path and query of a request, byte for byte as they are sent.
//!
//! `http::Uri` rejects `<`, `>` and backticks in paths, and `"`, `<`, `>` in queries. Clients send these characters
//! nevertheless (`?q={"a":1}`), and other proxies forward them. A request with one of them carries its raw path beside
//! a URI in which these bytes are percent-encoded; other requests are unaffected. Rejected: an own URI type, because
//! callers, tower and hyper use `http::Request`.

use std::sync::Arc;

use http::{Extensions, uri::PathAndQuery};

/// A path and query that `http::Uri` cannot hold. It is an extension of the request, whose URI holds the encoded form
/// [`uri`](Self::uri). Routes match the raw path, and servers receive it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct RawPath {
    text: Arc<str>,
    uri: PathAndQuery,
}

/// A path and query.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Path {
    /// Valid in `http::Uri`, as almost every path is. It begins with a slash, or is an asterisk.
    Uri(PathAndQuery),
    /// Any other path.
    Raw(RawPath),
}

impl RawPath {
    /// Parses a raw path. Returns `None` if the text does not begin with a slash, or contains spaces, control
    /// characters, `#`, or bytes that are not UTF-8.
    pub fn new(text: &[u8]) -> Option<Self> {
        let text = std::str::from_utf8(text).ok()?;
        if !text.starts_with('/') || !text.bytes().all(is_allowed) {
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

    /// The path as it is sent.
    pub fn as_str(&self) -> &str {
        &self.text
    }

    /// The percent-encoded form for `http::Uri`.
    pub fn uri(&self) -> &PathAndQuery {
        &self.uri
    }
}

impl Path {
    /// Parses a path and query, or the asterisk of OPTIONS (RFC 9113 8.3.1).
    ///
    /// # Errors
    /// Why the text is not a valid path.
    pub fn read(text: &[u8]) -> Result<Self, &'static str> {
        match text {
            [] => Err("an empty path"),
            b"*" => Ok(Self::Uri(PathAndQuery::from_static("*"))),
            [b'/', ..] if text.iter().copied().all(is_allowed) => match PathAndQuery::try_from(text) {
                Ok(path) => Ok(Self::Uri(path)),
                Err(_) => RawPath::new(text).map(Self::Raw).ok_or("a path that is not UTF-8"),
            },
            [b'/', ..] => Err("a path with spaces, control characters or a fragment"),
            _ => Err("a path that does not begin with a slash"),
        }
    }

    /// Returns the path of a request: the raw path from its extensions if it belongs to the current URI. If the URI was
    /// changed since, the raw path is ignored.
    pub fn of(uri: Option<PathAndQuery>, raw: Option<&RawPath>) -> Self {
        let uri = uri.unwrap_or_else(|| PathAndQuery::from_static("/"));
        match raw {
            Some(raw) if raw.uri == uri => Self::Raw(raw.clone()),
            _ => uri.into(),
        }
    }

    /// The path as it is sent.
    pub fn as_str(&self) -> &str {
        match self {
            Self::Uri(path) => path.as_str(),
            Self::Raw(path) => path.as_str(),
        }
    }

    /// Returns the path for the URI. A raw path goes into the extensions.
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
    /// A URI may have a query without a path, but a request line may not (RFC 9112 3.2.1).
    fn from(path: PathAndQuery) -> Self {
        match path.as_str() {
            text if text.starts_with('/') || text == "*" => Self::Uri(path),
            text => Self::read(format!("/{text}").as_bytes()).unwrap_or(Self::Uri(path)),
        }
    }
}

/// Whether a byte may be in a path or query: every byte except spaces, control characters and `#`.
const fn is_allowed(byte: u8) -> bool {
    matches!(byte, 0x21..=0x7e | 0x80..) && byte != b'#'
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn request_path_is_preserved_raw_and_encoded() {
        for (text, uri) in [
            (r#"/?q={"a":1}"#, "/?q={%22a%22:1}"),
            ("/<a>`b", "/%3Ca%3E%60b"),
            ("/é?\"ü", "/é?%22ü"),
            ("/?<>", "/?%3C%3E"),
        ] {
            let path = Path::read(text.as_bytes()).unwrap();
            assert_eq!(path.as_str(), text);
            let mut extensions = Extensions::new();
            let parts = path.clone().into_parts(&mut extensions);
            assert_eq!(parts.as_str(), uri);
            assert_eq!(Path::of(Some(parts), extensions.get()), path);
            let other = PathAndQuery::from_static("/other");
            assert_eq!(
                Path::of(Some(other), extensions.get()).as_str(),
                "/other",
                "the URI was changed since"
            );
        }
    }

    #[test]
    fn request_path_keeps_exactly_allowed_bytes_unencoded() {
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
    fn request_target_with_query_but_no_path_gets_slash() {
        let path = |text| Path::from(PathAndQuery::from_static(text));
        assert_eq!((path("?a").as_str(), path("/?a").as_str(), path("*").as_str()), ("/?a", "/?a", "*"));
    }
}
