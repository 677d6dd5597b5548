use std::time::Duration;

use http::{HeaderMap, HeaderValue};
use tokio::time::Instant;

use super::{DEADLINE, GRPC_TIMEOUT};

/// The largest number with eight digits, the most that the gRPC protocol allows.
const MAX_DIGITS: u128 = 99_999_999;

/// The time by which a call must be complete. Within a process it is an instant. Between machines it is transmitted as
/// the time left, since their clocks differ.
///
/// As an extension of a request it is the caller's deadline. A client handle that sends the request waits no longer
/// than that, and sends the time left to the next server.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Deadline(Instant);

impl Deadline {
    /// Reads the deadline of an incoming call that has just been received, as [`read_deadline`] does.
    pub fn read(headers: &HeaderMap) -> Option<Self> {
        read_deadline(headers).and_then(Self::after)
    }

    /// Returns the deadline after this time; `None` if the clock cannot represent it.
    pub fn after(left: Duration) -> Option<Self> {
        Instant::now().checked_add(left).map(Self)
    }

    /// The deadline as an instant.
    pub fn instant(self) -> std::time::Instant {
        self.0.into_std()
    }

    /// The time left; zero if the deadline has passed.
    pub fn left(self) -> Duration {
        self.0.saturating_duration_since(Instant::now())
    }
}

impl From<std::time::Instant> for Deadline {
    fn from(instant: std::time::Instant) -> Self {
        Self(Instant::from_std(instant))
    }
}

/// Returns the time left for an incoming call: the shorter of `x-fairmesh-deadline` and `grpc-timeout`. `None` if
/// neither is present and valid, since a malformed deadline must not fail a call.
pub fn read_deadline(headers: &HeaderMap) -> Option<Duration> {
    let ours = headers.get(&DEADLINE).and_then(|value| digits(value.as_bytes())).map(Duration::from_millis);
    let grpc = headers.get(&GRPC_TIMEOUT).and_then(|value| grpc_timeout(value.as_bytes()));
    match (ours, grpc) {
        (Some(ours), Some(grpc)) => Some(ours.min(grpc)),
        (ours, grpc) => ours.or(grpc),
    }
}

/// Writes the time left for the server: `x-fairmesh-deadline`, and for gRPC also `grpc-timeout`. Replaces existing
/// values. `None` removes them, since they were malformed.
pub fn write_deadline(headers: &mut HeaderMap, left: Option<Duration>, grpc: bool) {
    let Some(left) = left else {
        headers.remove(DEADLINE);
        if grpc {
            headers.remove(GRPC_TIMEOUT);
        }
        return;
    };
    let millis = u64::try_from(left.as_millis()).unwrap_or(u64::MAX);
    headers.insert(DEADLINE, HeaderValue::from(millis));
    if grpc {
        headers.insert(GRPC_TIMEOUT, encode_grpc_timeout(left));
    }
}

/// Encodes a `grpc-timeout`: at most eight digits, in the finest unit that fits.
pub fn encode_grpc_timeout(left: Duration) -> HeaderValue {
    let units = [
        (left.as_micros(), b'u'),
        (left.as_millis(), b'm'),
        (u128::from(left.as_secs()), b'S'),
        (u128::from(left.as_secs() / 3600), b'H'),
    ];
    let (number, unit) = units.into_iter().find(|(n, _)| *n <= MAX_DIGITS).unwrap_or((MAX_DIGITS, b'H'));
    let mut text = [0; 9];
    let mut at = text.len() - 1;
    text[at] = unit;
    let mut rest = number;
    loop {
        at -= 1;
        text[at] = b'0' + (rest % 10) as u8;
        rest /= 10;
        if rest == 0 {
            break;
        }
    }
    // Digits and a letter are always a valid header value.
    HeaderValue::from_bytes(&text[at..]).unwrap_or(HeaderValue::from_static("0m"))
}

/// Parses a `grpc-timeout`; `None` if it is malformed.
pub fn grpc_timeout(value: &[u8]) -> Option<Duration> {
    let (unit, number) = value.split_last()?;
    if number.len() > 8 {
        return None;
    }
    let number = digits(number)?;
    Some(match unit {
        b'H' => Duration::from_secs(number * 3600),
        b'M' => Duration::from_secs(number * 60),
        b'S' => Duration::from_secs(number),
        b'm' => Duration::from_millis(number),
        b'u' => Duration::from_micros(number),
        b'n' => Duration::from_nanos(number),
        _ => return None,
    })
}

fn digits(text: &[u8]) -> Option<u64> {
    let plain = !text.is_empty() && text.len() <= 18 && text.iter().all(u8::is_ascii_digit);
    plain.then(|| text.iter().fold(0, |sum, digit| sum * 10 + u64::from(digit - b'0')))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn grpc_timeout_round_trips_within_its_unit() {
        for (millis, text) in [(0, "0u"), (250, "250000u"), (99_999, "99999000u"), (3_600_000, "3600000m")] {
            let value = encode_grpc_timeout(Duration::from_millis(millis));
            assert_eq!(value, text);
            assert_eq!(grpc_timeout(value.as_bytes()), Some(Duration::from_millis(millis)));
        }
        assert_eq!(encode_grpc_timeout(Duration::from_secs(u64::MAX)), "99999999H");
    }

    #[test]
    fn shorter_deadline_header_applies_and_malformed_one_is_ignored() {
        let mut headers = HeaderMap::new();
        assert_eq!(read_deadline(&headers), None);
        headers.insert(DEADLINE, HeaderValue::from_static("500"));
        headers.insert(GRPC_TIMEOUT, HeaderValue::from_static("2S"));
        assert_eq!(read_deadline(&headers), Some(Duration::from_millis(500)));
        headers.insert(DEADLINE, HeaderValue::from_static("soon"));
        assert_eq!(read_deadline(&headers), Some(Duration::from_secs(2)));
        headers.insert(GRPC_TIMEOUT, HeaderValue::from_static("123456789S"));
        assert_eq!(read_deadline(&headers), None);
    }
}
