//! The target of a request line (RFC 9112 3.2).

use std::ops::Range;

use bytes::Bytes;
use http::{Extensions, Method, Uri};

use crate::path::Path;

/// Reads the request target at `range` (RFC 9112 3.2): a path, an absolute URI, an asterisk (OPTIONS), or a host with a
/// port (CONNECT). A path that `http::Uri` cannot hold goes into the extensions.
///
/// # Errors
/// What is wrong with the target. A fragment is rejected, since servers differ in whether it is part of the path.
pub(super) fn read(
    method: &Method,
    (text, range): (&Bytes, Range<usize>),
    extensions: &mut Extensions,
) -> Result<Uri, &'static str> {
    let target = &text[range.clone()];
    let uri = || Uri::from_maybe_shared(text.slice(range.clone())).ok();
    match target {
        _ if *method == Method::CONNECT => {
            // Only an authority is allowed: with a scheme or a path, a parser that reads only a part would see another
            // request.
            let authority_form = uri().filter(|uri| uri.scheme().is_none() && uri.path_and_query().is_none());
            authority_form.ok_or("CONNECT to something else than a host and a port")
        }
        b"*" if *method == Method::OPTIONS => uri().ok_or("the target"),
        target if target.contains(&b'#') => Err("a target with a fragment"),
        [b'/', ..] => match uri() {
            Some(uri) => Ok(uri),
            None => Ok(Path::read(target)?.into_parts(extensions).into()),
        },
        // `http` accepts an empty scheme, but RFC 3986 3.1 does not.
        target if !target.first().is_some_and(u8::is_ascii_alphabetic) => {
            Err("a target that is neither a path nor a URI")
        }
        target => match uri() {
            Some(uri) if uri.scheme().is_none() => Err("a target without scheme and path"),
            Some(uri) if uri.path_and_query().is_some_and(|path| path.as_str().starts_with('/')) => Ok(uri),
            _ => absolute(target, extensions),
        },
    }
}

/// Parses an absolute URI, which may lack a path or contain bytes that `http::Uri` rejects.
fn absolute(target: &[u8], extensions: &mut Extensions) -> Result<Uri, &'static str> {
    const INVALID: &str = "a target that is neither a path nor a URI";
    let authority = target.windows(3).position(|three| three == b"://").ok_or(INVALID)? + 3;
    let path = target[authority..].iter().position(|byte| matches!(byte, b'/' | b'?')).ok_or(INVALID)?;
    let (origin, path) = target.split_at(authority + path);
    let mut uri = Uri::try_from(origin).map_err(|_| INVALID)?.into_parts();
    let path = if path.starts_with(b"/") { Path::read(path)? } else { Path::read(&[b"/", path].concat())? };
    uri.path_and_query = Some(path.into_parts(extensions));
    Uri::from_parts(uri).map_err(|_| INVALID)
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Returns scheme with authority, and the path as it is forwarded.
    fn parsed(method: &Method, target: &str) -> Result<(String, String), &'static str> {
        let (text, mut extensions) = (Bytes::from(format!(" {target} ")), Extensions::new());
        let uri = read(method, (&text, 1..1 + target.len()), &mut extensions)?;
        let origin = uri.scheme_str().map(|scheme| format!("{scheme}://")).unwrap_or_default();
        let authority = uri.authority().map_or("", |authority| authority.as_str());
        let path = uri.path_and_query().cloned();
        let path = path.map(|path| Path::of(Some(path), extensions.get()).as_str().to_owned());
        Ok((origin + authority, path.unwrap_or_default()))
    }

    #[test]
    fn request_targets_of_all_four_forms_are_accepted() {
        for (method, target, origin, path) in [
            ("GET", "/a?b=/c", "", "/a?b=/c"),
            ("GET", "//a.b/c", "", "//a.b/c"),
            ("GET", r#"/<a>?q={"a":1}"#, "", r#"/<a>?q={"a":1}"#),
            ("GET", "http://cart.shop:80/a", "http://cart.shop:80", "/a"),
            ("GET", "http://cart.shop", "http://cart.shop", "/"),
            ("GET", "http://cart.shop?a=/b", "http://cart.shop", "/?a=/b"),
            ("GET", "https://cart.shop/`?<\">", "https://cart.shop", "/`?<\">"),
            ("GET", "http://cart.shop?<", "http://cart.shop", "/?<"),
            ("OPTIONS", "*", "", "*"),
            ("CONNECT", "cart.shop:443", "cart.shop:443", ""),
            // The code that opens a tunnel checks for the port that it needs.
            ("CONNECT", "cart.shop", "cart.shop", ""),
        ] {
            let read = parsed(&method.parse().unwrap(), target);
            assert_eq!(read, Ok((origin.to_owned(), path.to_owned())), "{method} {target}");
        }
    }

    #[test]
    fn request_targets_of_no_valid_form_are_rejected() {
        for (method, targets) in [
            (
                "GET",
                &["g", "cart.shop:80", "a/b", "*", "?a", "/a#b", "/#", "http://a/#b", "http:///a", "://a/b"]
                    [..],
            ),
            ("GET", &["http://", "http://a b/", "http:/a", "http://[/a", "/a\u{1}", "x<://a/b"]),
            ("OPTIONS", &["**", "*a"]),
            (
                "CONNECT",
                &[
                    "*",
                    "/",
                    "/a",
                    "http://cart.shop:80/",
                    "http://cart.shop:80",
                    "cart.shop:80/",
                    "a:b:c",
                    ":80:",
                ],
            ),
        ] {
            for target in targets {
                assert!(parsed(&method.parse().unwrap(), target).is_err(), "{method} {target}");
            }
        }
    }
}
