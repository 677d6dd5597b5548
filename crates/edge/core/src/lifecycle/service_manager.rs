//! Notifications to the service manager (sd_notify(3)): systemd, or any other that sets `NOTIFY_SOCKET`.
//!
//! When a successor has replaced a proxy, the proxy's exit does not end the service: the proxy reports the
//! successor as the new main process. Only the current main process may do this (`NotifyAccess=exec`), so no
//! other process can impersonate it.

use rustix::process::Pid;
use sd_notify::NotifyState::{self, MainPid, Ready, Status, Stopping};

/// Reports readiness: clients that connect from now on wait instead of being refused. Routing information may still
/// be missing while no agent is reachable; units that start after the proxy must not wait for it.
pub fn notify_listening() {
    notify(&[Ready, Status("waiting for routing information")]);
}

/// Reports that this process serves with all of its routing information.
pub fn notify_serving() {
    notify(&[Ready, Status("serving")]);
}

/// Reports the successor as the new main process. `by` is `None` if the successor is in another PID
/// namespace.
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

/// Reports that this process accepts no more connections, and ends once its open connections have ended.
pub fn notify_draining() {
    notify(&[Stopping, Status("draining")]);
}

/// Sends a notification. Does nothing without `NOTIFY_SOCKET`.
fn notify(states: &[NotifyState<'_>]) {
    if let Err(error) = sd_notify::notify(states) {
        tracing::warn!(%error, "cannot notify the service manager at NOTIFY_SOCKET");
    }
}
