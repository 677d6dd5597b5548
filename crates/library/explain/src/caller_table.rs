use std::sync::Arc;

use fairmesh_model::{Endpoint, ServiceKind, ServiceName, arith};
use fairmesh_router::{CompileInput, ServiceTable, ShardTable, TableInput};
use fairmesh_views::{HypotheticalCall, View, states, table_age};

/// A service as seen by a caller.
#[derive(Debug)]
pub struct CallerTable {
    /// The table from which the caller decides.
    pub table: ServiceTable,
    /// Revision of the service's newest record.
    pub revision: u64,
    /// Kind of the service, which decides whether keys and roles matter.
    pub kind: ServiceKind,
    /// Endpoints that callers avoid because health checks found them unhealthy, or because they are lost, with the
    /// reason and its time.
    pub avoided: Vec<(String, String)>,
}

/// Error: the service is not declared.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{0} is not declared, so that callers cannot find it")]
pub struct Undeclared(pub ServiceName);

impl CallerTable {
    /// Compiles the service in these records from the view of the caller of `call`.
    pub(crate) fn compile(
        view: &View,
        name: &ServiceName,
        call: &HypotheticalCall,
    ) -> Result<Self, Undeclared> {
        let undeclared = || Undeclared(name.clone());
        let one = view.services.get(name).ok_or_else(undeclared)?;
        let service = &one.service.as_ref().ok_or_else(undeclared)?.value;
        let endpoints: Vec<Endpoint> = one.endpoints.iter().map(|endpoint| endpoint.value.clone()).collect();
        let shards = one.shards.as_ref().map(|map| Arc::new(ShardTable::compile(map)));
        let table = one.tables.get(&call.location.region);
        let facts = CompileInput {
            name,
            service,
            policy: &one.effective_policy(),
            endpoints: &endpoints,
            shards: shards.as_ref(),
            location: &call.location,
            regions: &view.regions.value,
            round_trips: &view.round_trips,
            table: table.map(|table| TableInput { table: &table.value, age: table_age(&table.value) }),
            hosts: &view.hosts.value,
            health: &one.health,
            now: 0,
            client_id: &call.client_id,
            client: arith::hash_text(&call.client_id),
            requires_mtls: view.has_trust_domain,
            authorizes_callers: false,
        };
        let states = states(one, view).into_iter().zip(&endpoints);
        let avoided = states.filter(|(state, _)| state.is_avoided);
        let avoided = avoided.map(|(state, endpoint)| (endpoint.instance.to_string(), state.reason()));
        let avoided = avoided.collect();
        let revision = one.revision(&call.location.region);
        let table = ServiceTable::compile(&facts, &Arc::default(), None);
        Ok(Self { table, revision, kind: service.kind, avoided })
    }
}
