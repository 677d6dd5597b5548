//! Logs ejections: which endpoints the proxy avoids because calls to them failed, and when those endpoints
//! are back.
//!
//! The state is checked once a second. An endpoint that fails and recovers in between logs nothing, and an
//! endpoint that stays broken logs one line however often it is tried again.

use std::{
    collections::{BTreeMap, BTreeSet},
    sync::Weak,
    time::Duration,
};

use fairmesh_calls::{InstanceId, ServiceName, observe::EndpointStatus};
use tokio::time::{MissedTickBehavior, interval};

use crate::services::Services;

const INTERVAL: Duration = Duration::from_secs(1);
/// Minimum duration of a logged ejection. In a shorter ejection, the server was only busy for a moment.
const SHORTEST: Duration = Duration::from_millis(100);

/// Maximum number of lines per check, because a machine that dies may have many endpoints.
const MAX_LINES: usize = 20;

/// The state of an endpoint that the log needs.
#[derive(Clone, Debug, PartialEq, Eq)]
struct Seen {
    instance: InstanceId,
    address: String,
    is_ejected: bool,
    consecutive_failures: u32,
}

/// Endpoints of one service whose ejection was logged.
#[derive(Debug, Default)]
struct Ejected(BTreeSet<InstanceId>);

/// A change to be logged.
#[derive(Debug, PartialEq, Eq)]
enum Event {
    Ejected(Seen),
    Returned(Seen),
}

/// Logs ejections until the services are dropped.
pub(crate) async fn log(services: Weak<Services>) {
    let mut ticks = interval(INTERVAL);
    ticks.set_missed_tick_behavior(MissedTickBehavior::Delay);
    let mut known: BTreeMap<ServiceName, Ejected> = BTreeMap::new();
    loop {
        ticks.tick().await;
        let Some(services) = services.upgrade() else { return };
        let called = services.called();
        known.retain(|name, _| called.contains_key(name));
        let mut events = Vec::new();
        for (name, handle) in called {
            if handle.ejected_endpoints() == 0 && !known.contains_key(&name) {
                continue;
            }
            let ejected = known.entry(name.clone()).or_default();
            let now: Vec<_> = handle.endpoint_status().iter().map(Seen::of).collect();
            events.extend(ejected.update(now).into_iter().map(|event| (name.clone(), event)));
            if ejected.0.is_empty() {
                known.remove(&name);
            }
        }
        events.iter().take(MAX_LINES).for_each(|(name, event)| event.log(name));
        if let Some(more @ 1..) = events.len().checked_sub(MAX_LINES) {
            tracing::warn!(
                more,
                "further endpoints were ejected or are back; 'fairmesh proxy endpoints' lists them"
            );
        }
    }
}

impl Seen {
    fn of(status: &EndpointStatus) -> Self {
        let lasts =
            |ejection: fairmesh_calls::observe::Ejection| ejection.age + ejection.remaining >= SHORTEST;
        Self {
            instance: status.target.instance.clone(),
            address: status.target.address.to_string(),
            is_ejected: status.ejection.is_some_and(lasts),
            consecutive_failures: status.consecutive_failures,
        }
    }
}

impl Ejected {
    /// Returns the changes since the last check. An endpoint is back after a success, not when its ejection ends and
    /// it may be tried again. Endpoints that are gone are forgotten.
    fn update(&mut self, now: Vec<Seen>) -> Vec<Event> {
        let present: BTreeSet<_> = now.iter().map(|seen| seen.instance.clone()).collect();
        self.0.retain(|instance| present.contains(instance));
        let mut events = Vec::new();
        for seen in now {
            if seen.is_ejected {
                if self.0.insert(seen.instance.clone()) {
                    events.push(Event::Ejected(seen));
                }
            } else if seen.consecutive_failures == 0 && self.0.remove(&seen.instance) {
                events.push(Event::Returned(seen));
            }
        }
        events
    }
}

impl Event {
    fn log(&self, service: &ServiceName) {
        match self {
            Self::Ejected(Seen { instance, address, consecutive_failures, .. }) => tracing::warn!(
                %service, %instance, %address, consecutive_failures,
                "ejected: this proxy avoids the endpoint because its calls there failed"
            ),
            Self::Returned(Seen { instance, address, .. }) => {
                tracing::info!(%service, %instance, %address, "the endpoint is back after its ejection");
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn seen(instance: &str, is_ejected: bool, consecutive_failures: u32) -> Seen {
        let instance = InstanceId::new(instance).unwrap();
        Seen { instance, address: "10.0.0.1:80".to_owned(), is_ejected, consecutive_failures }
    }

    #[test]
    fn endpoint_ejection_is_logged_once_until_success() {
        let mut ejected = Ejected::default();
        let (out, tried, back) = (seen("a", true, 3), seen("a", false, 3), seen("a", false, 0));
        assert_eq!(ejected.update(vec![out.clone(), seen("b", false, 1)]), [Event::Ejected(out.clone())]);
        // The endpoint is tried again after its ejection, fails, and is ejected for longer.
        for again in [&tried, &out] {
            assert_eq!(ejected.update(vec![again.clone()]), []);
        }
        assert_eq!(ejected.update(vec![back.clone()]), [Event::Returned(back)]);
        assert_eq!(ejected.update(vec![out.clone()]), [Event::Ejected(out)]);
        assert_eq!(ejected.update(vec![]), []);
        assert!(ejected.0.is_empty());
    }
}
