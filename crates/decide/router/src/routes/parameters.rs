//! Query parameters, cookies, and conditions on their values.

use fairmesh_model::TextMatch;

/// Whether a text satisfies a condition. The text is `None` if the request lacks it.
pub(super) fn text_satisfies(text: Option<impl Iterator<Item = u8>>, condition: &TextMatch) -> bool {
    match (condition, text) {
        (TextMatch::Absent, text) => text.is_none(),
        (_, None) => false,
        (TextMatch::Present, Some(_)) => true,
        (TextMatch::Exact(condition), Some(text)) => text.eq(condition.bytes()),
        (TextMatch::Prefix(condition), Some(mut text)) => {
            condition.bytes().all(|byte| text.next() == Some(byte))
        }
        // The regex engine needs contiguous bytes, so the decoded bytes are collected first.
        (TextMatch::Regex(condition), Some(text)) => condition.matches(text.collect::<Vec<_>>()),
    }
}

/// Returns the value of the first parameter with this name, still percent-encoded.
pub(crate) fn parameter<'a>(query: &'a str, name: &str) -> Option<&'a str> {
    query.split('&').find_map(|pair| {
        let (key, value) = pair.split_once('=').unwrap_or((pair, ""));
        decoded(key).eq(name.bytes()).then_some(value)
    })
}

/// Decodes a part of a query (WHATWG URL, 5.1): `+` is a space and `%41` a byte. A `%` without two digits is literal.
pub(crate) fn decoded(text: &str) -> impl Iterator<Item = u8> {
    let mut rest = text.as_bytes();
    std::iter::from_fn(move || {
        let (byte, taken) = match rest {
            [] => return None,
            [b'%', high, low, ..] => match (hex(*high), hex(*low)) {
                (Some(high), Some(low)) => (high << 4 | low, 3),
                _ => (b'%', 1),
            },
            [b'+', ..] => (b' ', 1),
            [byte, ..] => (*byte, 1),
        };
        rest = &rest[taken..];
        Some(byte)
    })
}

fn hex(digit: u8) -> Option<u8> {
    // A hexadecimal digit is below 16.
    char::from(digit).to_digit(16).map(|digit| digit as u8)
}

/// Returns the value of the cookie with this name in a `cookie` header (RFC 6265 4.2.1).
pub(crate) fn cookie<'a>(header: &'a str, name: &str) -> Option<&'a str> {
    let pairs = header.split(';').filter_map(|pair| pair.trim().split_once('='));
    pairs.into_iter().find(|(key, _)| *key == name).map(|(_, value)| value)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn query_parameters_are_found_by_name_and_decoded() {
        let read =
            |query, name| parameter(query, name).map(|v| String::from_utf8(decoded(v).collect()).unwrap());
        assert_eq!(read("a=1&b=2&b=3", "b").as_deref(), Some("2"), "the first counts");
        assert_eq!(read("%62=x%20y+z", "b").as_deref(), Some("x y z"));
        assert_eq!(read("b", "b").as_deref(), Some(""));
        assert_eq!(read("b=%zz%4", "b").as_deref(), Some("%zz%4"));
        assert_eq!(read("bb=1&ab=2", "b"), None);
        assert_eq!(read("", "b"), None);
    }

    #[test]
    fn request_cookies_are_found_by_name() {
        assert_eq!(cookie("a=1; sid=x=y; b=2", "sid"), Some("x=y"));
        assert_eq!(cookie("a=1;sid=z", "sid"), Some("z"));
        assert_eq!(cookie("asid=1; sid", "sid"), None);
    }
}
