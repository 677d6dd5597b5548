//! Version 1: a line such as `PROXY TCP4 192.0.2.1 192.0.2.2 56324 443`, ended by CRLF.

use std::{
    net::{IpAddr, SocketAddr},
    str::FromStr,
};

use super::{Addresses, Header, InvalidHeader, MIN_LENGTH};

const PREFIX: &[u8] = b"PROXY ";
/// Maximum length of the line including CRLF, given by the specification.
const MAX_LINE: usize = 107;

pub(super) fn read(bytes: &[u8]) -> Result<Header, InvalidHeader> {
    let common = bytes.len().min(PREFIX.len());
    if bytes[..common] != PREFIX[..common] {
        return Err(InvalidHeader("the first bytes"));
    }
    let window = &bytes[..bytes.len().min(MAX_LINE)];
    let Some(end) = window.iter().position(|byte| matches!(byte, b'\r' | b'\n')) else {
        return incomplete(bytes, 2);
    };
    match &window[end..] {
        [b'\r', b'\n', ..] => {
            // The parser below accepts only ASCII.
            let line = std::str::from_utf8(&window[PREFIX.len()..end]);
            let addresses = parse_addresses(line.map_err(|_| InvalidHeader("not text"))?)?;
            Ok(Header::Complete { length: end + 2, addresses, connection_id: None })
        }
        [b'\r'] => incomplete(bytes, 1),
        _ => Err(InvalidHeader("the end of the line")),
    }
}

/// Reports the minimum number of missing bytes: `missing` bytes if CRLF is incomplete, otherwise the bytes up to the
/// shortest line of the address family.
fn incomplete(bytes: &[u8], missing: usize) -> Result<Header, InvalidHeader> {
    let shortest = match bytes.get(PREFIX.len()..PREFIX.len() + 4) {
        Some(b"TCP4") => b"PROXY TCP4 1.1.1.1 1.1.1.1 1 1\r\n".len(),
        Some(b"TCP6") => b"PROXY TCP6 :: :: 1 1\r\n".len(),
        _ => MIN_LENGTH,
    };
    let more = shortest.saturating_sub(bytes.len()).max(missing);
    match bytes.len() + more <= MAX_LINE {
        true => Ok(Header::Incomplete(more)),
        false => Err(InvalidHeader("a line of more than 107 bytes")),
    }
}

fn parse_addresses(line: &str) -> Result<Option<Addresses>, InvalidHeader> {
    let words: Vec<&str> = line.split(' ').collect();
    match words[..] {
        // The specification requires ignoring the rest of the line.
        ["UNKNOWN", ..] => Ok(None),
        ["TCP4", source, destination, from, to] => {
            let [source, destination] = [source, destination].map(address::<std::net::Ipv4Addr>);
            parse_pair([source?, destination?], [from, to])
        }
        ["TCP6", source, destination, from, to] => {
            let [source, destination] = [source, destination].map(address::<std::net::Ipv6Addr>);
            parse_pair([source?, destination?], [from, to])
        }
        _ => Err(InvalidHeader("the words of the line")),
    }
}

fn parse_pair(
    [source, destination]: [IpAddr; 2],
    [from, to]: [&str; 2],
) -> Result<Option<Addresses>, InvalidHeader> {
    let (source, destination) =
        (SocketAddr::new(source, port(from)?), SocketAddr::new(destination, port(to)?));
    Ok(Some(Addresses { source, destination }))
}

fn address<A: FromStr + Into<IpAddr>>(text: &str) -> Result<IpAddr, InvalidHeader> {
    text.parse::<A>().map(Into::into).map_err(|_| InvalidHeader("an address"))
}

/// Parses a port, which has digits only and no leading zeros.
fn port(text: &str) -> Result<u16, InvalidHeader> {
    let only_digits = text.bytes().all(|byte| byte.is_ascii_digit());
    let no_leading_zero = text == "0" || !text.starts_with('0');
    text.parse().ok().filter(|_| only_digits && no_leading_zero).ok_or(InvalidHeader("a port"))
}

pub(super) fn write(Addresses { source, destination }: Addresses) -> Vec<u8> {
    let family = if source.is_ipv4() { "TCP4" } else { "TCP6" };
    let (from, to) = (source.port(), destination.port());
    format!("PROXY {family} {} {} {from} {to}\r\n", source.ip(), destination.ip()).into_bytes()
}
