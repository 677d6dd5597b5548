use std::time::Duration;

use hyper_util::rt::TokioIo;
use tonic::transport::{Channel, Endpoint, Error};
use tower::service_fn;

use super::{Address, Transport};

/// Timeout of connection establishment.
pub const CONNECT_TIMEOUT: Duration = Duration::from_secs(2);

/// Keep-alive interval of idle connections, and timeout of the response: a vanished peer is detected within the sum.
pub(super) const KEEP_ALIVE: (Duration, Duration) = (Duration::from_secs(10), Duration::from_secs(5));

/// Flow-control window of a call, in bytes: with the 64 KB of HTTP/2, a snapshot over a round trip of 100 ms would be
/// limited to 640 KB/s.
const WINDOW: u32 = 2 * 1024 * 1024;

/// Connects now, and reconnects by itself.
pub async fn connect_channel(transport: &Transport, address: &Address) -> Result<Channel, Error> {
    let endpoint = endpoint(address)?;
    endpoint.connect_with_connector(connector(transport, address)).await
}

/// Connects with the first call.
pub fn connect_channel_lazy(transport: &Transport, address: &Address) -> Result<Channel, Error> {
    Ok(endpoint(address)?.connect_with_connector_lazy(connector(transport, address)))
}

fn endpoint(address: &Address) -> Result<Endpoint, Error> {
    // The URI becomes `:authority`; the connector knows where to connect.
    let uri = match address {
        Address::Tcp(authority) => format!("http://{authority}"),
        Address::Unix(_) => "http://localhost".to_owned(),
    };
    let (interval, timeout) = KEEP_ALIVE;
    Ok(Endpoint::from_shared(uri)?
        .connect_timeout(CONNECT_TIMEOUT)
        .http2_keep_alive_interval(interval)
        .keep_alive_timeout(timeout)
        .keep_alive_while_idle(true)
        .initial_stream_window_size(WINDOW)
        .initial_connection_window_size(2 * WINDOW))
}

fn connector(
    transport: &Transport,
    address: &Address,
) -> impl tower::Service<
    http::Uri,
    Response = TokioIo<super::Socket>,
    Error = std::io::Error,
    Future = impl Future<Output = std::io::Result<TokioIo<super::Socket>>> + Send,
> + Send
+ 'static {
    let (transport, address) = (transport.clone(), address.clone());
    service_fn(move |_| {
        let (transport, address) = (transport.clone(), address.clone());
        async move { transport.dial(&address).await.map(TokioIo::new) }
    })
}
