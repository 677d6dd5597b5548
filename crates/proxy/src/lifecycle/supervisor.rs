//! What a supervisor hears that started this process, in the words of sd_notify(3): systemd, and others that know them.
//!
//! The end of a proxy that was succeeded is not the end of the service. So it says who is to be watched from then on, and
//! says it itself: nobody but the process that is watched, and what a unit says to start, is listened to (`NotifyAccess=exec`),
//! which keeps others from speaking for it.

use rustix::process::Pid;
use sd_notify::NotifyState::{self, MainPid, Ready, Status, Stopping};

/// Programs that connect from now on wait for an answer and are not refused. To be started means no more than this: what there is
/// to serve may be unknown for as long as nobody tells, and what starts after the proxy must not wait for that.
pub(crate) fn notify_listening() {
    notify(&[Ready, Status("waiting to learn what to serve")]);
}

pub(crate) fn notify_serving() {
    notify(&[Ready, Status("serving")]);
}

/// Another process serves instead, where it is known which.
pub(crate) fn notify_successor(by: Option<Pid>) {
    match by {
        Some(pid) => notify(&[MainPid(pid.as_raw_nonzero().get().unsigned_abs())]),
        None if std::env::var_os("NOTIFY_SOCKET").is_some() => tracing::warn!(
            "the supervisor is not told which process took over, as it runs among other processes; it may start another"
        ),
        None => {}
    }
}

pub(crate) fn notify_draining() {
    notify(&[Stopping, Status("draining")]);
}

/// Does nothing where no supervisor asked for it with `NOTIFY_SOCKET`.
fn notify(states: &[NotifyState<'_>]) {
    if let Err(error) = sd_notify::notify(states) {
        tracing::warn!(%error, "the supervisor at NOTIFY_SOCKET hears nothing");
    }
}
