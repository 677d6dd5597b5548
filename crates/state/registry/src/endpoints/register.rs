use std::{
    collections::{BTreeMap, HashSet},
    sync::{Arc, atomic::Ordering::Relaxed},
};

use fairmesh_model::{
    Endpoint, EndpointState, Invalid, MtlsMode, Protocol, Record, RecordKey, Service, ServiceKind,
    ServiceName,
};
use fairmesh_rib::{Expect, Op};
use fairmesh_store::write_author;
use fairmesh_wire::record_encoding;
use tokio::time::Instant;

use super::{InstanceRef, Registration, check_batch, states::set_state};
use fairmesh_rib::wall_clock::now_ms;

use crate::{
    MAX_AUTO_DECLARED, Registry, RegistryError, auto_declarations::peer_of, stored_records::StoredEndpoint,
};

/// Label with the protocol of an endpoint whose service is not declared yet.
const PROTOCOL_LABEL: &str = "fairmesh.protocol";

impl Registry {
    /// Registers endpoints, all or none, and returns the revision. Repeating a registration is harmless and renews the
    /// leases.
    ///
    /// # Errors
    /// `Invalid` for more than [`super::MAX_BATCH`], a duplicate instance, or an endpoint that is invalid or has the
    /// state lost. `Refused` when a process that started later has registered under the same name.
    pub async fn register(&self, registrations: &[Registration]) -> Result<u64, RegistryError> {
        check_batch("registrations", registrations.iter().map(Registration::instance_ref))?;
        for (i, registration) in registrations.iter().enumerate() {
            registration.validate().map_err(|e| e.within(format!("registrations[{i}].endpoint")))?;
        }
        // Runs in its own task. Otherwise a cancelled call could leave an endpoint without a lease, and a declared
        // service that no limit counts.
        let (registry, registrations) = (self.clone(), registrations.to_vec());
        let writing = async move { registry.write_and_grant(&registrations).await };
        let registering = tokio::spawn(write_author::scope(write_author::current(), writing));
        match registering.await {
            Ok(registered) => registered,
            Err(error) if error.is_panic() => std::panic::resume_unwind(error.into_panic()),
            Err(_) => {
                let problem = "the control plane is shutting down".to_owned();
                Err(RegistryError::Unavailable(Invalid::new("registrations", problem, "register again")))
            }
        }
    }

    /// Refuses plaintext endpoints that no caller would use. In a mesh with a trust domain, the service's policy must
    /// permit plaintext. Endpoints from files are reported instead of refused, because a file is registered as a
    /// whole.
    ///
    /// # Errors
    /// `Refused` for the first refused endpoint.
    pub(crate) fn refuse_plaintext(&self, registrations: &[Registration]) -> Result<(), RegistryError> {
        let Some((i, registration)) = self.find_plaintext(registrations) else { return Ok(()) };
        let Registration { service, endpoint, .. } = registration;
        let field = format!("registrations[{i}].endpoint.mtls");
        let problem = format!("{} of {service} is a plaintext endpoint in a strict mesh", endpoint.instance);
        let hint = format!(
            "register it with mutual TLS, as 'fairmesh register' does through an agent that has joined, or write 'mtls: permissive' into \
             the policy of {service}"
        );
        Err(RegistryError::refused(&field, problem, &hint))
    }

