//! Answers of endpoints to the question whether the kernel may carry requests within the machine. An endpoint decides whether its
//! program may have the requests, and where that program listens. It does not decide who calls: the headers that name the
//! caller are written here, from what both sides proved by mutual TLS.

use std::{collections::HashMap, net::SocketAddr};

use fairmesh_headers::{CALLER, LOCAL_SERVER};
use fairmesh_kernel::MAX_FIELDS;
use fairmesh_model::SpiffeId;

/// Maximum length of a body that is skipped, in bytes. Endpoints state the reason of a refusal in it.
const MAX_BODY: usize = 4096;
/// Length of a SHA-256 in hexadecimal digits.
const HASH_LENGTH: usize = 64;
const CERTIFICATE: &str = "x-forwarded-client-cert";

/// The two sides of a connection, by the identities that they proved.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Parties {
    /// This process, in whose name the callers call.
    pub(crate) caller: SpiffeId,
    pub(crate) server: SpiffeId,
}

/// What an endpoint answers.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum LocalAnswer {
    /// The kernel may send the requests of the callers to the program.
    Permits(LocalPermission),
    /// Not at present.
    Refuses { status: u16 },
    /// The endpoint does not know the question, and will not until it is another program.
    Unknown { status: u16 },
}

/// An answer that permits requests.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct LocalPermission {
    /// Where the program listens, as the endpoint says.
    pub(crate) program: SocketAddr,
    /// Lines that the kernel adds to each head.
    pub(crate) fields: Vec<u8>,
}

/// Why an answer is none. Asking again over the same connection is not possible.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub(crate) enum AnswerError {
    #[error("the answer has bytes that no head of a response has")]
    NotText,
    #[error("the answer has no status of HTTP/1.1")]
    NoStatus,
    #[error("a line of the answer has no name")]
    NoName,
    #[error("the answer has the header {0} twice")]
    Twice(String),
    #[error("the answer has no valid header {0}")]
    Lacks(String),
    #[error("the answer has a body of unknown length, or of more than {MAX_BODY} bytes")]
    Body,
    #[error("the answer names another caller or server than those that proved their identities")]
    OtherParties,
    #[error("the headers that name the caller are longer than {MAX_FIELDS} bytes")]
    TooLong,
}

/// Reads the head of an answer, with its empty line. Returns the length of the body that follows.
pub(crate) fn read_answer(head: &[u8], parties: &Parties) -> Result<(LocalAnswer, usize), AnswerError> {
    let head = str::from_utf8(head).map_err(|_| AnswerError::NotText)?;
    let mut lines = head.split("\r\n");
    let status = read_status(lines.next().unwrap_or_default())?;
    // Servers of other releases and kinds take the question for a load poll, or for a request to a path that they do not have.
    if matches!(status, 204 | 404) {
        return Ok((LocalAnswer::Unknown { status }, 0));
    }
    let fields = read_fields(lines)?;
    let body = fields.get("content-length").and_then(|length| length.parse().ok());
    let body = body.filter(|body| *body <= MAX_BODY).ok_or(AnswerError::Body)?;
    if status != 200 {
        return Ok((LocalAnswer::Refuses { status }, body));
    }
    if body != 0 {
        return Err(AnswerError::Body);
    }
    Ok((LocalAnswer::Permits(read_permission(&fields, parties)?), body))
}

/// Reads a status line. Interim responses are refused, since another head would follow.
fn read_status(line: &str) -> Result<u16, AnswerError> {
    let status = line.strip_prefix("HTTP/1.1 ").and_then(|rest| rest.get(..3));
    let status = status.filter(|status| status.bytes().all(|byte| byte.is_ascii_digit()));
    let status = status.and_then(|status| status.parse().ok()).filter(|status| *status >= 200);
    status.ok_or(AnswerError::NoStatus)
}

/// Reads header lines, by name in lower case.
fn read_fields<'a>(lines: impl Iterator<Item = &'a str>) -> Result<HashMap<String, &'a str>, AnswerError> {
    let mut fields = HashMap::new();
    for line in lines.filter(|line| !line.is_empty()) {
        if !line.bytes().all(|byte| matches!(byte, b' '..=b'~')) {
            return Err(AnswerError::NotText);
        }
        let (name, value) = line.split_once(':').ok_or(AnswerError::NoName)?;
        let name = name.to_ascii_lowercase();
        if fields.contains_key(&name) {
            return Err(AnswerError::Twice(name));
        }
        fields.insert(name, value.trim());
    }
    Ok(fields)
}

