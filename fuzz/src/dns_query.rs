//! Arbitrary bytes as DNS queries. There is at most one response; it is not a query, fits into the limit, and is not
//! answered when sent back.

use fairmesh_dns::fuzzing::respond;

/// Bytes of a header.
const HEADER: usize = 12;
/// The longest response over UDP.
const MAX_RESPONSE: usize = 1232;

/// What must hold of these bytes.
pub fn run(data: &[u8]) {
    let is_query = data.len() >= HEADER && data[2] & 0x80 == 0;
    let response = respond(data);
    assert_eq!(response.is_some(), is_query, "a query is answered, and nothing else");
    if let Some(response) = response {
        assert_eq!(response[..2], data[..2], "its id");
        assert!(response.len() <= MAX_RESPONSE, "{} bytes", response.len());
        assert!(respond(&response).is_none(), "no response is answered");
    }
}
