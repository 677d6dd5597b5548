//! Reads a private key without leaving copies of it in memory.
//!
//! PEM parsers in libraries keep parts of the text in internal buffers, which are freed without being zeroised. Here
//! every buffer has its final size from the start, and is zeroised.

use std::{
    fs::File,
    io::{self, Read as _},
    path::Path,
};

use base64::{Engine as _, prelude::BASE64_STANDARD};
use zeroize::Zeroizing;

use crate::KeyServerError;

/// Maximum size of the file, in bytes. A 16384-bit RSA key takes 13 KB.
const MAX_FILE: u64 = 64 * 1024;
const BEGIN: &[u8] = b"-----BEGIN PRIVATE KEY-----";
const END: &[u8] = b"-----END PRIVATE KEY-----";

/// Reads the PKCS #8 document in a file.
pub(crate) fn read(path: &Path) -> Result<Zeroizing<Vec<u8>>, KeyServerError> {
    let text = contents(path).map_err(|source| KeyServerError::Read { path: path.to_owned(), source })?;
    let no_key = |problem| KeyServerError::NoKey { path: path.to_owned(), problem };
    let body = body(&text).ok_or_else(|| no_key("holds no private key"))?;
    let mut encoded = Zeroizing::new(Vec::with_capacity(body.len()));
    encoded.extend(body.iter().filter(|byte| !byte.is_ascii_whitespace()));
    let mut der = Zeroizing::new(vec![0; base64::decoded_len_estimate(encoded.len())]);
    let length = BASE64_STANDARD.decode_slice(&encoded[..], &mut der);
    let length = length.map_err(|_| no_key("is damaged"))?;
    der.truncate(length);
    Ok(der)
}

/// Reads a whole file. Refuses a file larger than the limit, even if it grows meanwhile.
fn contents(path: &Path) -> io::Result<Zeroizing<Vec<u8>>> {
    let mut file = File::open(path)?;
    let mut bytes = Zeroizing::new(vec![0; usize::try_from(MAX_FILE).unwrap_or(usize::MAX)]);
    let mut length = 0;
    while length < bytes.len() {
        match file.read(&mut bytes[length..])? {
            0 => break,
            read => length += read,
        }
    }
    if length == bytes.len() {
        return Err(io::Error::new(io::ErrorKind::FileTooLarge, "it is larger than 64 KB"));
    }
    bytes.truncate(length);
    Ok(bytes)
}

/// Returns the text between the first BEGIN line and the END line after it.
fn body(text: &[u8]) -> Option<&[u8]> {
    let begin = find(text, BEGIN)? + BEGIN.len();
    let length = find(&text[begin..], END)?;
    Some(&text[begin..begin + length])
}

fn find(text: &[u8], part: &[u8]) -> Option<usize> {
    text.windows(part.len()).position(|window| window == part)
}

#[cfg(test)]
mod tests {
    use std::fs;

    use super::*;

    #[test]
    fn private_key_is_found_anywhere_in_pem_file() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("key");
        let read = |text: &str| {
            fs::write(&path, text).unwrap();
            read(&path).map(|der| der.to_vec()).map_err(|error| error.to_string())
        };
        let key = "-----BEGIN PRIVATE KEY-----\nAAEC\r\nAw==\n-----END PRIVATE KEY-----\n";
        assert_eq!(read(&format!("Bag Attributes\n{key}{key}")).unwrap(), [0, 1, 2, 3]);
        for (text, problem) in [
            (String::new(), "holds no private key"),
            (key.replace("PRIVATE", "EC PRIVATE"), "openssl pkey -in OLD -out NEW"),
            (key.replace("AAEC", "A!EC"), "is damaged"),
            (key.replace("END", "BEGIN"), "holds no private key"),
            ("x".repeat(64 * 1024), "larger than 64 KB"),
        ] {
            let error = read(&text).unwrap_err();
            assert!(error.contains(problem), "{problem}: {error}");
        }
    }
}
