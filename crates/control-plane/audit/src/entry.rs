use base64::{Engine as _, prelude::BASE64_STANDARD};
use fairmesh_identity::sha256;
use serde::{Deserialize, Serialize};

/// Maximum length of a value that is logged in full, in bytes.
const MAX_VALUE: usize = 4096;

/// An entry of the log: a write, or another event.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct AuditEntry {
    /// Number of the entry, from 1.
    pub number: u64,
    /// Time of the entry, in milliseconds since 1970.
    pub at_ms: u64,
    /// The caller, as authenticated by its connection, signature or token.
    pub who: String,
    /// The revision of the store after the write.
    pub revision: u64,
    /// The id of the store; absent from entries of earlier releases.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub store: Option<String>,
    /// The reason given by the caller; absent without one.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub message: Option<String>,
    /// The changed records.
    pub changes: Vec<AuditChange>,
    /// The event, if the entry is not a write.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub event: Option<AuditEvent>,
    /// The hash of the previous entry; zeros in the first one.
    pub previous: String,
}

/// An event that is not a write.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub enum AuditEvent {
    /// A call was refused.
    Denied {
        /// Method or path of the call.
        method: String,
        /// Why the call was refused.
        reason: String,
    },
    /// A join token was created.
    Token {
        /// The agent or service that may join with the token.
        joins: String,
    },
    /// A certificate was issued.
    Certificate {
        /// The identity in the certificate.
        identity: String,
    },
    /// The log itself was read.
    Read {
        /// Name of the log.
        log: String,
    },
    /// An author exceeded its quota, and its further entries were only counted.
    Counted {
        /// The record kind of the counted entries.
        kind: String,
        /// Number of counted entries.
        count: u64,
        /// Hash chain over the counted entries: each hash covers the previous one and a line.
        sha256: String,
    },
    /// Older entries were removed because the log was full.
    Checkpoint {
        /// Number of the last removed entry.
        number: u64,
        /// Hash of that entry.
        hash: String,
    },
}

impl AuditEvent {
    /// Name of the event's kind.
    pub fn kind(&self) -> &'static str {
        match self {
            Self::Denied { .. } => "denied",
            Self::Token { .. } => "token",
            Self::Certificate { .. } => "certificate",
            Self::Read { .. } => "read",
            Self::Counted { .. } => "counted",
            Self::Checkpoint { .. } => "checkpoint",
        }
    }
}

/// A changed record.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct AuditChange {
    /// Key of the record.
    pub key: String,
    /// The value before the write; absent if there was none.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub before: Option<AuditValue>,
    /// The value after the write; absent if the record was deleted.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub after: Option<AuditValue>,
}

/// A value of a record.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub enum AuditValue {
    /// The value in base64.
    Base64(String),
    /// The SHA-256 of a value larger than 4 KB.
    Sha256(String),
}

/// Where a hash chain is broken.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum BrokenChain {
    /// A line was altered.
    #[error("the line after entry {0} was altered")]
    Altered(u64),
    /// An entry does not follow the one before it.
    #[error("entry {found} does not follow entry {before}: entries were removed, inserted or altered")]
    NotNext {
        /// Number of the previous entry.
        before: u64,
        /// The number that was found instead of the next one.
        found: u64,
    },
    /// The log does not begin with its first entry, and no checkpoint accounts for the missing ones.
    #[error("entries before {first} are missing, and no checkpoint of the log accounts for them")]
    Gap {
        /// The number of the first entry.
        first: u64,
    },
}

/// Reads lines of a log in order and verifies their hash chain.
#[derive(Clone, Debug, Default)]
pub struct ChainReader {
    /// The number and the hash of the last entry.
    last: Option<(u64, String)>,
    /// Number and hash of the entry before the first one read, as the first entry states them.
    before_first: Option<(u64, String)>,
    /// The last checkpoint.
    checkpoint: Option<(u64, String)>,
}

impl AuditValue {
    /// The value itself if it is small enough, otherwise its hash.
    pub(super) fn of(bytes: &[u8]) -> Self {
        match bytes.len() <= MAX_VALUE {
            true => Self::Base64(BASE64_STANDARD.encode(bytes)),
            false => Self::Sha256(hex(&sha256(bytes))),
        }
    }

    /// The hash of a value.
    pub(super) fn hash_of(value: &Self) -> Self {
        match value.bytes() {
            Some(bytes) => Self::Sha256(hex(&sha256(&bytes))),
            None => value.clone(),
        }
    }

    /// The bytes of the value; `None` if only its hash is known.
    pub fn bytes(&self) -> Option<Vec<u8>> {
        match self {
            Self::Base64(text) => BASE64_STANDARD.decode(text).ok(),
            Self::Sha256(_) => None,
        }
    }
}

