//! HTTP/1 versions above 1.1 are read as 1.1 (RFC 9110 2.5, 6.2), since the parser knows only 1.0 and 1.1.

/// Replaces a version from 1.2 to 1.9 in the first line by 1.1. `spaces` is the number of spaces before the version.
/// Returns whether the version was replaced.
pub(super) fn lower(input: &mut [u8], spaces: usize) -> bool {
    let is_content = |byte: &u8| !matches!(byte, b'\r' | b'\n');
    let Some(mut at) = input.iter().position(is_content) else { return false };
    for _ in 0..spaces {
        let Some(space) = input[at..].iter().position(|byte| *byte == b' ') else { return false };
        at += space + 1;
    }
    match &mut input[at..] {
        [b'H', b'T', b'T', b'P', b'/', b'1', b'.', minor @ b'2'..=b'9', ..] => {
            *minor = b'1';
            true
        }
        _ => false,
    }
}

/// Replaces a version from 1.2 to 1.9 at the beginning of a request by 1.1.
pub fn lower_version(request: &mut [u8]) -> bool {
    lower(request, 2)
}
