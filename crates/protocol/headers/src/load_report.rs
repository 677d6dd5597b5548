//! Parses the load reports in responses without allocation, and with a short path for reports of Fairmesh's own server.

use std::str;

use fairmesh_router::LoadReport;

use super::{OUTSTANDING, STREAMS};

/// Maximum plausible number of concurrent requests. A larger value is an error.
const MAX_REQUESTS: f64 = 1e7;
/// Maximum value of any other metric, in its own unit.
pub const MAX_METRIC: f64 = 4e6;
/// Maximum plausible CPU utilization, in multiples of the CPU limit. No burst takes more.
const MAX_CPU: f64 = 64.0;
/// Maximum length of a binary report that is parsed, in base64 digits. A report with dozens of metrics fits.
const MAX_BINARY_LENGTH: usize = 4096;

/// Text form that Fairmesh's own server writes, up to the number of requests.
const SHORT_TEXT: &[u8] = b"TEXT named_metrics.concurrent_requests=";
/// Binary form that Fairmesh's own server writes, up to the 8 bytes of the number of requests. A test checks it.
const SHORT_BINARY: &[u8] = b"Qh4KE2NvbmN1cnJlbnRfcmVxdWVzdHMR";

/// Returns the metrics for load balancing from the header `endpoint-load-metrics`, in any form that begins with `TEXT`,
/// `BIN` or nothing. `None` if the report is malformed or contains an implausible number: negative, not a number, or
/// too large. Other metrics are skipped, so the result may be empty. `metric` is the metric that the service's policy
/// balances by, if any: a metric name of ORCA itself, of `named_metrics` or of `utilization`.
#[inline]
pub fn load_from_text(value: &[u8], metric: Option<&str>) -> Option<LoadReport> {
    match value.strip_prefix(SHORT_TEXT) {
        Some(digits @ [_, ..]) if digits.len() <= 6 && digits.iter().all(u8::is_ascii_digit) => {
            let number = digits.iter().fold(0, |sum, digit| sum * 10 + u32::from(digit - b'0'));
            Some(LoadReport { requests: Some(number), ..LoadReport::default() })
        }
        _ => any_text(value, metric),
    }
}

/// Like [`load_from_text`], for the metadata `endpoint-load-metrics-bin`, a base64 `xds.data.orca.v3.OrcaLoadReport`.
#[inline]
pub fn load_from_binary(value: &[u8], metric: Option<&str>) -> Option<LoadReport> {
    match value.strip_prefix(SHORT_BINARY) {
        Some(number) if number.len() == 11 => {
            let number: [u8; 8] = decode_base64(number, &mut [0; 9])?.try_into().ok()?;
            Some(LoadReport {
                requests: Some(requests(f64::from_le_bytes(number))?),
                ..LoadReport::default()
            })
        }
        _ if value.len() > MAX_BINARY_LENGTH => None,
        _ => any_message(decode_base64(value, &mut [0; MAX_BINARY_LENGTH / 4 * 3])?, metric),
    }
}

/// Decodes the message of the binary form. `None` if it is malformed or too long.
pub fn decode_binary_report(value: &[u8]) -> Option<Vec<u8>> {
    let value = Some(value).filter(|value| value.len() <= MAX_BINARY_LENGTH)?;
    decode_base64(value, &mut [0; MAX_BINARY_LENGTH / 4 * 3]).map(<[u8]>::to_vec)
}

/// Passes to `give` the name and value of each metric in the header `endpoint-load-metrics` that a policy may name:
/// the metrics of [`load_from_text`] except CPU utilization and calls in flight. Skips implausible values, and stops
/// where the report is malformed.
pub fn metrics_from_text(value: &[u8], mut give: impl FnMut(&str, f64)) {
    if let Some(message) = value.strip_prefix(b"BIN ") {
        return metrics_from_binary(message, give);
    }
    let text = str::from_utf8(value.strip_prefix(b"TEXT ").unwrap_or(value)).unwrap_or_default();
    for (name, number) in text.split(',').map_while(|pair| pair.split_once('=')) {
        let name = name.trim();
        // The cost is that of one request, not a load.
        if let ("cpu_utilization" | "cpu", _) | (_, Some("request_cost")) =
            (name, name.split_once('.').map(|(map, _)| map))
        {
            continue;
        }
        let named = name.strip_prefix("named_metrics.").or_else(|| name.strip_prefix("utilization."));
        if let Ok(number) = number.trim().parse() {
            give_plausible(named.unwrap_or(name), number, &mut give);
        }
    }
}

/// Like [`metrics_from_text`], for the metadata `endpoint-load-metrics-bin`.
pub fn metrics_from_binary(value: &[u8], mut give: impl FnMut(&str, f64)) {
    let message = decode_binary_report(value).unwrap_or_default();
    let mut rest = &*message;
    while let Some(Some(field)) = Field::read(&mut rest) {
        let metric = match field {
            Field::Bytes(5 | 8, entry) => {
                named(entry).and_then(|(name, number)| Some((str::from_utf8(name).ok()?, number)))
            }
            Field::Double(field, number) => plain(field).map(|name| (name, number)),
            _ => None,
        };
        if let Some((name, number)) = metric {
            give_plausible(name, number, &mut give);
        }
    }
}

fn give_plausible(name: &str, number: f64, give: &mut impl FnMut(&str, f64)) {
    if ![OUTSTANDING, STREAMS].contains(&name) && (0.0..=MAX_METRIC).contains(&number) {
        give(name, number);
    }
}

