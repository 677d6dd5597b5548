//! Reads the PROXY protocol header of a connection.

use std::{io, time::Duration};

use tokio::{io::AsyncReadExt as _, net::TcpStream, time::timeout};

use crate::listen::proxy_protocol::{self, Addresses, Header};

/// Time limit of the header, which load balancers send at once.
const HEADER_TIMEOUT: Duration = Duration::from_secs(5);

/// Reads exactly the header; `None` if it has no addresses.
pub(crate) async fn read(stream: &mut TcpStream, time_limit: Duration) -> io::Result<Option<Addresses>> {
    let header = async {
        let mut header = Vec::with_capacity(proxy_protocol::MIN_LENGTH);
        loop {
            match proxy_protocol::read(&header).map_err(io::Error::other)? {
                Header::Complete { addresses, .. } => return Ok(addresses),
                Header::Incomplete(missing) => {
                    // Reads no further: the next bytes are the client's.
                    let mut rest = (&mut *stream).take(missing as u64);
                    if rest.read_buf(&mut header).await? == 0 {
                        return Err(io::ErrorKind::UnexpectedEof.into());
                    }
                }
            }
        }
    };
    timeout(time_limit.min(HEADER_TIMEOUT), header).await?
}
