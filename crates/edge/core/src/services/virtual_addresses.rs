//! Virtual addresses of services.

use std::{
    collections::{BTreeMap, BTreeSet},
    net::SocketAddr,
};

use fairmesh_calls::ServiceName;
use fairmesh_model::Tenant;

/// Virtual addresses of the services of tenants. If two services of a tenant have the same address, the first
/// by name gets it.
#[derive(Debug, Default)]
pub struct VirtualAddresses {
    services: BTreeMap<Tenant, BTreeMap<SocketAddr, BTreeSet<ServiceName>>>,
    addresses: BTreeMap<ServiceName, SocketAddr>,
}

impl VirtualAddresses {
    /// Sets the virtual address of a service, or removes it.
    pub fn set(&mut self, service: &ServiceName, address: Option<SocketAddr>) {
        if let Some(before) = self.addresses.remove(service)
            && let Some(services) = self.services.get_mut(&service.tenant)
            && let Some(named) = services.get_mut(&before)
        {
            named.remove(service);
            if named.is_empty() {
                services.remove(&before);
            }
        }
        if let Some(address) = address {
            self.addresses.insert(service.clone(), address);
            let services = self.services.entry(service.tenant.clone()).or_default();
            services.entry(address).or_default().insert(service.clone());
        }
    }

    /// Removes the virtual addresses of a tenant.
    pub fn forget(&mut self, tenant: &Tenant) {
        self.services.remove(tenant);
        self.addresses.retain(|service, _| service.tenant != *tenant);
    }

    /// The service of a tenant at an address.
    pub fn service_at(&self, tenant: &Tenant, address: SocketAddr) -> Option<&ServiceName> {
        self.services.get(tenant)?.get(&address)?.first()
    }

    /// The services with an address.
    pub fn services(&self) -> impl Iterator<Item = &ServiceName> {
        self.addresses.keys()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn shared_virtual_address_belongs_to_first_service_by_name_per_tenant() {
        let mut addresses = VirtualAddresses::default();
        let name = |text: &str| ServiceName::new(text).unwrap();
        let at: SocketAddr = ([10, 96, 0, 1], 80).into();
        let found = |addresses: &VirtualAddresses, tenant: &str| {
            addresses.service_at(&Tenant::new(tenant).unwrap(), at).map(ToString::to_string)
        };
        for service in ["red/web", "red/api", "blue/web"] {
            addresses.set(&name(service), Some(at));
        }
        assert_eq!(
            (found(&addresses, "red"), found(&addresses, "blue")),
            (Some("red/api".into()), Some("blue/web".into()))
        );
        addresses.set(&name("red/api"), Some(([10, 96, 0, 2], 80).into()));
        assert_eq!(found(&addresses, "red"), Some("red/web".into()), "it moved");
        addresses.set(&name("red/web"), None);
        assert_eq!((found(&addresses, "red"), found(&addresses, "blue")), (None, Some("blue/web".into())));
    }
}
