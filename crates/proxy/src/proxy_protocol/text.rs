//! Version 1: `PROXY TCP4 192.0.2.1 192.0.2.2 56324 443` and the end of the line.

use std::{
    net::{IpAddr, SocketAddr},
    str::FromStr,
};

use super::{Ends, Head, Malformed, SHORTEST};

const BEGINNING: &[u8] = b"PROXY ";
/// With the end of the line, as the specification has it.
const LONGEST: usize = 107;

pub(super) fn read(bytes: &[u8]) -> Result<Head, Malformed> {
    let common = bytes.len().min(BEGINNING.len());
    if bytes[..common] != BEGINNING[..common] {
        return Err(Malformed("the first bytes"));
    }
    let window = &bytes[..bytes.len().min(LONGEST)];
    let Some(end) = window.iter().position(|byte| matches!(byte, b'\r' | b'\n')) else {
        return more(bytes, 2);
    };
    match &window[end..] {
        [b'\r', b'\n', ..] => {
            // Checked by the words below, which are all ASCII.
            let line = std::str::from_utf8(&window[BEGINNING.len()..end]);
            let ends = ends(line.map_err(|_| Malformed("no text"))?)?;
            Ok(Head::Whole { length: end + 2, ends })
        }
        [b'\r'] => more(bytes, 1),
        _ => Err(Malformed("the end of the line")),
    }
}

/// How much the rest has at least: `missing` of the end of the line, and what the shortest line of its kind has.
fn more(bytes: &[u8], missing: usize) -> Result<Head, Malformed> {
    let shortest = match bytes.get(BEGINNING.len()..BEGINNING.len() + 4) {
        Some(b"TCP4") => b"PROXY TCP4 1.1.1.1 1.1.1.1 1 1\r\n".len(),
        Some(b"TCP6") => b"PROXY TCP6 :: :: 1 1\r\n".len(),
        _ => SHORTEST,
    };
    let more = shortest.saturating_sub(bytes.len()).max(missing);
    match bytes.len() + more <= LONGEST {
        true => Ok(Head::More(more)),
        false => Err(Malformed("a line of more than 107 bytes")),
    }
}

fn ends(line: &str) -> Result<Option<Ends>, Malformed> {
    let words: Vec<&str> = line.split(' ').collect();
    match words[..] {
        // What comes after it is to be ignored, whatever it is.
        ["UNKNOWN", ..] => Ok(None),
        ["TCP4", source, destination, from, to] => {
            let [source, destination] = [source, destination].map(address::<std::net::Ipv4Addr>);
            pair((source?, from), (destination?, to))
        }
        ["TCP6", source, destination, from, to] => {
            let [source, destination] = [source, destination].map(address::<std::net::Ipv6Addr>);
            pair((source?, from), (destination?, to))
        }
        _ => Err(Malformed("the words of the line")),
    }
}

fn pair(source: (IpAddr, &str), destination: (IpAddr, &str)) -> Result<Option<Ends>, Malformed> {
    let socket = |(ip, text): (IpAddr, &str)| Ok(SocketAddr::new(ip, port(text)?));
    Ok(Some(Ends { source: socket(source)?, destination: socket(destination)? }))
}

fn address<A: FromStr + Into<IpAddr>>(text: &str) -> Result<IpAddr, Malformed> {
    text.parse::<A>().map(Into::into).map_err(|_| Malformed("an address"))
}

/// Digits and nothing else, without zeros in front.
fn port(text: &str) -> Result<u16, Malformed> {
    let digits = text.bytes().all(|byte| byte.is_ascii_digit());
    let plain = text == "0" || !text.starts_with('0');
    text.parse().ok().filter(|_| digits && plain).ok_or(Malformed("a port"))
}

pub(super) fn write(Ends { source, destination }: Ends) -> Vec<u8> {
    let family = if source.is_ipv4() { "TCP4" } else { "TCP6" };
    let (from, to) = (source.port(), destination.port());
    format!("PROXY {family} {} {} {from} {to}\r\n", source.ip(), destination.ip()).into_bytes()
}
