//! Compares the region of this agent with the one in which it joined. Control planes refuse its reports and health checks
//! for another region, so that an agent cannot speak for machines elsewhere.

use std::time::Duration;

use fairmesh_model::{Record, RecordKey, Region};
use fairmesh_wire::{handshake::Connection, record_encoding, transport::Address, v1::ReadRequest};
use tokio::time::sleep;
use tonic::Status;

use super::{Shared, below, certificate_source::within};

/// Approximate interval at which the record is read, beside each new connection and certificate.
const INTERVAL: Duration = Duration::from_secs(300);

impl Shared {
    /// Warns once whenever the recorded region begins to differ from this agent's. Never returns.
    pub(super) async fn follow_recorded_region(&self) {
        let (mut state, mut certificates) = (self.upstream.state(), self.workload.installations());
        let mut warned = None;
        loop {
            certificates.mark_unchanged();
            let since = state.borrow_and_update().since;
            let connection = self.upstream.connected().await;
            // A control plane of the previous release does not let every agent read its record.
            if let Ok(other) = self.other_region(&connection).await
                && other != warned
            {
                self.log_region(other.as_ref());
                warned = other;
            }
            tokio::select! {
                () = sleep(INTERVAL + below(INTERVAL)) => {}
                // The senders live as long as the follower and the identity.
                () = async {
                    let _ = state.wait_for(|now| now.connected && now.since != since).await;
                } => {}
                _ = certificates.changed() => {}
            }
        }
    }

    fn log_region(&self, other: Option<&Region>) {
        let Some(recorded) = other else {
            return tracing::info!(region = %self.region, "this agent may report for its region again");
        };
        let name = &self.name;
        tracing::warn!(
            %recorded,
            region = %self.region,
            "control planes refuse the reports and health checks of this agent: it joined in another region than that of its \
             --region. If it has moved, restart it with a new token: `fairmesh identity token {name} --region {}`, and \
             --join-token-file. If another agent joined under its name, give one of them another --name",
            self.region
        );
    }

    /// Whether this agent has a token, and joined in another region than its own.
    pub(super) async fn is_elsewhere(&self) -> bool {
        let Some(connection) = self.upstream.connection().filter(|_| self.token.is_some()) else {
            return false;
        };
        matches!(self.other_region(&connection).await, Ok(Some(_)))
    }

    /// The region in which this agent joined, if it is another one than its own and control planes insist on it.
    pub(super) async fn other_region(&self, connection: &Connection) -> Result<Option<Region>, Status> {
        // At the socket of its control plane, an agent may report for any region.
        if matches!(connection.address(), Address::Unix(_)) {
            return Ok(None);
        }
        let key = RecordKey::JoinedAgent(self.name.clone());
        let request = ReadRequest { prefixes: vec![key.to_string()], ..ReadRequest::default() };
        let entries = within(connection.rib().read(request)).await?.into_inner().entries;
        let recorded = entries.iter().find_map(|entry| match record_encoding::decode(&key, &entry.value) {
            Ok(Record::JoinedAgent(joined)) if entry.key == key.to_string() => joined.region,
            _ => None,
        });
        Ok(recorded.filter(|region| *region != self.region))
    }
}
