//! Any first bytes of a connection: the parser of the PROXY protocol does not panic, does not depend on the pieces that they
//! arrive in, consumes nothing beyond its header, and a header survives encoding and decoding.

use fairmesh_edge::listen::proxy_protocol::{Header, InvalidHeader, Version, read, write};

/// What must hold of these bytes.
pub fn run(sent: &[u8]) {
    match (read(sent), stepwise(sent)) {
        (Ok(Header::Incomplete(_)), Ok(None)) => {}
        (Ok(whole @ Header::Complete { length, addresses, .. }), Ok(Some(same))) => {
            assert_eq!(whole, same);
            assert!(length <= sent.len());
            for version in [Version::V1, Version::V2] {
                let Some(addresses) = addresses else { break };
                let again = write(version, addresses);
                assert!(
                    matches!(read(&again), Ok(Header::Complete { length, addresses: Some(_), .. }) if length == again.len())
                );
            }
        }
        // In pieces, what is wrong may not have been reached yet.
        (Err(_), Err(_) | Ok(None)) => {}
        (whole, pieces) => panic!("at once {whole:?}, in pieces {pieces:?}"),
    }
}

/// Reads as a connection does, never more than is sure to be the head's.
fn stepwise(sent: &[u8]) -> Result<Option<Header>, InvalidHeader> {
    let mut have = 0;
    loop {
        match read(&sent[..have])? {
            Header::Incomplete(more) => {
                assert!(more > 0);
                have += more;
                if have > sent.len() {
                    return Ok(None);
                }
            }
            whole @ Header::Complete { length, .. } => {
                assert_eq!(length, have);
                return Ok(Some(whole));
            }
        }
    }
}
