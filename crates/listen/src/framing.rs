use http::{Request, header::CONTENT_LENGTH};

/// The bytes before a message of gRPC: a flag, and its length.
const PREFIX: usize = 5;
/// What is claimed for a body that does not say how long it is, in bytes: what handlers take at most.
const UNTOLD: usize = 1 << 20;

/// How the length of what a body carries is known.
#[derive(Clone, Copy, Debug)]
pub enum Framing {
    /// One message of gRPC of at most so many bytes; longer ones are for the decoder to refuse.
    Message {
        /// The most bytes of a message.
        max: usize,
        /// Its prefix, as far as it has come, and how many bytes that is.
        prefix: ([u8; PREFIX], usize),
        /// The bytes of the message that are yet to come.
        left: usize,
    },
    /// A body of so many bytes, if it says so.
    Whole {
        /// The length that the request gives.
        length: Option<usize>,
        /// Whether anything of it has come.
        has_begun: bool,
    },
}

impl Framing {
    /// A call with one message of at most `max` bytes.
    #[must_use]
    pub const fn message(max: usize) -> Self {
        Self::Message { max, prefix: ([0; PREFIX], 0), left: 0 }
    }

    /// The body of a request of HTTP.
    pub fn whole<B>(request: &Request<B>) -> Self {
        let length =
            request.headers().get(CONTENT_LENGTH).and_then(|value| value.to_str().ok()?.parse().ok());
        Self::Whole { length, has_begun: false }
    }

    /// Takes notice of the next bytes. Returns how many have to be claimed before they are passed on; `None` where they are more
    /// than the one message that a call has.
    pub(crate) fn read(&mut self, mut bytes: &[u8]) -> Option<usize> {
        match self {
            Self::Whole { length, has_begun } => {
                if std::mem::replace(has_begun, true) {
                    return Some(0);
                }
                let whole = length.unwrap_or(UNTOLD).min(UNTOLD);
                Some(if whole > bytes.len() { whole } else { 0 })
            }
            Self::Message { max, prefix: (prefix, seen), left } => {
                let mut begins = false;
                if *seen < PREFIX {
                    let some = bytes.len().min(PREFIX - *seen);
                    prefix[*seen..*seen + some].copy_from_slice(&bytes[..some]);
                    *seen += some;
                    bytes = &bytes[some..];
                    if *seen < PREFIX {
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
    fn a_message_that_is_not_whole_claims_its_length_once() {
        let mut framing = Framing::message(1000);
        assert_eq!(framing.read(&[0, 0, 0]), Some(0));
        assert_eq!(framing.read(&[0, 100, 1, 2]), Some(100));
        assert_eq!(framing.read(&[7; 98]), Some(0));
        assert_eq!(framing.read(&[]), Some(0));
        assert_eq!(framing.read(&[0]), None, "a second message");
    }

    #[test]
    fn a_message_that_is_whole_or_too_long_claims_nothing() {
        assert_eq!(Framing::message(1000).read(&[0, 0, 0, 0, 2, 1, 2]), Some(0));
        assert_eq!(Framing::message(1000).read(&[0, 0, 0, 0, 0]), Some(0));
        let mut long = Framing::message(1000);
        assert_eq!(long.read(&[0, 0, 0, 4, 0, 9]), Some(0));
        assert_eq!(long.read(&[9; 2000]), Some(0));
    }

    #[test]
    fn a_body_claims_what_it_announces_within_what_handlers_take() {
        let body = |length: &str| {
            let request = Request::builder().header(CONTENT_LENGTH, length).body(()).unwrap();
            Framing::whole(&request).read(b"abc")
        };
        assert_eq!((body("3"), body("4"), body("9999999999")), (Some(0), Some(4), Some(UNTOLD)));
        assert_eq!(Framing::whole(&Request::new(())).read(b"abc"), Some(UNTOLD));
    }
}
