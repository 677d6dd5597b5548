//! Checks that the relays between regions see only TLS: each byte must be part of a TLS record (RFC 8446 §5.1).

use std::{
    path::Path,
    sync::atomic::{AtomicU64, Ordering::Relaxed},
    time::Duration,
};

use serde_json::{Value, json};
use tokio::time::sleep;

/// Types of TLS records: change of cipher, alert, handshake, application data.
const TYPES: std::ops::RangeInclusive<u8> = 20..=23;
/// Maximum length of a TLS record, in bytes.
const MAX_LENGTH: u16 = 16384 + 256;
/// Interval at which a process writes the counts of its relay.
const WRITE_INTERVAL: Duration = Duration::from_millis(500);

/// Connection counts of relays.
#[derive(Debug, Default)]
pub(super) struct RelayCounts {
    connections: AtomicU64,
    records: AtomicU64,
    plaintext: AtomicU64,
}

impl RelayCounts {
    /// Counts a connection that has sent data.
    pub(super) fn add_connection(&self) {
        self.connections.fetch_add(1, Relaxed);
    }

    /// Counts a connection that was cut because it carried data other than TLS.
    fn add_plaintext(&self) {
        self.plaintext.fetch_add(1, Relaxed);
    }

    /// The current counts, for the report.
    pub(super) fn seen(&self) -> Seen {
        Seen {
            connections: self.connections.load(Relaxed),
            records: self.records.load(Relaxed),
            plaintext: self.plaintext.load(Relaxed),
        }
    }

    /// Keeps a file with the counts up to date, for the process that reports.
    pub(super) async fn write_to(&self, file: &Path) {
        let mut written = None;
        loop {
            let seen = self.seen();
            // If the file cannot be written, it is missing in the report, which fails.
            if written != Some(seen) && tokio::fs::write(file, seen.json().to_string()).await.is_ok() {
                written = Some(seen);
            }
            sleep(WRITE_INTERVAL).await;
        }
    }
}

/// Connection counts at a point in time.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) struct Seen {
    pub(super) connections: u64,
    pub(super) records: u64,
    pub(super) plaintext: u64,
}

impl Seen {
    pub(super) fn json(self) -> Value {
        json!({"connections": self.connections, "records": self.records, "plaintext": self.plaintext})
    }

    /// Parses the counts written by a process.
    pub(super) fn read(text: &str) -> Option<Self> {
        let value: Value = serde_json::from_str(text).ok()?;
        let count = |name: &str| value[name].as_u64();
        Some(Self {
            connections: count("connections")?,
            records: count("records")?,
            plaintext: count("plaintext")?,
        })
    }
}

impl std::ops::AddAssign for Seen {
    fn add_assign(&mut self, other: Self) {
        self.connections += other.connections;
        self.records += other.records;
        self.plaintext += other.plaintext;
    }
}

/// Follows the records in one direction of a connection.
#[derive(Debug, Default)]
pub(super) struct RecordReader {
    /// The part of the current record's header that has been received.
    header: Vec<u8>,
    /// Number of bytes of the current record that have not arrived yet.
    left: usize,
}

impl RecordReader {
    /// Whether these bytes continue a sequence of TLS records.
    pub(super) fn is_tls(&mut self, mut bytes: &[u8], counts: &RelayCounts) -> bool {
        while !bytes.is_empty() {
            let inside = self.left.min(bytes.len());
            self.left -= inside;
            bytes = &bytes[inside..];
            while self.left == 0 && !bytes.is_empty() {
                self.header.push(bytes[0]);
                bytes = &bytes[1..];
                let [kind, major, _, high, low] = self.header[..] else { continue };
                let length = u16::from_be_bytes([high, low]);
                self.header.clear();
                if !TYPES.contains(&kind) || major != 3 || length > MAX_LENGTH {
                    counts.add_plaintext();
                    return false;
                }
                counts.records.fetch_add(1, Relaxed);
                self.left = usize::from(length);
            }
        }
        true
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn tls_records_are_recognised_across_any_fragmentation() {
        let mut bytes = Vec::new();
        for length in [0u16, 1, 5, 300, 16384] {
            bytes.extend([23, 3, 3]);
            bytes.extend(length.to_be_bytes());
            bytes.extend(std::iter::repeat_n(b'x', usize::from(length)));
        }
        for size in [1, 2, 5, 7, 1000, bytes.len()] {
            let (counts, mut reader) = (RelayCounts::default(), RecordReader::default());
            assert!(bytes.chunks(size).all(|part| reader.is_tls(part, &counts)), "{size}");
            assert_eq!(counts.seen(), Seen { records: 5, ..Seen::default() }, "{size}");
            assert_eq!(Seen::read(&counts.seen().json().to_string()), Some(counts.seen()));
        }
    }

    #[test]
    fn plaintext_is_not_tls_record() {
        let greetings: [&[u8]; 3] =
            [b"GET / HTTP/1.1\r\n", b"PRI * HTTP/2.0\r\n\r\n", b"\x16\x03\x01\xff\xff..."];
        for bytes in greetings {
            let (counts, mut reader) = (RelayCounts::default(), RecordReader::default());
            assert!(!reader.is_tls(bytes, &counts));
            assert_eq!(counts.seen().plaintext, 1);
        }
    }
}
