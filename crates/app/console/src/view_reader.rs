//! Reads records of the RIB as views.

use fairmesh_model::{Prefix, RecordKey, RecordKind, ServiceName};
use fairmesh_wire::handshake::Connection;

pub use fairmesh_views::{ALL_TENANTS, At, Scope, ServiceView, View, age_of, every_kind, instant, table_age};

use crate::{failure::Failure, output, rib_reader};

/// Reads views over a connection.
#[allow(async_fn_in_trait, reason = "commands await it where they call it")]
pub trait ReadView: Sized {
    /// Reads the records of `scope` of these kinds, and the topology.
    async fn read(connection: &Connection, scope: &Scope, kinds: &[RecordKind]) -> Result<Self, Failure>;

    /// Reads only the topology.
    async fn topology(connection: &Connection) -> Result<Self, Failure>;

    /// Also reads region drains. The view stays without drains if the caller may not read them, or if an older control
    /// plane does not have them.
    async fn add_drains(&mut self, connection: &Connection) -> Result<(), Failure>;

    /// Reads only role bindings.
    async fn roles(connection: &Connection) -> Result<Self, Failure>;

    /// Reads only the backends of the gateway.
    async fn gateway_backends(connection: &Connection) -> Result<Self, Failure>;

    /// Reads only the gateway quotas of tenants.
    async fn gateway_quotas(connection: &Connection) -> Result<Self, Failure>;

    /// Reads only policy defaults.
    async fn policy_defaults(connection: &Connection, scope: &Scope) -> Result<Self, Failure>;

    /// The records of a service; fails if there are none.
    fn service(&self, name: &ServiceName) -> Result<&ServiceView, Failure>;
}

impl ReadView for View {
    async fn read(connection: &Connection, scope: &Scope, kinds: &[RecordKind]) -> Result<Self, Failure> {
        let mut stored = rib_reader::read(connection, &Self::prefixes(scope, kinds)).await?;
        match rib_reader::read(connection, &scope.policy_defaults()).await {
            Ok(defaults) => stored.extend(defaults),
            // A control plane of the previous release refuses the request, and has none.
            Err(failure) if failure.is_refusal() => {}
            Err(failure) => return Err(failure),
        }
        Ok(Self::of(stored)?)
    }

    async fn topology(connection: &Connection) -> Result<Self, Failure> {
        let prefixes = [Prefix::topology(), Prefix::from(&RecordKey::DefaultAuthorization)];
        Ok(Self::of(rib_reader::read(connection, &prefixes).await?)?)
    }

    async fn add_drains(&mut self, connection: &Connection) -> Result<(), Failure> {
        match rib_reader::read(connection, &[Prefix::drains()]).await {
            Ok(stored) => self.drains = Self::of(stored)?.drains,
            Err(failure) => output::note(format!("drains of regions are not shown: {}", failure.message())),
        }
        Ok(())
    }

    async fn roles(connection: &Connection) -> Result<Self, Failure> {
        Ok(Self::of(rib_reader::read(connection, &[Prefix::roles()]).await?)?)
    }

    async fn gateway_backends(connection: &Connection) -> Result<Self, Failure> {
        Ok(Self::of(rib_reader::read(connection, &[Prefix::gateway_backends()]).await?)?)
    }

    async fn gateway_quotas(connection: &Connection) -> Result<Self, Failure> {
        Ok(Self::of(rib_reader::read(connection, &[Prefix::gateway_quotas()]).await?)?)
    }

    async fn policy_defaults(connection: &Connection, scope: &Scope) -> Result<Self, Failure> {
        Ok(Self::of(rib_reader::read(connection, &scope.policy_defaults()).await?)?)
    }

    fn service(&self, name: &ServiceName) -> Result<&ServiceView, Failure> {
        self.services.get(name).ok_or_else(|| {
            Failure::failed_with(
                format!("there is no service {name}"),
                "list services with 'fairmesh get services', or declare it with 'fairmesh apply'",
            )
        })
    }
}