    /// Returns the first endpoint that callers would refuse, with its position.
    pub(crate) fn find_plaintext<'a>(
        &self,
        registrations: &'a [Registration],
    ) -> Option<(usize, &'a Registration)> {
        self.node().get(&RecordKey::TrustBundle.to_string())?;
        registrations.iter().enumerate().find(|(_, registration)| {
            let Registration { service, endpoint, .. } = registration;
            let policy = self.node().get(&RecordKey::Policy(service.clone()).to_string());
            let mode = match policy.is_some_and(|entry| record_encoding::permits_plaintext(&entry.value)) {
                true => MtlsMode::Permissive,
                false => MtlsMode::Strict,
            };
            // An unreadable declaration fails the later write, which reports the error.
            mode.refuses(self.service(service).ok().flatten().as_ref(), endpoint)
        })
    }

    async fn write_and_grant(&self, registrations: &[Registration]) -> Result<u64, RegistryError> {
        let _registering = self.shared.registering.read().await;
        let changed = self.change(|| self.register_ops(registrations)).await?;
        changed.output.into_iter().for_each(|service| self.declarations().add(service, declaring_peer()));
        self.grant(registrations).await?;
        Ok(changed.revision)
    }

    /// Returns the writes, and the services that they declare.
    fn register_ops(
        &self,
        registrations: &[Registration],
    ) -> Result<(Vec<Op>, Vec<ServiceName>), RegistryError> {
        let mut by_service: BTreeMap<&ServiceName, Vec<&Registration>> = BTreeMap::new();
        for registration in registrations {
            by_service.entry(&registration.service).or_default().push(registration);
        }
        let (mut ops, mut declared) = (Vec::new(), Vec::new());
        for (service, registrations) in by_service {
            if self.service(service)?.is_none() {
                self.check_declaration_limit(declared.len())?;
                ops.extend([declare(service, &registrations)?, self.declaration_marker(service)]);
                declared.push(service.clone());
            }
            let names: HashSet<_> = registrations.iter().map(|r| r.endpoint.instance.as_str()).collect();
            let held = self.endpoints_of(service, |instance| names.contains(instance));
            let mut by_instance: BTreeMap<_, Vec<&StoredEndpoint>> = BTreeMap::new();
            for held in &held {
                by_instance.entry(&held.endpoint.instance).or_default().push(held);
            }
            for registration in registrations {
                let instance = &registration.endpoint.instance;
                let before = by_instance.get(instance).map_or(&[][..], Vec::as_slice);
                registration.ops(before, &mut ops)?;
            }
        }
        Ok((ops, declared))
    }

    /// Refuses a declaration beyond the limit. `more` is the number of other new declarations in the same batch.
    fn check_declaration_limit(&self, more: usize) -> Result<(), RegistryError> {
        if self.declarations().admits(declaring_peer().as_deref(), more) {
            return Ok(());
        }
        self.shared.declarations_refused.fetch_add(1, Relaxed);
        let problem = format!(
            "{} of at most {MAX_AUTO_DECLARED} services are declared by registrations alone, and a peer may declare as many as it \
             leaves free",
            self.declarations().len() + more
        );
        let hint = "declare this service with 'fairmesh apply', then register again";
        Err(RegistryError::refused("service", problem, hint))
    }

    /// Grants leases to the registered endpoints, and restores records that expired meanwhile.
    async fn grant(&self, registrations: &[Registration]) -> Result<(), RegistryError> {
        let now = Instant::now();
        let mut was_lost = false;
        for registration in registrations {
            let instance = registration.claim();
            match registration.endpoint.lease {
                Some(term) => was_lost |= self.leases().grant(instance, term, now),
                None => self.leases().end(&instance.instance),
            }
        }
        self.shared.lease_granted.notify_one();
        self.claim_addresses(registrations, now).await;
        if was_lost {
            // The endpoint may have been marked as lost between the write and the grant.
            let changed = self.change(|| self.register_ops(registrations)).await?;
            changed.output.into_iter().for_each(|service| self.declarations().add(service, declaring_peer()));
        }
        Ok(())
    }
}

impl Registry {
    /// Records the addresses of the registered endpoints, and removes lost endpoints of other services with the same
    /// address. Callers of the lost endpoints would otherwise reach this service as a last resort.
    async fn claim_addresses(&self, registrations: &[Registration], now: Instant) {
        let mut displaced = Vec::new();
        {
            let leases = self.leases();
            self.address_claims().prune(leases.len(), |instance| leases.is_known(instance));
        }
        for registration in registrations.iter().filter(|one| one.endpoint.lease.is_some()) {
            let (address, claim) = (registration.endpoint.address, registration.claim());
            let mut claims = self.address_claims();
            claims.note_gone(address, &claim.instance);
            displaced.extend(claims.claim(address, &claim, now));
        }
        self.remove_displaced(&displaced).await;
    }

    /// Removes lost endpoints whose addresses now belong to endpoints of other services.
    pub(super) async fn remove_displaced(&self, displaced: &[InstanceRef]) {
        if displaced.is_empty() {
            return;
        }
        let plan = || {
            let found = self.find(displaced).into_iter().flatten();
            let lost: Vec<_> = found.filter(|held| held.endpoint.state == EndpointState::Lost).collect();
            Ok((lost.iter().map(StoredEndpoint::delete).collect(), lost))
        };
        match self.change(plan).await {
            Ok(removed) => removed.output.iter().for_each(|held| self.forget_displaced(held)),
            Err(error) => {
                tracing::warn!(%error, "lost endpoints cannot be removed whose addresses belong to other services now");
            }
        }
    }

    pub(super) fn forget_displaced(&self, held: &StoredEndpoint) {
        let instance = held.instance_ref();
        let address = held.endpoint.address;
        self.address_claims().note_gone(address, &instance);
        self.forget(&instance);
        let InstanceRef { service, instance } = &instance;
        tracing::info!(%service, %instance, %address, "removed: its address belongs to another service now");
    }
}