fn read_permission(
    fields: &HashMap<String, &str>,
    parties: &Parties,
) -> Result<LocalPermission, AnswerError> {
    let lacks = |name: &str| AnswerError::Lacks(name.to_owned());
    let get = |name: &str| fields.get(name).copied().ok_or_else(|| lacks(name));
    let program = get(LOCAL_SERVER.as_str())?;
    let program = program.parse().map_err(|_| lacks(LOCAL_SERVER.as_str()))?;
    let (caller, server) = (parties.caller.to_string(), &parties.server);
    if get(CALLER.as_str())? != caller {
        return Err(AnswerError::OtherParties);
    }
    // Only the digest is the endpoint's: of the certificate that it saw.
    let certificate = get(CERTIFICATE)?.strip_prefix(&format!("By={server};Hash="));
    let hash = certificate.and_then(|rest| rest.strip_suffix(&format!(";URI={caller}")));
    let hash = hash.ok_or(AnswerError::OtherParties)?;
    if hash.len() != HASH_LENGTH || !hash.bytes().all(|byte| byte.is_ascii_hexdigit()) {
        return Err(lacks(CERTIFICATE));
    }
    let certificate = format!("By={server};Hash={hash};URI={caller}");
    let fields = caller_lines(&[(CALLER.as_str(), &caller), (CERTIFICATE, &certificate)]);
    match fields.len() <= MAX_FIELDS {
        true => Ok(LocalPermission { program, fields }),
        false => Err(AnswerError::TooLong),
    }
}

/// Lines with these names and values, in a multiple of 8 bytes: spaces before the last value are no part of it (RFC 9112 5).
fn caller_lines(fields: &[(&str, &str)]) -> Vec<u8> {
    let length: usize = fields.iter().map(|(name, value)| name.len() + value.len() + ": \r\n".len()).sum();
    let padding = " ".repeat(length.next_multiple_of(8) - length);
    let last = fields.len().saturating_sub(1);
    let line = |(at, (name, value)): (usize, &(&str, &str))| {
        let padding = if at == last { padding.as_str() } else { "" };
        format!("{name}: {padding}{value}\r\n")
    };
    fields.iter().enumerate().map(line).collect::<String>().into_bytes()
}

#[cfg(test)]
mod tests {
    use super::*;

    const HEAD: &str = "HTTP/1.1 200 OK\r\nX-Fairmesh-Local-Server: 127.0.0.1:8081\r\n\
                        x-fairmesh-caller: spiffe://prod/shop/web\r\n\
                        x-forwarded-client-cert: By=spiffe://prod/shop/cart;Hash=HASH;URI=spiffe://prod/shop/web\r\n\
                        content-length: 0\r\n\r\n";

    fn parties(caller: &str) -> Parties {
        let [caller, server] = [caller, "spiffe://prod/shop/cart"].map(|id| id.parse().unwrap());
        Parties { caller, server }
    }

    fn read(from: &str, to: &str) -> Result<LocalAnswer, AnswerError> {
        let head = HEAD.replacen(from, to, 1).replacen("HASH", &"5e".repeat(32), 1);
        read_answer(head.as_bytes(), &parties("spiffe://prod/shop/web")).map(|(answer, _)| answer)
    }

    #[test]
    fn answer_for_own_identity_permits_requests() {
        let Ok(LocalAnswer::Permits(permission)) = read("", "") else { panic!("{:?}", read("", "")) };
        assert_eq!(permission.program, "127.0.0.1:8081".parse().unwrap());
        let lines = String::from_utf8(permission.fields).unwrap();
        let lines: Vec<_> = lines.lines().map(|line| line.split_once(':').unwrap().1.trim()).collect();
        let certificate =
            format!("By=spiffe://prod/shop/cart;Hash={};URI=spiffe://prod/shop/web", "5e".repeat(32));
        assert_eq!(lines, ["spiffe://prod/shop/web", &certificate]);
    }

