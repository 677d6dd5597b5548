use std::{
    collections::{BTreeMap, HashSet},
    sync::atomic::Ordering::Relaxed,
};

use fairmesh_model::{
    Endpoint, EndpointState, Invalid, Protocol, Record, RecordKey, Service, ServiceKind, ServiceName,
};
use fairmesh_rib::{Expect, Op};
use fairmesh_wire::records;
use tokio::time::Instant;

use super::{InstanceRef, Registration, check_batch};
use crate::{MAX_DECLARED, Registry, RegistryError, clock::now_ms, view::Held};

/// Says what an endpoint speaks where its service is not declared.
const PROTOCOL_LABEL: &str = "fairmesh.protocol";

impl Registry {
    /// Announces endpoints, all or none, and answers the revision. Repeating it is harmless and renews the leases.
    ///
    /// # Errors
    /// `Invalid` for more than [`super::MAX_BATCH`], the same instance twice, an endpoint that is not valid, or one
    /// that says it is lost. `Refused` when a process that started later has registered under the same name.
    pub async fn register(&self, registrations: &[Registration]) -> Result<u64, RegistryError> {
        check_batch("registrations", registrations.iter().map(Registration::who))?;
        for (i, registration) in registrations.iter().enumerate() {
            registration.validate().map_err(|e| e.within(format!("registrations[{i}].endpoint")))?;
        }
        let _registering = self.shared.registering.read().await;
        let changed = self.change(|| self.register_ops(registrations)).await?;
        changed.told.into_iter().for_each(|service| self.declarations().add(service));
        self.grant(registrations).await?;
        Ok(changed.revision)
    }

    /// What to write, and which services are declared by it.
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
                self.check_room(declared.len())?;
                ops.extend([declare(service, &registrations)?, self.declared_here(service)]);
                declared.push(service.clone());
            }
            let names: HashSet<_> = registrations.iter().map(|r| r.endpoint.instance.as_str()).collect();
            let held = self.endpoints_of(service, |instance| names.contains(instance));
            let mut by_instance: BTreeMap<_, Vec<&Held>> = BTreeMap::new();
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

    /// Refuses to declare another service where registrations have declared as many as they may, besides `more`.
    fn check_room(&self, more: usize) -> Result<(), RegistryError> {
        if self.declarations().len() + more < MAX_DECLARED {
            return Ok(());
        }
        self.shared.declarations_refused.fetch_add(1, Relaxed);
        let problem = format!("{MAX_DECLARED} services are declared by registrations alone");
        let hint = "declare this service with 'fairmesh apply', then register again";
        Err(RegistryError::refused("service", problem, hint))
    }

    /// Starts the leases of what is registered now, and mends what ran out in between.
    async fn grant(&self, registrations: &[Registration]) -> Result<(), RegistryError> {
        let now = Instant::now();
        let mut was_lost = false;
        for registration in registrations {
            let who = registration.claim();
            match registration.endpoint.lease {
                Some(term) => was_lost |= self.leases().grant(who, term, now),
                None => self.leases().end(&who.instance),
            }
        }
        self.shared.lease_granted.notify_one();
        if was_lost {
            // It may have been marked as lost between the write and the grant.
            let changed = self.change(|| self.register_ops(registrations)).await?;
            changed.told.into_iter().for_each(|service| self.declarations().add(service));
        }
        Ok(())
    }
}

impl Registration {
    fn validate(&self) -> Result<(), Invalid> {
        self.endpoint.validate()?;
        if self.endpoint.state == EndpointState::Lost {
            let hint = "write starting, serving or draining";
            return Err(Invalid::new("state", "an endpoint that registers is not lost", hint));
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

    /// What to write, given what is there of this instance: itself, and itself in a region that it left.
    ///
    /// # Errors
    /// `Refused` when a later process is there; one that was lost may have been later by a clock that was wrong.
    fn ops(&self, before: &[&Held], ops: &mut Vec<Op>) -> Result<(), RegistryError> {
        let there = |held: &&&Held| held.endpoint.state != EndpointState::Lost;
        if before.iter().filter(there).any(|held| self.is_outdated(&held.endpoint, now_ms())) {
            let InstanceRef { service, instance } = self.who();
            let problem = format!("a process that started later is '{instance}' of {service} now");
            let hint = "stop one of the two, or give each an instance id of its own";
            return Err(RegistryError::refused("instance", problem, hint));
        }
        let region = &self.endpoint.location.region;
        let (same, elsewhere): (Vec<&Held>, Vec<&Held>) =
            before.iter().partition(|held| held.endpoint.location.region == *region);
        ops.extend(elsewhere.iter().map(|held| held.delete()));
        // Its successor does not drain because it did.
        let same_process = |held: &&&Held| self.claim().fits(held.endpoint.incarnation());
        let mut mine = before.iter().filter(same_process);
        let draining = mine.any(|held| held.endpoint.state == EndpointState::Draining);
        let mut endpoint: Endpoint = self.endpoint.clone();
        if draining && !self.state_meant {
            endpoint.state = EndpointState::Draining;
        }
        match same.first() {
            Some(held) if held.endpoint == endpoint => {}
            Some(held) => ops.push(held.put(&endpoint)),
            None => {
                let key =
                    RecordKey::Endpoint(self.service.clone(), region.clone(), self.endpoint.instance.clone());
                let value = records::encode(&Record::Endpoint(endpoint));
                ops.push(Op::put(key.to_string(), value).expecting(Expect::Absent));
            }
        }
        Ok(())
    }
}

/// Declares a service by its first registration, so that a newcomer needs no file.
fn declare(service: &ServiceName, registrations: &[&Registration]) -> Result<Op, Invalid> {
    let told = registrations.iter().find_map(|registration| registration.declaration.clone());
    let declaration = match (told, registrations.first()) {
        (Some(told), _) => told,
        (None, first) => Service {
            kind: ServiceKind::Replicated,
            protocol: first.map_or(Ok(Protocol::default()), |first| first.protocol())?,
            virtual_address: None,
        },
    };
    let key = RecordKey::Service(service.clone()).to_string();
    Ok(Op::put(key, records::encode(&Record::Service(declaration))).expecting(Expect::Absent))
}
