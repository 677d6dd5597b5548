mod encoding;
mod examples;
mod hashes;
mod malformed;
mod round_trips;

use bytes::Bytes;
use http::{HeaderName, HeaderValue, Method, StatusCode};

use super::*;
use crate::path::Path;

/// Decodes hexadecimal digits, which spaces may separate.
fn hex(text: &str) -> Vec<u8> {
    let parse_length: Vec<u8> = text.bytes().filter(u8::is_ascii_hexdigit).collect();
    let byte = |pair: &[u8]| u8::from_str_radix(std::str::from_utf8(pair).unwrap(), 16).unwrap();
    parse_length.chunks(2).map(byte).collect()
}

fn decode(decoder: &mut Decoder, block: &[u8]) -> Result<Vec<Field>, DecodeError> {
    let mut fields = Vec::new();
    decoder.decode(block, |field| fields.push(field))?;
    Ok(fields)
}

/// Builds a valid field.
fn field(name: &str, value: &str) -> Field {
    match name {
        ":method" => Field::Method(value.parse().unwrap()),
        ":scheme" => Field::Scheme(value.parse().unwrap()),
        ":authority" => Field::Authority(value.parse().unwrap()),
        ":path" => Field::Path(Path::read(value.as_bytes()).unwrap()),
        ":status" => Field::Status(value.parse().unwrap()),
        ":protocol" => Field::Protocol(Bytes::copy_from_slice(value.as_bytes())),
        _ => Field::Header(name.parse().unwrap(), value.parse().unwrap()),
    }
}

fn fields(of: &[(&str, &str)]) -> Vec<Field> {
    of.iter().map(|(name, value)| field(name, value)).collect()
}

fn header(name: &'static str, value: &'static str) -> (HeaderName, HeaderValue) {
    (HeaderName::from_static(name), HeaderValue::from_static(value))
}

/// Encodes a literal field with incremental indexing.
fn literal(name: &[u8], value: &[u8]) -> Vec<u8> {
    let mut block = vec![0x40];
    primitives::string(&mut block, name);
    primitives::string(&mut block, value);
    block
}
