use std::{sync::Arc, time::Duration};

use fairmesh_model::Prefix;
use fairmesh_rib::{Update, follower::Sink};
use tokio::sync::mpsc;

use super::shard_maps::MapEvent;
use crate::discovery::{endpoint_transport::EndpointTransport, subscription::Subscription};

/// An input of the worker.
pub(super) enum Event<T> {
    /// A service is used for the first time.
    Track(Arc<Subscription<T>>),
    /// The RIB changed.
    Update(Update),
    /// The agent cannot serve a prefix.
    Refused(Prefix, String),
    /// The agent lost its source and its data is this old; zero: it has its source again.
    AgeUpdate(Duration),
    /// The connection to the agent is lost.
    Disconnected,
    /// A change of a large shard map.
    Map(MapEvent),
}

/// Forwards the follower's events to the worker, in order.
pub(super) struct EventSink<T>(pub(super) mpsc::UnboundedSender<Event<T>>);

// Sending fails only when the worker has ended.
impl<T: EndpointTransport> Sink for EventSink<T> {
    fn update(&mut self, update: Update) {
        let _ = self.0.send(Event::Update(update));
    }

    fn refused(&mut self, prefix: &Prefix, reason: &str) {
        let _ = self.0.send(Event::Refused(prefix.clone(), reason.to_owned()));
    }

    fn age_update(&mut self, age: Duration) {
        let _ = self.0.send(Event::AgeUpdate(age));
    }

    fn disconnected(&mut self) {
        let _ = self.0.send(Event::Disconnected);
    }
}
