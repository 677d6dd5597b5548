//! Socket options of connections for calls, at both ends.

use std::time::Duration;

use socket2::{SockRef, TcpKeepalive};
use tokio::net::TcpStream;

/// TCP keep-alive: idle time before the first probe, the interval of probes, and unanswered probes before the
/// connection breaks: a vanished host is detected within 35 s. Without it, idle HTTP/1.1 connections to that host
/// would stay for ever, as only calls are written to them.
const KEEP_ALIVE: (Duration, Duration, u32) = (Duration::from_secs(20), Duration::from_secs(5), 3);

/// How long written data may stay unacknowledged. The kernel's default is about 15 min, during which calls would still
/// be sent to a vanished host.
const USER_TIMEOUT: Duration = Duration::from_secs(20);

/// Prepares a connection for calls: without Nagle's algorithm, and with keep-alive.
pub fn configure(stream: &TcpStream) {
    let (after, every, times) = KEEP_ALIVE;
    let alive = TcpKeepalive::new().with_time(after).with_interval(every).with_retries(times);
    // Both fail only on a broken socket, which the first write reports with a better error.
    let _ = stream.set_nodelay(true);
    let _ = SockRef::from(stream).set_tcp_keepalive(&alive);
}

/// Breaks a connection whose data is not acknowledged. Only for HTTP/2: its peers read at all times, while an HTTP/1.1
/// peer may pause within a long body, which the kernel cannot tell from a vanished host.
pub fn limit_unacknowledged(stream: &TcpStream) {
    let _ = SockRef::from(stream).set_tcp_user_timeout(Some(USER_TIMEOUT));
}

#[cfg(test)]
mod tests {
    use tokio::net::TcpListener;

    use super::*;

    #[tokio::test]
    async fn a_vanished_host_is_detected_within_a_minute() {
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
