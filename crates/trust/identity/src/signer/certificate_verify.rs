/// First part of the message that a TLS 1.3 server signs (RFC 8446 4.4.3): 64 spaces. The context string, a zero byte
/// and the transcript hash follow.
const PADDING: [u8; 64] = [b' '; 64];
const CONTEXT: &[u8] = b"TLS 1.3, server CertificateVerify\0";

/// Returns the message that a TLS 1.3 server signs for a transcript hash; `None` if no cipher suite has a hash of
/// this length.
pub fn certificate_verify(transcript_hash: &[u8]) -> Option<Vec<u8>> {
    is_hash(transcript_hash).then(|| [&PADDING, CONTEXT, transcript_hash].concat())
}

/// Extracts the transcript hash from a message that a TLS 1.3 server signs.
pub(super) fn transcript_hash(message: &[u8]) -> Option<&[u8]> {
    let hash = message.strip_prefix(&PADDING)?.strip_prefix(CONTEXT)?;
    is_hash(hash).then_some(hash)
}

/// Whether the length is that of a SHA-256 or SHA-384 hash.
fn is_hash(bytes: &[u8]) -> bool {
    matches!(bytes.len(), 32 | 48)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn certificate_verify_message_is_built_only_for_tls_1_3_hashes() {
        for length in [32, 48] {
            let hash = vec![7; length];
            let message = certificate_verify(&hash).unwrap();
            assert_eq!(message.len(), 64 + 34 + length);
            assert_eq!(transcript_hash(&message), Some(&*hash));
            assert_eq!(transcript_hash(&message[1..]), None);
            let of_client = String::from_utf8(message).unwrap().replace("server", "client");
            assert_eq!(transcript_hash(of_client.as_bytes()), None);
        }
        for length in [0, 20, 31, 33, 64] {
            assert_eq!(certificate_verify(&vec![7; length]), None);
        }
        // A TLS 1.2 server signs two random numbers and parameters, without a prefix.
        assert_eq!(transcript_hash(&[b' '; 130]), None);
    }
}
