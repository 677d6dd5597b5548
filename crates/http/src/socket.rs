//! Options of the sockets that calls go over, at both ends.

use std::time::Duration;

use socket2::{SockRef, TcpKeepalive};
use tokio::net::TcpStream;

/// How long a connection may be quiet before the system asks the other host for a sign of life, how often it asks, and how
/// often in vain before the connection breaks: a host that vanished is found within 35 s. Without, idle HTTP/1.1
/// connections to it would stay for ever, as nothing but calls is ever written to them.
const KEEP_ALIVE: (Duration, Duration, u32) = (Duration::from_secs(20), Duration::from_secs(5), 3);

/// How long what was written may stay unacknowledged. The system's own limit is about 15 min, during which calls to a host
/// that vanished would go on to be put on the connection.
const UNACKNOWLEDGED: Duration = Duration::from_secs(20);

/// Prepares a connection for calls: what is written goes at once, and a peer that vanished is found.
pub fn prepare(stream: &TcpStream) {
    let (after, every, times) = KEEP_ALIVE;
    let alive = TcpKeepalive::new().with_time(after).with_interval(every).with_retries(times);
    // Both fail only on a socket that is already broken, which the first write will say better.
    let _ = stream.set_nodelay(true);
    let _ = SockRef::from(stream).set_tcp_keepalive(&alive);
}

/// Breaks a connection on which nothing arrives any more. Only for HTTP/2: its peers read at all times, while one of
/// HTTP/1.1 may take its time with a long body, and the system cannot tell that from having vanished.
pub fn limit_silence(stream: &TcpStream) {
    let _ = SockRef::from(stream).set_tcp_user_timeout(Some(UNACKNOWLEDGED));
}

#[cfg(test)]
mod tests {
    use tokio::net::TcpListener;

    use super::*;

    #[tokio::test]
    async fn a_host_that_vanished_is_found_within_a_minute() {
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let stream = TcpStream::connect(listener.local_addr().unwrap()).await.unwrap();
        prepare(&stream);
        limit_silence(&stream);
        let socket = SockRef::from(&stream);
        assert!(stream.nodelay().unwrap() && socket.keepalive().unwrap());
        let asked = socket.tcp_keepalive_interval().unwrap() * socket.tcp_keepalive_retries().unwrap();
        assert!(socket.tcp_keepalive_time().unwrap() + asked < Duration::from_secs(60));
        assert_eq!(socket.tcp_user_timeout().unwrap(), Some(UNACKNOWLEDGED));
    }
}