impl AuditEntry {
    /// The line of the entry, and its hash.
    pub(super) fn line(&self) -> serde_json::Result<(String, String)> {
        let content = serde_json::to_string(self)?;
        let hash = hex(&sha256(content.as_bytes()));
        Ok((format!("{hash} {content}\n"), hash))
    }
}

impl ChainReader {
    /// Parses the entry in a line, if the line is unaltered and follows the previous one.
    ///
    /// # Errors
    /// The place where the chain is broken.
    pub fn read(&mut self, line: &str) -> Result<AuditEntry, BrokenChain> {
        let before = self.last.as_ref().map_or(0, |(number, _)| *number);
        let altered = || BrokenChain::Altered(before);
        let (hash, content) = line.trim_end().split_once(' ').ok_or_else(altered)?;
        if hex(&sha256(content.as_bytes())) != hash {
            return Err(altered());
        }
        let entry: AuditEntry = serde_json::from_str(content).map_err(|_| altered())?;
        let follows = match &self.last {
            Some((number, hash)) => entry.number == number + 1 && entry.previous == *hash,
            None => entry.number > 1 || (entry.number == 1 && entry.previous == first_hash()),
        };
        if !follows {
            return Err(BrokenChain::NotNext { before, found: entry.number });
        }
        if self.last.is_none() {
            self.before_first = Some((entry.number - 1, entry.previous.clone()));
        }
        if let Some(AuditEvent::Checkpoint { number, hash }) = &entry.event {
            self.checkpoint = Some((*number, hash.clone()));
        }
        self.last = Some((entry.number, hash.to_owned()));
        Ok(entry)
    }

    /// The number from which on the log is complete, once all entries after number `after` were read. 1 if no
    /// entry is missing, `None` if there are no entries.
    ///
    /// # Errors
    /// Entries are missing without a checkpoint.
    pub fn complete_from(&self, after: u64) -> Result<Option<u64>, BrokenChain> {
        let Some((number, _)) = &self.before_first else { return Ok(None) };
        match *number == after || self.checkpoint == self.before_first {
            true => Ok(Some(number + 1)),
            false => Err(BrokenChain::Gap { first: number + 1 }),
        }
    }

    /// Number and hash of the last entry, to be stored outside the log.
    pub fn head(&self) -> Option<(u64, &str)> {
        self.last.as_ref().map(|(number, hash)| (*number, hash.as_str()))
    }
}

/// The previous hash in the first entry of a log.
pub(super) fn first_hash() -> String {
    hex(&[0; 32])
}

/// Hexadecimal form of bytes.
pub fn hex(bytes: &[u8]) -> String {
    bytes.iter().map(|byte| format!("{byte:02x}")).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn chain(length: u64) -> Vec<String> {
        let mut previous = first_hash();
        (1..=length)
            .map(|number| {
                let entry = AuditEntry {
                    number,
                    at_ms: 1,
                    who: "alice".into(),
                    revision: number,
                    store: None,
                    message: None,
                    changes: vec![AuditChange {
                        key: "/t/shop/services/cart".into(),
                        before: None,
                        after: Some(AuditValue::of(&[7; 9])),
                    }],
                    event: None,
                    previous: previous.clone(),
                };
                let (line, hash) = entry.line().unwrap();
                previous = hash;
                line
            })
            .collect()
    }

    fn verify(lines: &[String]) -> Result<u64, BrokenChain> {
        let mut reader = ChainReader::default();
        lines.iter().try_for_each(|line| reader.read(line).map(drop))?;
        Ok(reader.head().map_or(0, |(number, _)| number))
    }

    #[test]
    fn audit_chain_detects_changed_inserted_and_removed_lines() {
        let lines = chain(4);
        assert_eq!(verify(&lines), Ok(4));
        assert_eq!(verify(&lines[2..]), Ok(4), "older entries were dropped");
        let mut altered = lines.clone();
        altered[1] = altered[1].replace("alice", "mallory");
        assert_eq!(verify(&altered), Err(BrokenChain::Altered(1)));
        let mut removed = lines.clone();
        removed.remove(1);
        assert_eq!(verify(&removed), Err(BrokenChain::NotNext { before: 1, found: 3 }));
        let mut replaced = lines.clone();
        let entry: AuditEntry = serde_json::from_str(lines[1].trim_end().split_once(' ').unwrap().1).unwrap();
        replaced[1] = AuditEntry { who: "mallory".into(), ..entry }.line().unwrap().0;
        assert_eq!(
            verify(&replaced),
            Err(BrokenChain::NotNext { before: 2, found: 3 }),
            "a new hash breaks the next"
        );
    }

    #[test]
    fn audit_log_has_hashes_of_large_values() {
        assert_eq!(AuditValue::of(&[7; 4096]).bytes().unwrap(), [7; 4096]);
        assert_eq!(AuditValue::of(&[7; 4097]).bytes(), None);
    }
}
