//! Services whose data is missing from the sums, because reports had no room.

use std::collections::BTreeMap;

use fairmesh_model::{MAX_INCOMPLETE_SERVICES, ServiceName, Tenant, TrafficReport, access::Reach};

use crate::report_shares::ReportSource;

/// Maximum number of tenants with losses. Senders for all tenants, such as shared proxies, can invent more.
const MAX_TENANTS: usize = 4_096;

/// Services of lost reports.
///
/// Losses of limited senders are kept by tenant, each with its own bound: a tenant with many losses hides neither those
/// of others nor its own. A tenant whose losses are beyond its bound is named as a whole. Services of other tenants in a
/// lost report of a limited sender are not noted: the sender could keep any service from being planned. Its calls to
/// them are missing as if it had not reported them.
#[derive(Debug, Default)]
pub(crate) struct MissedServices {
    of_mesh: MissedNames,
    /// Losses of limited senders, and tenants of which reports said that any service may be incomplete.
    by_tenant: BTreeMap<Tenant, MissedNames>,
}

/// Bounded names of services.
#[derive(Debug, Default)]
struct MissedNames {
    /// The value is the time at which the last lost report of the service would have expired.
    names: BTreeMap<ServiceName, u64>,
    /// Time until which all services count as missed, since one had no room in `names`.
    all_until_ms: u64,
}

impl MissedServices {
    /// Notes the services of a lost report that would have expired at `void_at_ms`.
    pub(crate) fn note(&mut self, source: &ReportSource, report: &TrafficReport, void_at_ms: u64) {
        let called = report.calls.keys().map(|path| &path.service);
        let served = report.servers.keys().map(|(service, _)| service);
        for service in called.chain(served).chain(&report.incomplete).filter(|name| source.speaks_for(name)) {
            if !source.owner.is_limited {
                self.of_mesh.note(service, void_at_ms);
            } else if let Some(missed) = self.of_tenant(&service.tenant) {
                missed.note(service, void_at_ms);
            } else {
                self.of_mesh.note_all(void_at_ms);
            }
        }
        for tenant in report.incomplete_tenants.iter().filter(|tenant| source.speaks_for_tenant(tenant)) {
            self.note_tenant(tenant, void_at_ms);
        }
        if report.all_incomplete {
            self.note_all_of(source, void_at_ms);
        }
    }

    /// Notes that any service of a tenant may be missed.
    fn note_tenant(&mut self, tenant: &Tenant, void_at_ms: u64) {
        match self.of_tenant(tenant) {
            Some(missed) => missed.note_all(void_at_ms),
            None => self.of_mesh.note_all(void_at_ms),
        }
    }

    /// Notes that any service for which the sender speaks may be missed: its list of names was full.
    pub(crate) fn note_all_of(&mut self, source: &ReportSource, void_at_ms: u64) {
        let tenants = match &source.tenants {
            Reach::Tenants(tenants) if source.owner.is_limited => tenants,
            _ if source.owner.is_limited => return,
            _ => return self.of_mesh.note_all(void_at_ms),
        };
        tenants.iter().for_each(|tenant| self.note_tenant(tenant, void_at_ms));
    }

    /// The losses of a tenant; `None` if there are too many tenants.
    fn of_tenant(&mut self, tenant: &Tenant) -> Option<&mut MissedNames> {
        if self.by_tenant.len() >= MAX_TENANTS && !self.by_tenant.contains_key(tenant) {
            return None;
        }
        Some(self.by_tenant.entry(tenant.clone()).or_default())
    }

    /// Forgets services whose lost reports would have expired.
    pub(crate) fn expire(&mut self, now_ms: u64) {
        self.of_mesh.expire(now_ms);
        self.by_tenant.retain(|_, missed| {
            missed.expire(now_ms);
            !missed.names.is_empty() || missed.is_all(now_ms)
        });
    }

    /// Whether data of a service is missing.
    pub(crate) fn has(&self, service: &ServiceName, now_ms: u64) -> bool {
        let of_tenant = self.by_tenant.get(&service.tenant);
        [Some(&self.of_mesh), of_tenant]
            .into_iter()
            .flatten()
            .any(|missed| missed.is_all(now_ms) || missed.names.contains_key(service))
    }

    /// Whether data of any service may be missing.
    pub(crate) fn is_all(&self, now_ms: u64) -> bool {
        self.of_mesh.is_all(now_ms)
    }

    /// The tenants of which data of any service may be missing.
    pub(crate) fn tenants(&self, now_ms: u64) -> impl Iterator<Item = &Tenant> {
        self.by_tenant.iter().filter(move |(_, missed)| missed.is_all(now_ms)).map(|(tenant, _)| tenant)
    }

    /// The noted names. Further services may be missing.
    pub(crate) fn names(&self) -> impl Iterator<Item = &ServiceName> {
        [&self.of_mesh].into_iter().chain(self.by_tenant.values()).flat_map(|missed| missed.names.keys())
    }
}

impl MissedNames {
    fn note(&mut self, service: &ServiceName, void_at_ms: u64) {
        if let Some(void) = self.names.get_mut(service) {
            *void = void_at_ms.max(*void);
        } else if self.names.len() < MAX_INCOMPLETE_SERVICES {
            self.names.insert(service.clone(), void_at_ms);
        } else {
            self.note_all(void_at_ms);
        }
    }

    fn note_all(&mut self, void_at_ms: u64) {
        self.all_until_ms = void_at_ms.max(self.all_until_ms);
    }

    fn is_all(&self, now_ms: u64) -> bool {
        now_ms < self.all_until_ms
    }

    /// Keeps a full list while it stands for all services: those who read the names know it by their number.
    fn expire(&mut self, now_ms: u64) {
        if !self.is_all(now_ms) {
            self.names.retain(|_, void_at_ms| now_ms < *void_at_ms);
        }
    }
}
