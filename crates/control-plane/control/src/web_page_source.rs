//! The data of this control plane that the web page shows.

use std::{sync::Arc, time::Duration};

use axum::http::Extensions;
use fairmesh_explain::Undeclared;
use fairmesh_identity::CertificateInfo;
use fairmesh_imbalance::{Member, Minute};
use fairmesh_model::{CallCounts, Invalid, Prefix, RecordKey, RecordKind, ServiceName, Tenant};
use fairmesh_rib::{
    Node,
    access::{AccessControl, Caller, Need},
};
use fairmesh_views::{HypotheticalCall, Scope, StoredRecord, View, every_kind};
use fairmesh_web::{AuditLog, Audited, Certificate, InstanceLoad, Refusal, RegionSteps, Source};
use fairmesh_wire::v1;
use serde_json::{Value, json};
use tokio::runtime::Handle;

use crate::{
    access::PermittedPage,
    admin_service::changes,
    audit::{self, Log},
    imbalance::{Imbalance, ReportQuery},
    reports::CallViews,
};

/// Source of the page's data.
#[derive(Debug)]
pub(crate) struct PageSource {
    pub(crate) node: Node,
    pub(crate) access: AccessControl,
    pub(crate) calls: Arc<CallViews>,
    pub(crate) imbalance: Arc<Imbalance>,
    pub(crate) audit: audit::AuditLog,
}

impl PageSource {
    /// Returns the records of a service. Fails if any cannot be decoded, for instance a record of a newer release,
    /// because a decision without it would be wrong.
    fn view(&self, service: &ServiceName) -> Result<View, Refusal> {
        View::of(self.records(&Scope::Service(service.clone()), &every_kind())).map_err(|invalid| Refusal {
            problem: format!("a record cannot be read: {}: {}", invalid.field, invalid.problem),
            hint: "ask a control plane of the release that wrote it".to_owned(),
        })
    }
}

impl Source for PageSource {
    fn calls(&self, scope: &Scope, window: Duration) -> v1::ReadCallsResponse {
        self.calls.read((scope.clone(), u32::try_from(window.as_secs()).unwrap_or(u32::MAX), false))
    }

    fn denied(&self, scope: &Scope, window: Duration) -> Vec<(v1::DeniedCalls, u64)> {
        self.calls.denied(scope, window)
    }

    fn steps(&self, service: &ServiceName, window: Duration) -> Vec<Option<(CallCounts, Duration)>> {
        self.calls.steps(service, window)
    }

    fn region_steps(&self, scope: &Scope, window: Duration) -> RegionSteps {
        self.calls.region_steps(scope, window)
    }

    fn records(&self, scope: &Scope, kinds: &[RecordKind]) -> Vec<StoredRecord> {
        let mut prefixes = View::prefixes(scope, kinds);
        prefixes.extend(scope.policy_defaults());
        let mut stored = self.read(&prefixes);
        stored.retain(|one| one.key.service().is_none() || kinds.contains(&one.key.kind()));
        stored
    }

    fn read(&self, prefixes: &[Prefix]) -> Vec<StoredRecord> {
        let (_, entries) = self.node.read(prefixes);
        let stored = entries.into_iter().filter_map(|(key, entry)| {
            // Records of kinds that only newer releases know are left out.
            let key = RecordKey::parse(&key).ok()?;
            Some(StoredRecord { key, value: entry.value, revision: entry.revision })
        });
        stored.collect()
    }

    fn changes(&self, key: &RecordKey) -> Vec<v1::Change> {
        changes(&self.node, key)
    }

    fn loads(&self, service: &ServiceName) -> Vec<InstanceLoad> {
        let load = |Member { instance, cpu_us, covered_ms, requests }| InstanceLoad {
            instance,
            cpu_us,
            covered_ms,
            requests,
        };
        self.imbalance.instances(service).into_iter().map(load).collect()
    }

    fn imbalance(&self, tenant: Option<&Tenant>, by: &str, minutes: u32) -> Result<Value, Refusal> {
        let invalid = |error: Invalid| Refusal {
            problem: format!("{}: {}", error.field, error.problem),
            hint: error.hint,
        };
        let query = ReportQuery::of("", by, minutes).map_err(invalid)?.within(tenant);
        let unavailable = |problem| Refusal { problem, hint: "retry".to_owned() };
        let report = Handle::current().block_on(self.imbalance.cached_report(query)).map_err(unavailable)?;
        let mut view = json!(report.view());
        view["newestMs"] = json!(report.newest.map(Minute::start_ms));
        Ok(view)
    }

    fn certificate(&self, der: &[u8]) -> Option<Certificate> {
        let CertificateInfo { digest, expires_at, .. } = CertificateInfo::of(der).ok()?;
        Some(Certificate { digest, expires_at })
    }

