use std::{sync::Arc, time::Duration};

use fairmesh_model::{Identity, Location, Prefix, RecordKey, RecordKind, Revision};
use fairmesh_rib::{
    Batch, Node,
    access::{AccessControl, Caller},
    server::{ServedRib, WriteError},
};
use fairmesh_store::Store;
use tokio::sync::watch;
use tonic::Status;

use crate::{
    SOFTWARE,
    admin_service::{authorization_rules, route_quota_check, service_identity_check},
    identity::is_own,
    read_lease::ReadLease,
    store_error::write_error,
    user_tokens::UserTokens,
};

/// Serves reads and writes of the whole routing information base.
#[derive(Clone, Debug)]
pub(crate) struct ControlRib {
    node: Node,
    store: Arc<dyn Store>,
    /// The lease for linearizable reads; `None` if no other process can write to the store.
    read_lease: Option<ReadLease>,
    access: AccessControl,
    tokens: UserTokens,
}

impl ControlRib {
    /// Serves reads from `node`, and writes to `store`.
    pub(crate) fn new(
        (node, store): (&Node, &Arc<dyn Store>),
        read_lease: Option<ReadLease>,
        (access, tokens): (AccessControl, UserTokens),
    ) -> Self {
        Self { node: node.clone(), store: Arc::clone(store), read_lease, access, tokens }
    }
}

impl ServedRib for ControlRib {
    fn node(&self) -> &Node {
        &self.node
    }

    fn software(&self) -> String {
        SOFTWARE.into()
    }

    fn location(&self) -> Option<Location> {
        None
    }

    async fn write(&self, batch: Batch, identity: Identity) -> Result<Revision, WriteError> {
        tracing::debug!(%identity, ops = batch.ops.len(), "writing a batch");
        let identities = Prefix::identity();
        if batch.ops.iter().any(|op| identities.covers(&op.key)) && !is_own(&identity) {
            return Err(WriteError::NotWritable(format!(
                "records below {identities} say whom the mesh trusts: only the user of the control plane may write them, over \
                 its Unix socket"
            )));
        }
        let batch = authorization_rules::complete(&self.node, batch).map_err(WriteError::Invalid)?;
        let is_checked = |kind| matches!(kind, Some(RecordKind::Policy | RecordKind::Service));
        let checked = batch.ops.iter().filter(|op| is_checked(RecordKind::of(&op.key)));
        let checked = checked.filter_map(|op| Some((RecordKey::parse(&op.key).ok()?, op.value.as_ref())));
        let checked: Vec<_> = checked.collect();
        let written = || checked.iter().map(|(key, value)| (key, *value));
        route_quota_check::check(&self.node, written()).map_err(WriteError::Invalid)?;
        service_identity_check::check(&self.access, written()).map_err(WriteError::Invalid)?;
        self.store.write(batch).await.map_err(write_error)
    }

    async fn watcher(&self, identity: Identity, token: &str, is_secret: bool) -> Result<Caller, Status> {
        let user = match token.is_empty() {
            true => None,
            false => Some(self.tokens.user(is_secret, token).await?),
        };
        Ok(Caller { user, ..Caller::from(identity) })
    }

    fn permits(&self, caller: &Caller, prefix: &Prefix) -> Result<(), String> {
        self.access.permits(caller, prefix)
    }

    fn permission_changes(&self) -> Option<watch::Receiver<u64>> {
        Some(self.access.changes())
    }

    /// This process's node is up to date as long as no other process can write: a write by this process is in the
    /// node before it is acknowledged.
    async fn ensure_linearizable(&self) -> Result<(), String> {
        match &self.read_lease {
            Some(read_lease) => read_lease.wait_held().await.map_err(|error| error.to_string()),
            None => Ok(()),
        }
    }

    fn age(&self, _: &Prefix) -> Duration {
        self.max_age()
    }

    fn max_age(&self) -> Duration {
        self.read_lease.as_ref().map_or(Duration::ZERO, ReadLease::age)
    }

    fn age_changes(&self) -> Option<watch::Receiver<u64>> {
        self.read_lease.as_ref().map(ReadLease::ages)
    }
}
