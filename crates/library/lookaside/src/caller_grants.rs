//! Grants: which services a caller may learn about, namely those whose records it may read.

use std::time::Duration;

use fairmesh_model::{Authorization, CallerId, Identity, Prefix, RecordKey, ServiceName};
use fairmesh_rib::{
    Node, Update,
    access::AccessControl,
    follower::{Backoff, Follower, FollowerConfig, FollowerHandle, Sink},
};
use fairmesh_wire::transport::{Address, Transport};
use tokio::{sync::watch, time::timeout};
use tonic::Status;

/// Time for which a caller waits for the records that determine its grants.
const FIRST_RECORDS_TIMEOUT: Duration = Duration::from_secs(2);

/// The grants of callers, from records that the lookaside follows.
#[derive(Debug)]
pub(crate) struct Grants {
    access: AccessControl,
    has_default: watch::Receiver<bool>,
    _upstream: FollowerHandle,
}

/// The records from which grants are determined.
#[derive(Debug)]
struct GrantRecords {
    node: Node,
    access: AccessControl,
    has_default: watch::Sender<bool>,
}

impl Grants {
    /// Follows the records that determine grants. Some upstreams do not serve all of them; role bindings and agents
    /// then grant nothing here.
    pub(crate) fn follow(addresses: Vec<Address>, transport: Transport) -> Self {
        let node = Node::replica();
        let access = AccessControl::new(node.clone());
        // Only a mesh with a trust domain issues identities, and its records may not have arrived yet.
        access.require(None);
        let (told, has_default) = watch::channel(false);
        let records = GrantRecords { node, access: access.clone(), has_default: told };
        let config = FollowerConfig {
            addresses,
            transport,
            software: "lookaside, grants of callers".into(),
            backoff: Backoff::default(),
            refuse_lagging: false,
        };
        let upstream = Follower::spawn(config, records);
        let [default, bundle] =
            [RecordKey::DefaultAuthorization, RecordKey::TrustBundle].map(|key| Prefix::from(&key));
        upstream.subscribe_all([default, bundle, Prefix::roles(), Prefix::agents()]);
        Self { access, has_default, _upstream: upstream }
    }

    /// Checks that a caller may learn about a service. `authorization` reads the authorization part of the service's
    /// policy. Callers on this machine, or in a mesh without a trust domain, have no identity here; they may learn
    /// everything that an agent would give them.
    ///
    /// # Errors
    /// The same for services that do not exist and for services that the caller may not know.
    pub(crate) async fn check(
        &self,
        caller: &Identity,
        service: &ServiceName,
        authorization: impl FnOnce() -> Option<Authorization>,
    ) -> Result<(), Status> {
        let id = match caller {
            Identity::Spiffe(id) => CallerId::new(id.clone()),
            Identity::Federated(id) => CallerId::federated(id.clone()),
            Identity::Anonymous | Identity::Local { .. } => return Ok(()),
        };
        let mut has_default = self.has_default.clone();
        let known = timeout(FIRST_RECORDS_TIMEOUT, has_default.wait_for(|known| *known)).await;
        if !matches!(known, Ok(Ok(_))) {
            return Err(Status::unavailable(
                "this lookaside does not know yet what its callers may read; retry",
            ));
        }
        let grants = self.access.grants(&caller.clone().into());
        let authorization = authorization();
        // A caller that may call a service needs to know where it is.
        let is_callable = || self.access.admits(&grants, authorization.as_ref());
        match grants.may_view(service, is_callable) || self.access.admits_caller(authorization.as_ref(), &id)
        {
            true => Ok(()),
            false => Err(Status::not_found(format!("there is no service {service} that {caller} may use"))),
        }
    }
}

impl Sink for GrantRecords {
    const APPLIES_AT_ONCE: bool = true;

    fn update(&mut self, update: Update) {
        let default = Prefix::from(&RecordKey::DefaultAuthorization);
        let has_default = update.snapshots.iter().any(|snapshot| snapshot.prefix == default);
        match self.node.apply_update(update) {
            Ok(_) => self.access.changed(),
            Err(behind) => tracing::warn!(%behind, "records of grants were dropped"),
        }
        if has_default {
            self.has_default.send_replace(true);
        }
    }

    fn refused(&mut self, prefix: &Prefix, reason: &str) {
        tracing::debug!(%prefix, reason, "grants by these records give nothing here");
    }
}
