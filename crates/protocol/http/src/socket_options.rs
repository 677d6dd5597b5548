//! Socket options of connections that carry calls, at both ends.

use std::time::Duration;

use socket2::{SockRef, TcpKeepalive};
use tokio::net::TcpStream;

/// TCP keep-alive: idle time before the first probe, interval of probes, and number of unanswered probes before the
/// connection is closed. A vanished host is detected within 35 s. Without keep-alive, idle HTTP/1.1 connections to that
/// host would stay open for ever, since only calls are written to them.
const KEEP_ALIVE: (Duration, Duration, u32) = (Duration::from_secs(20), Duration::from_secs(5), 3);

/// How long written data may stay unacknowledged. With the kernel's default of about 15 min, calls would still be sent
/// to a vanished host.
const USER_TIMEOUT: Duration = Duration::from_secs(20);

/// Prepares a connection for calls: disables Nagle's algorithm, and enables keep-alive.
pub fn configure(stream: &TcpStream) {
    let (after, every, times) = KEEP_ALIVE;
    let alive = TcpKeepalive::new().with_time(after).with_interval(every).with_retries(times);
    // Both fail only on a broken socket, which the first write reports with a better error.
    let _ = stream.set_nodelay(true);
    let _ = SockRef::from(stream).set_tcp_keepalive(&alive);
}

/// Closes the connection when written data is not acknowledged in time. Only for HTTP/2: its peers read at all times,
/// whereas an HTTP/1.1 peer may pause within a long body, which the kernel cannot tell from a vanished host.
pub fn limit_unacknowledged(stream: &TcpStream) {
    let _ = SockRef::from(stream).set_tcp_user_timeout(Some(USER_TIMEOUT));
}

#[cfg(test)]
mod tests {
    use tokio::net::TcpListener;

    use super::*;

    #[tokio::test]
    async fn tcp_socket_options_detect_vanished_host_within_one_minute() {
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let stream = TcpStream::connect(listener.local_addr().unwrap()).await.unwrap();
        configure(&stream);
        limit_unacknowledged(&stream);
        let socket = SockRef::from(&stream);
        assert!(stream.nodelay().unwrap() && socket.keepalive().unwrap());
        let probing = socket.tcp_keepalive_interval().unwrap() * socket.tcp_keepalive_retries().unwrap();
        assert!(socket.tcp_keepalive_time().unwrap() + probing < Duration::from_secs(60));
        assert_eq!(socket.tcp_user_timeout().unwrap(), Some(USER_TIMEOUT));
    }
}
