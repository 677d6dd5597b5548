use std::{sync::Arc, time::Duration};

use fairmesh_model::Prefix;
use fairmesh_rib::{Update, follower::Sink};

use super::{data_age::AgeChange, event_queue::EventQueue, shard_maps::MapEvent};
use crate::discovery::{endpoint_transport::EndpointTransport, subscription::Subscription};

/// An input event of the worker.
pub(super) enum Event<T> {
    /// A service is used for the first time.
    Track(Arc<Subscription<T>>),
    /// The RIB changed.
    Update(Update),
    /// The agent cannot serve this prefix, for this reason.
    Refused(Prefix, String),
    /// The known age of the data changed.
    Age(AgeChange),
    /// A large shard map changed.
    Map(MapEvent),
}

/// Forwards the follower's events to the worker.
pub(super) struct EventSink<T>(pub(super) Arc<EventQueue<T>>);

impl<T: EndpointTransport> Sink for EventSink<T> {
    fn update(&mut self, update: Update) {
        self.0.push(Event::Update(update));
    }

    fn refused(&mut self, prefix: &Prefix, reason: &str) {
        self.0.push(Event::Refused(prefix.clone(), reason.to_owned()));
    }

    fn age_update(&mut self, age: Duration) {
        self.0.push(Event::Age(AgeChange::Reported(age)));
    }

    fn disconnected(&mut self) {
        self.0.push(Event::Age(AgeChange::Disconnected));
    }
}