impl Registration {
    fn validate(&self) -> Result<(), Invalid> {
        self.endpoint.validate()?;
        if self.endpoint.state == EndpointState::Lost {
            let hint = "write starting, serving or draining";
            return Err(Invalid::new("state", "an endpoint cannot register as lost", hint));
        }
        self.protocol().map(|_| ())
    }

    fn protocol(&self) -> Result<Protocol, Invalid> {
        match self.endpoint.labels.get(PROTOCOL_LABEL).map(String::as_str) {
            None | Some("http1") => Ok(Protocol::Http1),
            Some("http2") => Ok(Protocol::Http2),
            Some("grpc") => Ok(Protocol::Grpc),
            Some(other) => {
                let field = format!("labels.{PROTOCOL_LABEL}");
                Err(Invalid::new(field, format!("'{other}' is not a protocol"), "write http1, http2 or grpc"))
            }
        }
    }

    /// Appends the writes of the registration, given the present records of the instance, which may be in another
    /// region.
    ///
    /// # Errors
    /// `Refused` when a later process is registered and not lost. A lost one does not count, because its clock may
    /// have been wrong.
    fn ops(&self, before: &[&StoredEndpoint], ops: &mut Vec<Op>) -> Result<(), RegistryError> {
        let there = |held: &&&StoredEndpoint| held.endpoint.state != EndpointState::Lost;
        if before.iter().filter(there).any(|held| self.is_outdated(&held.endpoint, now_ms())) {
            let InstanceRef { service, instance } = self.instance_ref();
            let problem = format!("a process that started later is registered as '{instance}' of {service}");
            let hint = "stop one of the two processes, or give each its own instance id";
            return Err(RegistryError::refused("instance", problem, hint));
        }
        let region = &self.endpoint.location.region;
        let (same, elsewhere): (Vec<&StoredEndpoint>, Vec<&StoredEndpoint>) =
            before.iter().partition(|held| held.endpoint.location.region == *region);
        ops.extend(elsewhere.iter().map(|held| held.delete()));
        // A successor does not inherit a drain that its process requested itself.
        let same_process = |held: &&&StoredEndpoint| self.claim().matches(held.endpoint.incarnation());
        let mut mine = before.iter().filter(same_process);
        let draining = mine.any(|held| held.endpoint.state == EndpointState::Draining);
        let mut endpoint: Endpoint = self.endpoint.clone();
        if draining && !self.explicit_state {
            endpoint.state = EndpointState::Draining;
        }
        // A successor inherits an operator's drain. Programs cannot set this label.
        endpoint.labels.remove(Endpoint::LOST);
        match before.iter().find_map(|held| held.endpoint.labels.get(Endpoint::DRAINED)) {
            Some(drained) => drop(endpoint.labels.insert(Endpoint::DRAINED.into(), drained.clone())),
            None => drop(endpoint.labels.remove(Endpoint::DRAINED)),
        }
        let state = endpoint.state;
        set_state(&mut endpoint, state, "");
        match same.first() {
            Some(held) if held.endpoint == endpoint => {}
            Some(held) => ops.push(held.put(&endpoint)),
            None => {
                let key =
                    RecordKey::Endpoint(self.service.clone(), region.clone(), self.endpoint.instance.clone());
                let value = record_encoding::encode(&Record::Endpoint(endpoint));
                ops.push(Op::put(key.to_string(), value).expecting(Expect::Absent));
            }
        }
        Ok(())
    }
}

/// Returns the operation that declares an undeclared service: by the first declaration among its registrations, or else
/// as replicated, with the protocol of the first registration.
fn declare(service: &ServiceName, registrations: &[&Registration]) -> Result<Op, Invalid> {
    let declared_as = registrations.iter().find_map(|registration| registration.declaration.clone());
    let declaration = match (declared_as, registrations.first()) {
        // Only operators may declare the identity that servers must prove.
        (Some(declared_as), _) => Service { identity: None, ..declared_as },
        (None, first) => Service {
            kind: ServiceKind::Replicated,
            protocol: first.map_or(Ok(Protocol::default()), |first| first.protocol())?,
            virtual_address: None,
            identity: None,
        },
    };
    let key = RecordKey::Service(service.clone()).to_string();
    Ok(Op::put(key, record_encoding::encode(&Record::Service(declaration))).expecting(Expect::Absent))
}

/// Returns the peer on whose behalf this task registers.
fn declaring_peer() -> Option<Arc<str>> {
    write_author::current().and_then(|author| peer_of(&author))
}