fn any_text(value: &[u8], metric: Option<&str>) -> Option<LoadReport> {
    if let Some(message) = value.strip_prefix(b"BIN ") {
        return load_from_binary(message, metric);
    }
    let text = str::from_utf8(value.strip_prefix(b"TEXT ").unwrap_or(value)).ok()?;
    let mut load = LoadReport::default();
    for pair in text.split(',') {
        let (name, number) = pair.split_once('=')?;
        let (name, number) = (name.trim(), || number.trim().parse().ok());
        let named = name.strip_prefix("named_metrics.");
        match name {
            "cpu_utilization" | "cpu" => load.cpu = Some(cpu(number()?)?),
            _ if named == Some(OUTSTANDING) => load.requests = Some(requests(number()?)?),
            _ if named == Some(STREAMS) => load.streams = Some(requests(number()?)?),
            _ => {}
        }
        let plain = named.or_else(|| name.strip_prefix("utilization.")).unwrap_or(name);
        if metric == Some(plain) {
            load.metric = Some(thousandths(number()?)?);
        }
    }
    Some(load)
}

fn any_message(mut message: &[u8], metric: Option<&str>) -> Option<LoadReport> {
    let mut load = LoadReport::default();
    while let Some(field) = Field::read(&mut message)? {
        match field {
            // Protobuf omits a number that is 0.
            Field::Double(1, number) if number != 0.0 => load.cpu = Some(cpu(number)?),
            Field::Bytes(map @ (5 | 8), entry) => {
                let (name, number) = named(entry)?;
                match name {
                    _ if map == 5 => {}
                    _ if name == OUTSTANDING.as_bytes() => load.requests = Some(requests(number)?),
                    _ if name == STREAMS.as_bytes() => load.streams = Some(requests(number)?),
                    _ => {}
                }
                if metric.is_some_and(|metric| metric.as_bytes() == name) {
                    load.metric = Some(thousandths(number)?);
                }
            }
            Field::Double(field, number) if metric.is_some() && metric == plain(field) => {
                load.metric = Some(thousandths(number)?);
            }
            _ => {}
        }
    }
    Some(load)
}

/// Returns the text-form name of a numeric field.
fn plain(field: u64) -> Option<&'static str> {
    match field {
        2 => Some("mem_utilization"),
        6 => Some("rps_fractional"),
        7 => Some("eps"),
        9 => Some("application_utilization"),
        _ => None,
    }
}

/// Parses an entry of a `map<string, double>`.
fn named(mut entry: &[u8]) -> Option<(&[u8], f64)> {
    let (mut name, mut number) = (&[][..], 0.0);
    while let Some(field) = Field::read(&mut entry)? {
        match field {
            Field::Bytes(1, text) => name = text,
            Field::Double(2, value) => number = value,
            _ => {}
        }
    }
    Some((name, number))
}

fn thousandths(number: f64) -> Option<u32> {
    (0.0..=MAX_METRIC).contains(&number).then_some((number * 1000.0).round() as u32)
}

fn requests(number: f64) -> Option<u32> {
    (0.0..=MAX_REQUESTS).contains(&number).then_some(number as u32)
}

fn cpu(share: f64) -> Option<u16> {
    (0.0..=MAX_CPU).contains(&share).then_some((share * 1000.0).round() as u16)
}

/// A field of a protobuf message, with its number.
enum Field<'a> {
    Double(u64, f64),
    Bytes(u64, &'a [u8]),
    Other,
}

impl<'a> Field<'a> {
    /// Takes the next field. Returns `Some(None)` at the end, and `None` if the message is malformed.
    fn read(message: &mut &'a [u8]) -> Option<Option<Self>> {
        if message.is_empty() {
            return Some(None);
        }
        let tag = varint(message)?;
        let number = tag >> 3;
        Some(Some(match tag & 7 {
            0 => varint(message).map(|_| Self::Other)?,
            1 => Self::Double(number, f64::from_le_bytes(*message.split_off(..8)?.first_chunk()?)),
            2 => {
                let length = usize::try_from(varint(message)?).ok()?;
                Self::Bytes(number, message.split_off(..length)?)
            }
            5 => message.split_off(..4).map(|_| Self::Other)?,
            _ => return None,
        }))
    }
}

fn varint(message: &mut &[u8]) -> Option<u64> {
    let mut value = 0;
    for shift in (0..64).step_by(7) {
        let byte = *message.split_off_first()?;
        value |= u64::from(byte & 0x7f) << shift;
        if byte < 0x80 {
            return Some(value);
        }
    }
    None
}

/// Decodes base64, padded or not, into `buffer`, which must have three bytes for every four digits. Returns `None` if
/// the text is malformed.
#[inline]
pub fn decode_base64<'a>(text: &[u8], buffer: &'a mut [u8]) -> Option<&'a [u8]> {
    let padding = text.iter().rev().take(2).take_while(|byte| **byte == b'=').count();
    let text = &text[..text.len() - padding];
    let mut length = 0;
    for group in text.chunks(4) {
        let mut bits = 0;
        for byte in group {
            let digit = DIGITS[usize::from(*byte)];
            if digit > 63 {
                return None;
            }
            bits = bits << 6 | u32::from(digit);
        }
        // A single digit encodes no complete byte.
        let bytes = group.len() - 1;
        bits <<= 6 * (4 - group.len());
        buffer
            .get_mut(length..length + bytes)
            .filter(|_| bytes > 0)?
            .copy_from_slice(&bits.to_be_bytes()[1..=bytes]);
        length += bytes;
    }
    buffer.get(..length)
}

/// The value of each base64 digit (RFC 4648, 4); 64 for other bytes.
static DIGITS: [u8; 256] = {
    let alphabet = b"ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789+/";
    let mut digits = [64; 256];
    let mut value = 0;
    while value < 64 {
        digits[alphabet[value] as usize] = value as u8;
        value += 1;
    }
    digits
};

#[cfg(test)]
mod tests;
