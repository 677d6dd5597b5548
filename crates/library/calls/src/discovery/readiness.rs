//! Waits for the state of a service, and provides the faults of calls to services without one.

use std::{sync::Arc, time::Duration};

use super::{service_state::ServiceState, subscription::Subscription};
use crate::fault::{Fault, FaultKind};

/// Time that a call without a deadline may wait for steps before its request, such as connecting.
pub(crate) const DEFAULT_READY_TIMEOUT: Duration = Duration::from_secs(15);

/// Waits up to `timeout` for a state from which calls can be decided.
pub(crate) async fn wait_ready<T>(
    subscription: &Arc<Subscription<T>>,
    timeout: Duration,
) -> Result<Arc<ServiceState<T>>, Fault> {
    let state = subscription.state();
    if let ServiceState::Ready(_) = &*state {
        return Ok(state);
    }
    let wait = async {
        let mut state = state;
        loop {
            match &*state {
                ServiceState::Ready(_) => return Ok(state),
                other => {
                    if let Some(fault) = state_fault(subscription, other) {
                        return Err(fault);
                    }
                }
            }
            subscription.changed(&state).await;
            state = subscription.state();
        }
    };
    tokio::time::timeout(timeout, wait).await.unwrap_or_else(|_| Err(unknown_state_fault(subscription)))
}

/// Why calls to a service in this state fail; `None` if they succeed or may succeed soon.
pub fn state_fault<T>(service: &Subscription<T>, state: &ServiceState<T>) -> Option<Fault> {
    let name = service.name();
    match state {
        ServiceState::Ready(_) | ServiceState::Waiting => None,
        ServiceState::Unknown => Some(Fault::new(
            FaultKind::UnknownService,
            format!(
                "service {name} is not declared; list services with `fairmesh get services`, or create it with \
                 `fairmesh apply`"
            ),
        )),
        ServiceState::Unavailable(why) => Some(Fault::new(FaultKind::Unavailable, format!("{name}: {why}"))),
    }
}

/// Returns the fault of a call whose service had no state in time.
#[cold]
pub(crate) fn unknown_state_fault<T>(subscription: &Subscription<T>) -> Fault {
    let name = subscription.name();
    let message =
        format!("{name}: the mesh did not send its endpoints in time; see `fairmesh agent` and its log");
    Fault::new(FaultKind::Unavailable, message)
}
