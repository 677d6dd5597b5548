//! Notifications to the service manager (sd_notify(3)): systemd, or another one that sets `NOTIFY_SOCKET`.
//!
//! The exit of a proxy that was replaced is not the end of the service: it reports the successor as the new main
//! process. Only the current main process may do so (`NotifyAccess=exec`), so that no other process can impersonate it.

use rustix::process::Pid;
use sd_notify::NotifyState::{self, MainPid, Ready, Status, Stopping};

/// Clients that connect from now on wait and are not refused. Ready means only this: routing information may be missing
/// as long as no agent is reachable, and units that start after the proxy must not wait for that.
pub fn notify_listening() {
    notify(&[Ready, Status("waiting for routing information")]);
}

/// It serves with all of its routing information.
pub fn notify_serving() {
    notify(&[Ready, Status("serving")]);
}

/// Another process serves from now on; its id is unknown in another PID namespace.
pub fn notify_successor(by: Option<Pid>) {
    match by {
        Some(pid) => notify(&[MainPid(pid.as_raw_nonzero().get().unsigned_abs())]),
        None if std::env::var_os("NOTIFY_SOCKET").is_some() => tracing::warn!(
            "cannot report the successor to the service manager from another PID namespace; it may start \
             another process"
        ),
        None => {}
    }
}

/// It accepts no more, and ends once open connections have.
pub fn notify_draining() {
    notify(&[Stopping, Status("draining")]);
}

/// Does nothing without `NOTIFY_SOCKET`.
fn notify(states: &[NotifyState<'_>]) {
    if let Err(error) = sd_notify::notify(states) {
        tracing::warn!(%error, "cannot notify the service manager at NOTIFY_SOCKET");
    }
}
