//! Reads the PROXY protocol header of a connection.

use std::{io, time::Duration};

use tokio::{
    io::{AsyncRead, AsyncReadExt as _},
    time::timeout,
};

use crate::listen::proxy_protocol::{self, Addresses, ConnectionId, Header};

/// Time limit for the header. Load balancers send it at once.
const HEADER_TIMEOUT: Duration = Duration::from_secs(5);

/// Contents of a PROXY protocol header.
#[derive(Clone, Copy, Debug)]
pub struct ProxyHeader {
    /// Addresses of the original connection. `None` if the header has none, as in health checks of a load
    /// balancer.
    pub addresses: Option<Addresses>,
    /// The id that the header's sender gave to the connection.
    pub connection_id: Option<ConnectionId>,
}

/// Reads the header, and no byte beyond it.
///
/// # Errors
/// The header is invalid, the connection failed, or the header did not arrive within `time_limit` or 5 s,
/// whichever is shorter.
pub async fn read(stream: &mut (impl AsyncRead + Unpin), time_limit: Duration) -> io::Result<ProxyHeader> {
    let header = async {
        let mut header = Vec::with_capacity(proxy_protocol::MIN_LENGTH);
        loop {
            match proxy_protocol::read(&header).map_err(io::Error::other)? {
                Header::Complete { addresses, connection_id, .. } => {
                    return Ok(ProxyHeader { addresses, connection_id });
                }
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
