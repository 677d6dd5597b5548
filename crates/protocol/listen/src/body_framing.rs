use http::{Request, header::CONTENT_LENGTH};

/// Length of the prefix of a gRPC message in bytes: a flag and the message length.
const GRPC_PREFIX_LEN: usize = 5;
/// Bytes claimed for a body of unknown length: the maximum that handlers accept.
const DEFAULT_CLAIM: usize = 1 << 20;

/// How the length of a body is determined.
#[derive(Clone, Copy, Debug)]
pub enum Framing {
    /// One gRPC message of at most `max` bytes; the decoder refuses longer ones.
    Message {
        /// Maximum size of the message, in bytes.
        max: usize,
        /// Received part of the prefix, and the length of that part in bytes.
        prefix: ([u8; GRPC_PREFIX_LEN], usize),
        /// Remaining bytes of the message.
        left: usize,
    },
    /// A body with the length given by `content-length`, if any.
    Whole {
        /// Value of `content-length`.
        length: Option<usize>,
        /// Whether any byte was received.
        has_begun: bool,
    },
}

impl Framing {
    /// The framing of a call with one message of at most `max` bytes.
    #[must_use]
    pub const fn message(max: usize) -> Self {
        Self::Message { max, prefix: ([0; GRPC_PREFIX_LEN], 0), left: 0 }
    }

    /// The framing of an HTTP request body.
    pub fn whole<B>(request: &Request<B>) -> Self {
        let length =
            request.headers().get(CONTENT_LENGTH).and_then(|value| value.to_str().ok()?.parse().ok());
        Self::Whole { length, has_begun: false }
    }

    /// Tracks the next bytes. Returns the number of bytes to claim before they are passed on; `None` if the bytes
    /// exceed the single message of a call.
    pub(crate) fn read(&mut self, mut bytes: &[u8]) -> Option<usize> {
        match self {
            Self::Whole { length, has_begun } => {
                if std::mem::replace(has_begun, true) {
                    return Some(0);
                }
                let whole = length.unwrap_or(DEFAULT_CLAIM).min(DEFAULT_CLAIM);
                Some(if whole > bytes.len() { whole } else { 0 })
            }
            Self::Message { max, prefix: (prefix, seen), left } => {
                let mut begins = false;
                if *seen < GRPC_PREFIX_LEN {
                    let some = bytes.len().min(GRPC_PREFIX_LEN - *seen);
                    prefix[*seen..*seen + some].copy_from_slice(&bytes[..some]);
                    *seen += some;
                    bytes = &bytes[some..];
                    if *seen < GRPC_PREFIX_LEN {
                        return Some(0);
                    }
                    let [_, length @ ..] = *prefix;
                    *left = u32::from_be_bytes(length) as usize;
                    begins = true;
                }
                let length = *left;
                if length > *max {
                    return Some(0);
                }
                *left = length.checked_sub(bytes.len())?;
                Some(if begins && *left > 0 { length } else { 0 })
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn incomplete_grpc_message_claims_memory_of_its_length_once() {
        let mut framing = Framing::message(1000);
        assert_eq!(framing.read(&[0, 0, 0]), Some(0));
        assert_eq!(framing.read(&[0, 100, 1, 2]), Some(100));
        assert_eq!(framing.read(&[7; 98]), Some(0));
        assert_eq!(framing.read(&[]), Some(0));
        assert_eq!(framing.read(&[0]), None, "a second message");
    }

    #[test]
    fn complete_and_oversized_grpc_messages_claim_no_memory() {
        assert_eq!(Framing::message(1000).read(&[0, 0, 0, 0, 2, 1, 2]), Some(0));
        assert_eq!(Framing::message(1000).read(&[0, 0, 0, 0, 0]), Some(0));
        let mut long = Framing::message(1000);
        assert_eq!(long.read(&[0, 0, 0, 4, 0, 9]), Some(0));
        assert_eq!(long.read(&[9; 2000]), Some(0));
    }

    #[test]
    fn request_body_claims_memory_of_its_content_length_up_to_maximum() {
        let body = |length: &str| {
            let request = Request::builder().header(CONTENT_LENGTH, length).body(()).unwrap();
            Framing::whole(&request).read(b"abc")
        };
        assert_eq!((body("3"), body("4"), body("9999999999")), (Some(0), Some(4), Some(DEFAULT_CLAIM)));
        assert_eq!(Framing::whole(&Request::new(())).read(b"abc"), Some(DEFAULT_CLAIM));
    }
}