    fn newest_audited(&self, log: AuditLog, most: usize) -> Audited<'_> {
        let log = match log {
            AuditLog::Security => Log::Security,
            AuditLog::Activity => Log::Activity,
        };
        Box::pin(self.audit.read_newest(log, most))
    }

    fn explain(&self, call: &HypotheticalCall, asker: &Extensions) -> Result<Value, Refusal> {
        let asker = asker.get::<Caller>().cloned().unwrap_or_default();
        let grants = self.access.grants(&asker);
        let (mut call, view) = (call.clone(), self.view(&call.service)?);
        for backend in fairmesh_explain::redistributed_backends(&call, &view).map_err(undeclared)? {
            // Whether services that the caller may not see have endpoints is not shown.
            if !self.access.may_view(&grants, &backend) {
                continue;
            }
            if !fairmesh_explain::has_endpoints(&call, (&backend, &self.view(&backend)?)) {
                call.empty_backends.push(backend);
            }
        }
        let begun = fairmesh_explain::begin(&call, &view).map_err(undeclared)?;
        let Some(next) = begun.report.next_service().cloned() else {
            return Ok(fairmesh_explain::document(&begun));
        };
        if !self.access.may_view(&grants, &next) {
            return Err(Refusal {
                problem: format!("a route sends the call to {next}, which {asker} may not read"),
                hint: "a role binding can permit it".to_owned(),
            });
        }
        let ended = fairmesh_explain::go_on(&call, begun, (&next, &self.view(&next)?));
        Ok(fairmesh_explain::document(&ended))
    }

    fn may_view_all(&self, asker: &Extensions) -> bool {
        let asker = asker.get::<Caller>().cloned().unwrap_or_default();
        !self.access.is_strict() || self.access.check(&asker, &[Need::ViewAll]).is_ok()
    }

    fn is_still_permitted(&self, asker: &Extensions) -> bool {
        !self.access.is_strict()
            || asker.get::<PermittedPage>().is_some_and(|permitted| permitted.holds(&self.access))
    }
}

fn undeclared(error: Undeclared) -> Refusal {
    Refusal { problem: error.to_string(), hint: "apply a document of 'kind: Service' for it".to_owned() }
}

#[cfg(test)]
mod tests {
    use bytes::Bytes;
    use fairmesh_model::{Location, Protocol, Record, Region, Service, ServiceKind, StoreId};
    use fairmesh_rib::Entry;
    use fairmesh_wire::record_encoding;

    use super::*;
    use fairmesh_controllers::MonotonicClock;

    fn call(service: &ServiceName) -> HypotheticalCall {
        HypotheticalCall {
            service: service.clone(),
            key: None,
            role: None,
            method: "GET".to_owned(),
            path: "/".to_owned(),
            headers: Vec::new(),
            host: String::new(),
            location: Location::in_region(Region::new("eu").unwrap()),
            client_id: "explain".to_owned(),
            seed: 0,
            empty_backends: Vec::new(),
        }
    }

    #[tokio::test]
    async fn undecodable_record_is_not_shown_as_undeclared_service() {
        let service = ServiceName::new("shop/cart").unwrap();
        let declared = Record::Service(Service {
            kind: ServiceKind::Replicated,
            protocol: Protocol::Http1,
            virtual_address: None,
            identity: None,
        });
        let declared = (RecordKey::Service(service.clone()), record_encoding::encode(&declared));
        let newer = (RecordKey::Policy(service.clone()), Bytes::from_static(b"\xff\xff\xff"));
        let entries =
            [declared, newer].map(|(key, value)| (key.to_string().into(), Entry { value, revision: 1 }));
        let node = Node::load(StoreId(1), 1, entries);
        let folder = tempfile::tempdir().unwrap();
        let page = PageSource {
            access: AccessControl::new(node.clone()),
            calls: Arc::new(CallViews::new(MonotonicClock::start())),
            imbalance: Arc::new(Imbalance::start(&folder.path().join("imbalance.redb")).await),
            audit: audit::AuditLog::open(folder.path()),
            node,
        };
        let refusal = page.explain(&call(&service), &Extensions::new()).unwrap_err();
        let key = RecordKey::Policy(service).to_string();
        assert!(refusal.problem.contains(&key), "{refusal:?}");
        assert!(refusal.hint.contains("release"), "{refusal:?}");
        let other = ServiceName::new("shop/other").unwrap();
        let refusal = page.explain(&call(&other), &Extensions::new()).unwrap_err();
        assert!(refusal.problem.contains("is not declared"), "{refusal:?}");
    }
}