    #[test]
    fn answer_that_names_other_parties_permits_nothing() {
        for (from, to) in [
            ("caller: spiffe://prod/shop/web", "caller: spiffe://prod/shop/admin"),
            ("URI=spiffe://prod/shop/web", "URI=spiffe://prod/shop/admin"),
            ("By=spiffe://prod/shop/cart", "By=spiffe://prod/shop/other"),
            ("By=spiffe://prod/shop/cart;", ""),
            ("URI=", "URI=spiffe://prod/shop/web,By=spiffe://prod/shop/cart;Hash=HASH;URI="),
        ] {
            assert!(read(from, to).is_err(), "{to}");
        }
    }

    #[test]
    fn answer_with_control_bytes_permits_nothing() {
        for byte in (0_u8..0x20).chain([0x7f]) {
            let text = format!("5e{}", char::from(byte));
            assert!(read("HASH", &text).is_err(), "{byte}");
            let header = format!("x-other: a{}b\r\ncontent-length", char::from(byte));
            assert_eq!(read("content-length", &header), Err(AnswerError::NotText), "{byte}");
        }
        assert_eq!(read("content-length", "x-other: ä\r\ncontent-length"), Err(AnswerError::NotText));
        let mut head = HEAD.as_bytes().to_vec();
        head.insert(40, 0xff);
        assert_eq!(read_answer(&head, &parties("spiffe://prod/shop/web")), Err(AnswerError::NotText));
    }

    #[test]
    fn incomplete_answer_permits_nothing() {
        for (from, to) in [
            ("X-Fairmesh-Local-Server: 127.0.0.1:8081\r\n", ""),
            ("127.0.0.1:8081", "127.0.0.1"),
            ("x-fairmesh-caller: spiffe://prod/shop/web\r\n", ""),
            ("HASH", "5e"),
            ("HASH", &"xy".repeat(32)),
            ("content-length: 0\r\n", ""),
            ("content-length: 0", "content-length: 5"),
            ("content-length: 0\r\n", "content-length: 0\r\nContent-Length: 0\r\n"),
            ("HTTP/1.1 200", "HTTP/1.1 103"),
            ("HTTP/1.1 200", "HTTP/1.0 200"),
            ("HTTP/1.1 200", "HTTP/1.1 2é"),
        ] {
            assert!(read(from, to).is_err(), "{to}");
        }
        let long = parties(&format!("spiffe://{0}.{0}/shop/{0}", "a".repeat(60)));
        let head = HEAD.replace("spiffe://prod/shop/web", &long.caller.to_string());
        let head = head.replacen("HASH", &"5e".repeat(32), 1);
        assert_eq!(read_answer(head.as_bytes(), &long), Err(AnswerError::TooLong));
    }

    #[test]
    fn only_unknown_question_is_final() {
        for (status, body) in [("403 Forbidden", 5), ("503 Unavailable", 0), ("401 Unauthorized", 4096)] {
            let head =
                HEAD.replacen("200 OK", status, 1).replacen("length: 0", &format!("length: {body}"), 1);
            let status = status[..3].parse().unwrap();
            let answer = read_answer(head.as_bytes(), &parties("spiffe://prod/shop/web"));
            assert_eq!(answer, Ok((LocalAnswer::Refuses { status }, body)));
        }
        assert_eq!(read("200 OK", "204 No Content"), Ok(LocalAnswer::Unknown { status: 204 }));
        assert_eq!(read("200 OK", "404 Not Found"), Ok(LocalAnswer::Unknown { status: 404 }));
        let long = HEAD.replacen("200 OK", "403 No", 1).replacen("length: 0", "length: 4097", 1);
        assert_eq!(read_answer(long.as_bytes(), &parties("spiffe://prod/shop/web")), Err(AnswerError::Body));
    }

    #[test]
    fn added_lines_keep_their_values_and_fill_whole_words() {
        for length in 1..20 {
            let value = "v".repeat(length);
            let lines = caller_lines(&[("x-one", "1"), ("x-two", &value)]);
            assert!(lines.len().is_multiple_of(8));
            let text = String::from_utf8(lines).unwrap();
            let values: Vec<_> = text.lines().map(|line| line.split_once(':').unwrap().1.trim()).collect();
            assert_eq!(values, ["1", &value]);
        }
    }
}
