//! Processes at sockets of this machine.

use std::path::Path;

use tokio::net::UnixStream;

use crate::process_stat::ProcessStat;

/// The process that listens at this socket; `None` if it cannot be learned.
pub(super) async fn listening_at(path: &Path) -> Option<ProcessStat> {
    // The kernel accepts for a process that is suspended, as long as its backlog has room, which this does not wait for.
    let stream = UnixStream::connect(path).await.ok()?;
    // 0 is a process of another namespace.
    let pid = u32::try_from(stream.peer_cred().ok()?.pid()?).ok().filter(|pid| *pid > 0)?;
    ProcessStat::of(pid)
}

#[cfg(test)]
mod tests {
    use tokio::net::UnixListener;

    use super::*;

    #[tokio::test]
    async fn the_listener_of_a_socket_is_known() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("agent.sock");
        assert!(listening_at(&path).await.is_none());
        let _listener = UnixListener::bind(&path).unwrap();
        let own = listening_at(&path).await.unwrap();
        assert_eq!(own.pid, std::process::id());
        assert!(!own.is_suspended);
    }
}
